"""The sink upsert materializer against the FLIP's rules, written as a naive list per key."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.errors import UserFunctionError
from headrace.execution.element import Element
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import Layouts
from headrace.records.order import record_order
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.changelog import Changelog
from headrace.tables.entries import rebuild
from headrace.tables.schemas import MATERIALIZER_HISTORY
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.micro_batches import no_rows

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Row(Struct, frozen=True):
    """`key` is the primary key, `part` the upsert key if there is one."""

    key: str
    part: int | None
    text: str = ""


class Model:
    """The rules and their results: the rows of each key, and the table that a sink would hold."""

    def __init__(self, upsert_key):
        self.upsert_key = upsert_key
        self.rows, self.table, self.emitted, self.unmatched = {}, {}, [], []

    def matches(self, one, other):
        return one.part == other.part if self.upsert_key else one == other

    def take(self, kind, row):
        rows = self.rows.setdefault(row.key, [])
        position = next((place for place, earlier in enumerate(rows) if self.matches(earlier, row)), None)
        if kind in {INSERT, UPDATE_AFTER}:
            self.emit(UPDATE_AFTER if rows else INSERT, row)
            if position is not None and self.upsert_key:
                rows[position] = row
            else:
                rows.append(row)
        elif position is None:
            self.unmatched.append(row)
        else:
            del rows[position]
            if not rows:
                self.emit(DELETE, row)
            elif position == len(rows):
                self.emit(UPDATE_AFTER, rows[-1])

    def emit(self, kind, row):
        self.emitted.append((kind, row))
        apply(self.table, [(kind, row)])


def apply(table, changes):
    """Apply changes as a sink does; a change that contradicts the table is a fault of the materializer."""
    for kind, row in changes:
        assert (row.key in table) is (kind is not INSERT), f"{kind.symbol} for a table of {table}"
        if kind is DELETE:
            del table[row.key]
        else:
            table[row.key] = row


class Harness:
    """One materializer over one backend; each `run` is a micro-batch in its own task."""

    def __init__(
        self,
        backend,
        *,
        primary_key=("key",),
        upsert_key=None,
        emit=Emit.EVERY_CHANGE,
        record=Row,
        strategies=(Strategy.LEGACY,),
        from_columns=False,
    ):
        self.backend, self.record, self.from_columns = backend, record, from_columns
        self.operator = UpsertMaterialize("lines", primary_key, upsert_key, Strategy.LEGACY, emit)
        self.strategies = itertools.cycle(strategies)
        self.ordinal = 0

    def run(self, *changes, batch=3):
        """Process (kind, row)s; return the emitted changes in the order of their keys."""
        elements = [self.element(kind, row) for kind, row in changes]
        layouts = Layouts(next(self.strategies), high=3, low=1)
        self.last = UpsertMaterializer(
            self.operator, self.backend, record=self.record, layouts=layouts, from_columns=self.from_columns
        )
        self.last.run(elements[place : place + batch] for place in range(0, len(elements), batch))
        self.changes = self.last.changes()
        self.backend.write_batch(self.last.writes())
        outputs = self.last.outputs()
        assert [out.order for out in outputs] == sorted({out.order for out in outputs})
        return [(out.kind, msgspec.json.decode(out.raw, type=self.record)) for out in outputs]

    def element(self, kind, row):
        self.ordinal += 1
        return Element(record_order(self.ordinal), 1_000 + self.ordinal, kind, encode(row.key), row)


@pytest.fixture(params=Strategy)
def harness(backend, request):
    return lambda **options: Harness(backend, strategies=(request.param,), **options)


def rows(*texts):
    """Read `+1a` as insert (or update to) part 1 with text a; `-1a` retracts it."""
    kinds = {"+": UPDATE_AFTER, "-": UPDATE_BEFORE, "i": INSERT, "d": DELETE}
    return [(kinds[t[0]], Row("k", int(t[1]), t[2:])) for t in texts]


def as_text(changes):
    """Return rows in the notation of `rows`, with the symbols of row kinds."""
    return [f"{kind.symbol} {row.part}{row.text}" for kind, row in changes]


def test_first_row_is_insert_and_others_update(harness):
    assert as_text(harness().run(*rows("+1a", "i2b", "+3c"))) == ["+I 1a", "+U 2b", "+U 3c"]


def test_retracting_last_row_restores_previous_row(harness):
    """The restored row is emitted as it was stored."""
    h = harness()
    h.run(*rows("+1a", "+2b"))
    assert as_text(h.run(*rows("-2b"))) == ["+U 1a"]


def test_retracting_any_other_row_emits_nothing(harness):
    assert as_text(harness().run(*rows("+1a", "+2b", "+3c", "-1a", "-2b")))[3:] == []


def test_retracting_only_row_deletes_with_retractions_columns(harness):
    result = harness(upsert_key=("part",)).run(*rows("+1a", "d1z"))
    assert as_text(result) == ["+I 1a", "-D 1z"]


def test_first_of_duplicate_rows_is_retracted_first(harness):
    assert as_text(harness().run(*rows("+1a", "+2b", "+1a", "-1a", "-1a"))) == ["+I 1a", "+U 2b", "+U 1a", "+U 2b"]


def test_upsert_key_replaces_in_place_and_emits(harness):
    h = harness(upsert_key=("part",))
    assert as_text(h.run(*rows("+1a", "+2b", "+1c"))) == ["+I 1a", "+U 2b", "+U 1c"]
    # 1c is first, so its retraction emits nothing; the retraction of 2b deletes
    assert as_text(h.run(*rows("-1x", "-2x"))) == ["-D 2x"]


def test_replacing_a_row_never_lowers_sequence_numbers(harness):
    # FLINK-39740: this order of changes ends Flink's MAP strategy with a NullPointerException
    h = harness(upsert_key=("part",))
    assert as_text(h.run(*rows("+1a", "+2b", "+1c", "-1c", "+3d"))) == ["+I 1a", "+U 2b", "+U 1c", "+U 3d"]
    assert as_text(h.run(*rows("-3d"))) == ["+U 2b"]


def test_null_equals_null_in_an_upsert_key(harness):
    h = harness(upsert_key=("part",))
    changes = [(UPDATE_AFTER, Row("k", None, "a")), (UPDATE_AFTER, Row("k", None, "b")), (DELETE, Row("k", None, "c"))]
    assert [kind for kind, _ in h.run(*changes)] == [INSERT, UPDATE_AFTER, DELETE]


@pytest.mark.parametrize("upsert_key", [None, ("part",)])
def test_unmatched_retraction_changes_nothing_and_counts(harness, upsert_key):
    h = harness(upsert_key=upsert_key)
    assert as_text(h.run(*rows("-1a", "+1a", "+2b", "-3c"))) == ["+I 1a", "+U 2b"]
    assert h.last.metrics == {"records": 4, "unmatched_retractions": 2}
    assert [(retraction.row, retraction.rows_in_history) for retraction in h.last.unmatched] == [
        (b'{"key":"k","part":1,"text":"a"}', 0),
        (b'{"key":"k","part":3,"text":"c"}', 2),
    ]


def test_only_rows_that_changed_are_changes(harness):
    h = harness()
    h.run(*rows("+1a", "+2b", "+3c"))
    h.run(*rows("-2b", "+4d", "+5e", "-5e"))
    assert sorted((c.sequence_number, c.row) for c in h.changes) == [
        (1, None),
        (3, b'{"key":"k","part":4,"text":"d"}'),
    ]
    h.run(*rows("+6f", "-6f"))
    assert (h.changes, list(h.last.writes())) == ([], [])


def test_key_without_rows_leaves_nothing_behind(harness):
    h = harness()
    h.run(*rows("+1a", "+2b"))
    h.run(*rows("-1a", "-2b"))
    assert list(h.backend.items()) == []


def test_sets_and_dicts_have_no_order(harness):
    class Basket(Struct, frozen=True):
        key: str
        items: frozenset[str]
        prices: dict[str, int]

    # The fields are in the order of the record's text, then in another order.
    texts = [
        b'{"key":"k","items":["a","b"],"prices":{"a":1,"b":2}}',
        b'{"key":"k","items":["b","a"],"prices":{"b":2,"a":1}}',
    ]
    for one, other in itertools.permutations(texts):
        h = harness(record=Basket)
        changes = [(kind, msgspec.json.decode(text, type=Basket)) for kind, text in ((INSERT, one), (DELETE, other))]
        assert [kind for kind, _ in h.run(*changes)] == [INSERT, DELETE]


def test_number_impossible_in_json_is_reported(harness):
    class Weight(Struct, frozen=True):
        key: str
        tons: float

    with pytest.raises(UserFunctionError, match=r"got `null` - at `\$.tons`. \(JSON has no NaN"):
        harness(record=Weight).run((INSERT, Weight("k", float("nan"))))


def test_added_and_removed_key_has_no_net_change(harness):
    h = harness(emit=Emit.NET_CHANGE)
    assert h.run(*rows("+1a", "-1a")) == []
    h.run(*rows("+1a"))
    assert h.run(*rows("-1a", "+1a")) == []
    assert as_text(h.run(*rows("-1a", "+2b", "+3c"))) == ["+U 3c"]
    assert as_text(h.run(*rows("-2b", "-3c", "+1a", "-1a"))) == ["-D 1a"]


def test_row_replaced_in_place_is_net_change(harness):
    """The replaced row is part of the net change even if it is not the last row."""
    h = harness(upsert_key=("part",), emit=Emit.NET_CHANGE)
    h.run(*rows("+1a", "+2b"))
    assert as_text(h.run(*rows("+1c"))) == ["+U 1c"]
    assert as_text(h.run(*rows("+2b"))) == ["+U 2b"]  # as it was before, but the sink holds 1c


def test_upsert_key_within_primary_key_allows_one_row(harness):
    h = harness(primary_key=("key", "part"), upsert_key=("part",), emit=Emit.NET_CHANGE)
    assert as_text(h.run(*rows("+1a", "+1b"))) == ["+I 1b"]
    assert h.run(*rows("-1b", "+1b")) == []
    assert as_text(h.run(*rows("-1x"))) == ["-D 1x"]


changes = st.lists(
    st.tuples(
        st.sampled_from([*RowKind]),
        st.builds(Row, st.sampled_from(["j", "k"]), st.none() | st.integers(0, 3), st.sampled_from(["a", "b"])),
    ),
    max_size=40,
)
strategies = st.lists(st.sampled_from(Strategy), min_size=1, max_size=4)
"""Of one micro-batch after the other: switching keeps the history."""

upsert_keys = pytest.mark.parametrize("upsert_key", [None, (), ("part",)])


@upsert_keys
@given(changes=changes, batch=st.integers(1, 5), cuts=st.lists(st.integers(0, 40), max_size=3), strategies=strategies)
def test_changes_follow_the_rules_over_restarts(backends, upsert_key, changes, batch, cuts, strategies):
    model = Model(upsert_key)
    places = [0, *sorted(cuts), len(changes)]
    with backends.lent() as new:
        h = Harness(new(), upsert_key=upsert_key, strategies=strategies)
        for start, end in itertools.pairwise(places):
            before = len(model.emitted), len(model.unmatched)
            for change in changes[start:end]:
                model.take(*change)
            assert h.run(*changes[start:end], batch=batch) == model.emitted[before[0] :]
            unmatched = [msgspec.json.decode(retraction.row, type=Row) for retraction in h.last.unmatched]
            assert unmatched == model.unmatched[before[1] :]


@upsert_keys
@given(seed=st.integers(0, 1 << 30), keys=st.sampled_from(["k", "jk"]), rows=st.sampled_from([5, 60, 400]))
def test_long_batches_follow_the_rules(backends, upsert_key, seed, keys, rows):
    """A batch is longer than what is read of it at once, and histories switch between their layouts within it."""
    chance, model = random.Random(seed), Model(upsert_key)
    changes = [
        (chance.choice([*RowKind]), Row(chance.choice(keys), chance.randrange(rows), chance.choice("ab")))
        for _ in range(1_500)
    ]
    with backends.lent() as new:
        h = Harness(new(), upsert_key=upsert_key, strategies=(Strategy.ADAPTIVE, Strategy.MAP), from_columns=True)
        for part in (changes[:1_200], changes[1_200:]):
            before = len(model.emitted), len(model.unmatched)
            for change in part:
                model.take(*change)
            assert h.run(*part, batch=len(part)) == model.emitted[before[0] :]
            unmatched = [msgspec.json.decode(retraction.row, type=Row) for retraction in h.last.unmatched]
            assert unmatched == model.unmatched[before[1] :]


@upsert_keys
@given(changes=changes, cut=st.integers(0, 40), strategies=strategies)
def test_rows_from_columns_give_the_same_bytes(backends, upsert_key, changes, cut, strategies):
    with backends.lent() as new:
        results = []
        for from_columns in (False, True):
            h = Harness(new(), upsert_key=upsert_key, strategies=strategies, from_columns=from_columns)
            runs = []
            for part in (changes[:cut], changes[cut:]):
                h.run(*part)
                runs.append((h.last.outputs(), h.last.unmatched, h.changes))
            results.append((runs, sorted(h.backend.items())))
        assert results[0] == results[1]


@upsert_keys
@given(changes=changes, cuts=st.lists(st.integers(0, 40), max_size=3), strategies=strategies)
def test_net_changes_give_same_table_over_restarts(backends, upsert_key, changes, cuts, strategies):
    model, table = Model(upsert_key), {}
    places = [0, *sorted(cuts), len(changes)]
    with backends.lent() as new:
        h = Harness(new(), upsert_key=upsert_key, emit=Emit.NET_CHANGE, strategies=strategies)
        for start, end in itertools.pairwise(places):
            for change in changes[start:end]:
                model.take(*change)
            net = h.run(*changes[start:end])
            assert len({row.key for _, row in net}) == len(net)
            apply(table, net)
            assert table == model.table


@given(changes=changes, strategies=strategies)
def test_net_changes_repeat_no_published_row(backends, changes, strategies):
    """Net changes of whole rows repeat no published row."""
    with backends.lent() as new:
        h = Harness(new(), emit=Emit.NET_CHANGE, strategies=strategies)
        table = {}
        for place in range(0, len(changes), 4):
            net = h.run(*changes[place : place + 4])
            assert all(table.get(row.key) != row for kind, row in net if kind is not DELETE)
            apply(table, net)


@upsert_keys
@given(changes=changes, cut=st.integers(0, 40), strategies=strategies)
def test_history_rebuilt_from_changelog_is_the_same(backends, upsert_key, changes, cut, strategies):
    tables = no_rows()
    with backends.lent() as new:
        h = Harness(new(), upsert_key=upsert_key, strategies=strategies)
        for checkpoint, part in enumerate((changes[:cut], changes[cut:])):
            h.run(*part)
            rows = Changelog("lines", checkpoint, 128).history(h.changes, lambda _: None)
            tables[MATERIALIZER_HISTORY].append(rows)
        rebuilt = new()
        rebuild(rebuilt, views_of(tables), "lines", KeyGroupRange(0, 127))
        h.run()
        again = UpsertMaterializer(h.operator, rebuilt, record=Row)
        for key in (b'"j"', b'"k"'):
            assert again.rows_of(key) == h.last.rows_of(key)
