"""A job's materializer after its pipeline, strategy, backend or parallelism has changed."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Emit, OnConflict, RowKind, Strategy, UpsertMaterialize
from headrace.execution.element import Element, Watermark
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.options import Layouts
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.key_groups import KeyGroupRange, key_group, key_group_range
from headrace.tables.changelog import Changelog
from headrace.tables.entries import rebuild
from headrace.tables.schemas import MATERIALIZER_HISTORY, STATE_TABLES, TIMERS
from tests.unit.materializer.test_materializer_lifetimes import EVENT, Model, Row
from tests.unit.support.arrow_tables import views_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.micro_batches import GROUPS, no_rows


@dataclass(frozen=True)
class Choices:
    """The settings of a release's pipeline, file and command line; all may change between micro-batches."""

    strategy: Strategy
    thresholds: tuple[int, int]
    emit: Emit
    upsert_key: tuple[str, ...] | None
    has_ttl: bool
    policy: OnConflict
    rebuilt: bool
    """Whether the task has no local copy, and makes one from the tables."""
    size: int
    """Of the batches in which a task gets its records."""

    @property
    def operator(self):
        ttl = EVENT if self.has_ttl else None
        return UpsertMaterialize(
            "lines", ("key",), self.upsert_key, self.strategy, self.emit, ttl, self.policy, force=True
        )


class AnyTtl:
    """One materializer from micro-batch to micro-batch, and its expected result."""

    def __init__(self, new_backend):
        self.new_backend, self.backend = new_backend, new_backend()
        self.ordinal, self.now, self.watermark, self.checkpoint = 1, 0, None, 0
        self.models, self.expected, self.sink, self.tables = {}, {}, {}, no_rows()
        self.had_ttl, self.since = True, None

    def run(self, events, choices):
        """A micro-batch of changes and watermarks."""
        self.checkpoint += 1
        if choices.rebuilt:
            self.backend = self.new_backend()
            rebuild(self.backend, views_of(self.tables), "lines", KeyGroupRange(0, 127))
        before = self.watermark
        if choices.has_ttl is not self.had_ttl:
            self.had_ttl, self.since = choices.has_ttl, self.watermark if choices.has_ttl else None
        elements, watermarks, emitted, unmatched = self.by_the_rules(events, choices)
        task = UpsertMaterializer(
            choices.operator,
            self.backend,
            record=Row,
            layouts=Layouts(choices.strategy, *choices.thresholds),
            watermark=before,
            watermarks=watermarks,
            ttl_since=self.since,
            from_columns=self.checkpoint % 2 == 0,
        )
        task.run(elements[first : first + choices.size] for first in range(0, len(elements), choices.size))
        assert len(task.unmatched) == unmatched
        self.keep(task)
        sent = [(out.kind, msgspec.json.decode(out.raw, type=Row)) for out in task.outputs()]
        if choices.emit is Emit.EVERY_CHANGE:
            assert sent == emitted
        apply(self.expected, emitted)
        apply(self.sink, sent)
        again = UpsertMaterializer(choices.operator, self.backend, record=Row)
        for key, model in self.models.items():
            assert again.rows_of(encode(key)) == [encode(row) for row, _ in model.rows]

    def by_the_rules(self, events, choices):
        """Yield each input of the task with the expected output: one change, and one watermark, after the other."""
        elements, watermarks, emitted, unmatched = [], [], [], 0
        for model in self.models.values():
            self.choose(model, choices)
        for what, key, part, text, step in events:
            if what == "watermark":
                self.watermark = (self.watermark or 0) + abs(step) + 1
                watermarks.append(Watermark(record_order(self.ordinal), self.watermark))
                self.end()
                continue
            self.now = max(0, self.now + step)
            row = Row(key, part, text)
            model = self.models.setdefault(key, Model(None, Strategy.VALUE, OnConflict.KEEP_HISTORY, has_ttl=False))
            self.choose(model, choices)
            model.emitted, model.unmatched = [], 0
            model.take(what, row, self.now, self.watermark)
            emitted += model.emitted
            unmatched += model.unmatched
            elements.append(Element(record_order(self.ordinal), self.now, what, encode(key), row))
            self.ordinal += 1
        self.end()
        return elements, watermarks, emitted, unmatched

    def choose(self, model, choices):
        model.upsert_key, model.has_ttl, model.policy = choices.upsert_key, choices.has_ttl, choices.policy
        model.legacy = choices.strategy is Strategy.LEGACY
        model.since = float("-inf") if self.since is None else self.since

    def end(self):
        for model in self.models.values():
            model.end(self.watermark)

    def keep(self, task):
        changes, sweeps = task.changes(), task.timer_changes()
        self.backend.write_batch([*task.writes(), *task.timer_writes(sweeps)])
        log = Changelog("lines", self.checkpoint, 128)
        self.tables[MATERIALIZER_HISTORY].append(log.history(changes, lambda _: None))
        self.tables[TIMERS].append(log.timers(sweeps))


NO_VERSIONS = dict.fromkeys(STATE_TABLES, 0)


def apply(table, changes):
    for kind, row in changes:
        if kind is RowKind.DELETE:
            table.pop(row.key, None)
        else:
            table[row.key] = row


keys, texts = st.sampled_from("jkk"), st.sampled_from("ab")
steps = st.integers(-6, 12)
"""From one event time to the next one: some come late, and lives are 10 long."""
events = st.lists(
    st.tuples(st.sampled_from([*RowKind, "watermark"]), keys, st.integers(0, 2), texts, steps), max_size=12
)
policies = st.sampled_from([OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE])
upsert_keys = st.sampled_from([None, ("part",), ("text",)])
choices = st.builds(
    Choices,
    st.sampled_from(Strategy),
    st.sampled_from([(3, 1), (1, 0), (5, 2)]),
    st.sampled_from(Emit),
    upsert_keys,
    st.booleans(),
    policies,
    st.booleans(),
    st.integers(1, 4),
)


TOUCHED = [(RowKind.DELETE, key, 9, "", 0) for key in "jk"]


@pytest.mark.parametrize("strategy", Strategy)
def test_each_watermark_expires_the_rows_it_reached(backend, strategy):
    """Each watermark expires its rows, also with several watermarks in one micro-batch."""
    # DO_NOTHING   +1a at 1   +2b at 4   watermark 5: 1a stays, and 2b goes   watermark 12: 1a dies, and nothing is left
    insert, watermark = RowKind.INSERT, "watermark"
    changes = [(insert, "k", 1, "a", 1), (insert, "k", 2, "b", 3), (watermark, "", 0, "", 4), (watermark, "", 0, "", 6)]
    life = AnyTtl(lambda: backend)
    life.run(changes, Choices(strategy, (3, 1), Emit.NET_CHANGE, None, True, OnConflict.DO_NOTHING, False, 4))
    assert (life.watermark, life.models["k"].rows) == (12, [])


@examples(30)
@given(
    runs=st.lists(st.tuples(events, choices), max_size=6),
    upsert_key=upsert_keys,
    has_ttl=st.booleans(),
    policy=policies,
)
def test_layouts_and_backends_may_change_between_micro_batches(backends, runs, upsert_key, has_ttl, policy):
    with backends.lent() as new:
        life, was_legacy = AnyTtl(new), None
        for part, chosen in runs:
            legacy = chosen.strategy is Strategy.LEGACY
            # A key without later changes is swept when its rows expire. Their lifetimes are those of the strategy
            # that last changed the key.
            touched = TOUCHED if has_ttl and was_legacy is not legacy else []
            life.run([*touched, *part], replace(chosen, upsert_key=upsert_key, has_ttl=has_ttl, policy=policy))
            assert life.sink == life.expected
            was_legacy = legacy


@pytest.mark.parametrize("strategy", Strategy)
def test_ttl_switched_on_restarts_existing_rows(backend, strategy):
    insert, delete, watermark = RowKind.INSERT, RowKind.DELETE, "watermark"
    without = Choices(strategy, (3, 1), Emit.NET_CHANGE, None, False, OnConflict.KEEP_HISTORY, False, 4)
    life = AnyTtl(lambda: backend)
    life.run([(insert, "k", 1, "a", 1), (insert, "j", 1, "a", 1), (watermark, "", 0, "", 99)], without)
    on = replace(without, has_ttl=True)
    life.run([(delete, "k", 9, "", 1), (delete, "j", 1, "a", 1), (watermark, "", 0, "", 8)], on)
    assert (life.since, life.watermark, len(life.models["k"].rows), life.models["j"].rows) == (100, 109, 1, [])
    life.run([(watermark, "", 0, "", 0)], on)
    assert (life.watermark, life.models["k"].rows) == (110, [])


@examples(30)
@given(runs=st.lists(st.tuples(events, choices), max_size=6))
def test_upsert_key_ttl_and_policy_may_change(backends, runs):
    with backends.lent() as new:
        life = AnyTtl(new)
        for part, chosen in runs:
            # A key is swept only after its first change since the TTL or the policy was declared.
            life.run([*TOUCHED, *part], replace(chosen, emit=Emit.EVERY_CHANGE))


@given(
    runs=st.lists(
        st.tuples(
            st.integers(1, 4),
            st.sampled_from(Strategy),
            st.lists(st.tuples(st.sampled_from(RowKind), st.sampled_from("abcdefgh"), st.integers(0, 2)), max_size=20),
        ),
        max_size=4,
    )
)
def test_other_parallelism_rebuilds_shares_and_continues(runs):
    tables, model, ordinal = no_rows(), {}, itertools.count(1)
    for checkpoint, (parallelism, strategy, part) in enumerate(runs):
        elements = []
        for kind, key, number in part:
            row = Row(key, number)
            elements.append(Element(record_order(next(ordinal)), 0, kind, encode(key), row))
        emitted, rows = [], []
        for task in range(parallelism):
            groups, backend = key_group_range(task, GROUPS, parallelism), HashMapBackend()
            rebuild(backend, views_of(tables), "lines", groups)
            operator = UpsertMaterialize("lines", ("key",), None, strategy, Emit.EVERY_CHANGE)
            worker = UpsertMaterializer(operator, backend, record=Row, layouts=Layouts(strategy, 3, 1))
            worker.run([[element for element in elements if key_group(element.key_json, GROUPS) in groups]])
            emitted += worker.outputs()
            rows.append(Changelog("lines", checkpoint, GROUPS).history(worker.changes(), lambda _: None))
        tables[MATERIALIZER_HISTORY] += rows
        expected = []
        for kind, key, number in part:
            history = model.setdefault(key, Model(None, strategy, OnConflict.KEEP_HISTORY, has_ttl=False))
            history.emitted.clear()
            history.take(kind, Row(key, number), 0, None)
            expected += history.emitted
        assert [(out.kind, out.raw) for out in sorted(emitted)] == [(kind, encode(row)) for kind, row in expected]
