"""Joins of sides with a unique key: one stored row for each, the result of the SQL join, and upserts as input."""

from __future__ import annotations

import random
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import JoinType, KeyedProcessFunction, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.errors import StateSchemaError
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.join_jobs import Log, Offer, Order, Row, Table, function_of, item_of, sql_join, table_of, text
from tests.unit.operators.test_join_results import run
from tests.unit.operators.test_semi_join import Log as LeftLog
from tests.unit.operators.test_semi_join import by_loop, left_in, name_of
from tests.unit.operators.test_window_results import options
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
FOREVER = Lifetime.FOREVER
METHODS = ["semi_join", "anti_join"]

FORMS = {
    "multiset": (("item",), lambda stream, _: stream),
    "single, updates": (("item",), lambda stream, name: stream.normalize(name, key=("item",))),
    "single, upserts": (("item",), lambda stream, _: stream.drop_update_before("item")),
    "map, updates": (("at",), lambda stream, name: stream.normalize(name, key=("at",))),
    "map, upserts": (("item", "at"), lambda stream, _: stream.drop_update_before("item", "at")),
}
"""Unique key of the rows of a side, and the function that makes it known."""
FORM = st.sampled_from([*FORMS, "single, upserts"])


def is_cheap(order: Order, offer: Offer) -> bool:
    """Return whether an offer costs no more than there are pieces: a condition that an update may change."""
    return offer.cents <= order.pieces


def always(_order, _offer):
    return True


def streams(forms):
    pipeline = Pipeline("unique")
    return [
        FORMS[form][1](pipeline.source(name, record, event_time="at", row_kind="kind"), f"last_{name}").key_by("item")
        for form, name, record in zip(forms, ("orders", "offers"), (Order, Offer), strict=True)
    ]


def joined(forms, how=JoinType.INNER, *, on=None, state_ttl=FOREVER):
    orders, offers = streams(forms)
    return orders.join("joined", offers, emit=Row.of, how=how, on=on, state_ttl=state_ttl)


def matched(forms, method, *, on=None):
    orders, offers = streams(forms)
    return getattr(orders, method)("matched", offers, on=on, state_ttl=FOREVER)


def harness_of(stream, backend="hashmap"):
    return KeyedHarness(function_of(stream), key=(lambda row: row.item,) * 2, backend=backend)


RECORDS = st.builds(Order, st.sampled_from("aab"), st.integers(0, 2), st.integers(0, 2)) | st.builds(
    Offer, st.sampled_from("aab"), st.integers(0, 2), st.integers(0, 2).map(float)
)
CHANGES = st.lists(st.tuples(RECORDS, st.sampled_from([True, True, True, False])), min_size=6, max_size=30)
"""Records that are set, or whose row is deleted."""


class Feed:
    """The table of one side, and its changes as a stream of a form has them."""

    def __init__(self, form):
        self._key, _ = FORMS[form]
        self._is_upsert = form.endswith("upserts")
        self._rows = {}

    def changes(self, record, is_set):
        name = tuple(getattr(record, field) for field in self._key)
        old = self._rows.pop(name, None)
        if is_set:
            self._rows[name] = record
            before = [] if old is None or self._is_upsert else [(old, BEFORE)]
            return [*before, (record, INSERT if old is None else AFTER)]
        # Of a deleted row, upserts have the key alone: other fields may hold anything.
        return [] if old is None else [(record if self._is_upsert else old, DELETE)]

    @property
    def rows(self):
        return [*self._rows.values()]


def fed(changes, forms):
    """Return the changes of both sides in their order, and the rows of each side at the end."""
    feeds = [Feed(form) for form in forms]
    events = [event for record, is_set in changes for event in feeds[isinstance(record, Offer)].changes(record, is_set)]
    return events, [feed.rows for feed in feeds]


def give(harness, record, kind=INSERT):
    (harness.process2 if isinstance(record, Offer) else harness.process1)(record, timestamp=record.at, kind=kind)


@pytest.mark.slow
@pytest.mark.parametrize("how", JoinType)
@examples(60)
@given(forms=st.tuples(FORM, FORM), changes=CHANGES, on=st.sampled_from([None, is_cheap]))
def test_changes_add_up_to_the_sql_join(how, forms, changes, on):
    events, (orders, offers) = fed(changes, forms)
    with harness_of(joined(forms, how, on=on)) as harness:
        for event in events:
            give(harness, *event)
        assert Table().apply_all(harness.kinds()).sorted == sql_join(how, orders, offers, on or always)
        assert harness.quarantined() == []
        assert len(harness.snapshot().entries) == len(orders) + len(offers)


@pytest.mark.parametrize("method", METHODS)
@examples(40)
@given(forms=st.tuples(FORM, FORM), changes=CHANGES, on=st.sampled_from([None, is_cheap]))
def test_semi_joins_add_up_to_a_loop(method, forms, changes, on):
    events, (orders, offers) = fed(changes, forms)
    with harness_of(matched(forms, method, on=on)) as harness:
        for event in events:
            give(harness, *event)
        expected = by_loop(method, orders, offers, on)
        table = Table().apply_all(harness.kinds())
        assert sorted(map(str, table.rows.elements())) == sorted(map(str, expected))
        assert len(harness.snapshot().entries) == len(orders) + len(offers)


# ------------------------------------------------------------------------------------------- whole runs, any split


ITEMS = st.sampled_from([None, "", "a", "é"])
ROWS = st.lists(
    st.tuples(
        st.builds(Order, ITEMS, st.integers(-2, 2), st.integers(0, 2))
        | st.builds(Offer, ITEMS, st.integers(-2, 2), st.integers(0, 2).map(float)),
        st.sampled_from([True, True, False]),
    ),
    max_size=24,
)


def without_null(rows):
    return [row for row in rows if row.item is not None]


def log_of(stream):
    return stream.key_by(item_of).process("log", Log()).sink("log")


def by_source(changes, forms):
    """Return the changes of each source, and the rows of each side at the end."""
    events, rows = fed(changes, forms)
    orders = [event for event in events if isinstance(event[0], Order)]
    return {"orders": orders, "offers": [event for event in events if isinstance(event[0], Offer)]}, rows


@examples(3)
@given(
    how=st.sampled_from(JoinType),
    forms=st.tuples(FORM, FORM),
    changes=ROWS,
    seed=st.integers(0, 1 << 30),
)
def test_every_split_gives_the_sql_join(how, forms, changes, seed):
    chance = random.Random(seed)
    feeds, (orders, offers) = by_source(changes, forms)
    on = chance.choice([None, is_cheap])
    harness = PipelineHarness(log_of(joined(forms, how, on=on)), **options(chance))
    run(harness, feeds, chance)
    # normalize() by item takes no rows without one.
    orders, offers = (
        rows if keeps and form != "single, updates" else without_null(rows)
        for rows, keeps, form in zip((orders, offers), (how.keeps_left, how.keeps_right), forms, strict=True)
    )
    assert table_of(harness.sink("log")) == sql_join(how, orders, offers, on or always)


@examples(2)
@given(method=st.sampled_from(METHODS), changes=ROWS, seed=st.integers(0, 1 << 30))
def test_every_split_gives_the_semi_join(method, changes, seed):
    chance = random.Random(seed)
    forms = [chance.choice(["single, upserts", "map, upserts"]) for _ in range(2)]
    feeds, (orders, offers) = by_source(changes, forms)
    harness = PipelineHarness(
        matched(forms, method).key_by(name_of).process("log", LeftLog()).sink("log"), **options(chance)
    )
    run(harness, feeds, chance)
    if method == "semi_join":
        orders = without_null(orders)
    expected = by_loop(method, orders, without_null(offers), None)
    assert sorted(left_in(harness.sink("log"))) == sorted(map(text, expected))


@examples(4)
@given(how=st.sampled_from(JoinType), backend=st.sampled_from(["rocksdb", "delta"]), changes=CHANGES)
def test_backends_give_the_same_rows(how, backend, changes):
    forms = ("single, upserts", "map, upserts")
    events, _ = fed(changes, forms)
    emitted = []
    for name in ("hashmap", backend):
        with harness_of(joined(forms, how), name) as harness:
            for event in events:
                give(harness, *event)
            emitted.append(harness.kinds())
    assert emitted[0] == emitted[1]


# ------------------------------------------------------------------------------------------------ lifetimes of rows


STEPS = st.lists(st.tuples(RECORDS, st.sampled_from([True, True, False]), st.integers(0, 4)), max_size=24)


@pytest.mark.slow
@examples(80)
@given(how=st.sampled_from(JoinType), steps=STEPS, lengths=st.tuples(st.integers(2, 6), st.integers(2, 6)))
def test_upserts_live_as_long_as_updates(how, steps, lengths):
    """Rows that expired on one side are the same for upserts and for updates with their old rows, whose partners then leave alike."""
    ttl = tuple(timedelta(milliseconds=length) for length in lengths)
    tables = []
    for form in ("single, upserts", "single, updates"):
        feeds = [Feed(form), Feed(form)]
        with harness_of(joined((form, form), how, state_ttl=ttl)) as harness:
            now = 0
            for record, is_set, wait in steps:
                now += wait
                harness.watermark(now)
                process = (harness.process1, harness.process2)[isinstance(record, Offer)]
                feed = feeds[isinstance(record, Offer)]
                if is_set and record in feed.rows:
                    continue
                for changed, kind in feed.changes(record, is_set):
                    process(changed, timestamp=now, kind=kind)
            tables.append(Table().apply_all(harness.kinds()).sorted)
    assert tables[0] == tables[1]


def test_equal_upsert_renews_and_emits_nothing():
    ttl = timedelta(milliseconds=5)
    with harness_of(joined(("multiset", "single, upserts"), state_ttl=(FOREVER, ttl))) as harness:
        offer = Offer("a", 1)
        for at in (1, 4):
            harness.watermark(at)
            harness.process2(offer, timestamp=at, kind=AFTER)
        harness.watermark(7)
        harness.process1(Order("a", 8), timestamp=8)
        assert [kind for kind, _ in harness.kinds()] == [INSERT]


# ------------------------------------------------------------------------------------------------ kinds, and odd input


ORDER, OLD, NEW = Order("a", 1, 5), Offer("a", 2, 3.0), Offer("a", 3, 4.0)
DEAR = Offer("a", 4, 9.0)


def test_update_of_upserts_passes_through_inner_joins():
    with harness_of(joined(("multiset", "single, upserts"), on=is_cheap)) as harness:
        for record, kind in [(ORDER, INSERT), (OLD, INSERT), (NEW, AFTER), (DEAR, AFTER), (OLD, AFTER)]:
            give(harness, record, kind)
        assert harness.kinds() == [
            (INSERT, Row(ORDER, OLD)),
            (BEFORE, Row(ORDER, OLD)),
            (AFTER, Row(ORDER, NEW)),
            (DELETE, Row(ORDER, NEW)),
            (INSERT, Row(ORDER, OLD)),
        ]


def test_update_of_upserts_shows_no_padded_row():
    with harness_of(joined(("multiset", "single, upserts"), JoinType.LEFT)) as harness:
        for record, kind in [(ORDER, INSERT), (OLD, INSERT), (NEW, AFTER), (Offer("a", 9, 0.0), DELETE)]:
            give(harness, record, kind)
        assert harness.kinds() == [
            (INSERT, Row(ORDER, None)),
            (DELETE, Row(ORDER, None)),
            (INSERT, Row(ORDER, OLD)),
            (DELETE, Row(ORDER, OLD)),
            (INSERT, Row(ORDER, NEW)),
            (DELETE, Row(ORDER, NEW)),
            (INSERT, Row(ORDER, None)),
        ]


@pytest.mark.parametrize("form", ["single, updates", "map, updates"])
def test_second_row_of_a_key_replaces_the_first(form):
    first, second = Offer("a", 2, 3.0), Offer("a", 2, 4.0)
    with harness_of(joined(("multiset", form))) as harness:
        for record in (ORDER, first, second):
            give(harness, record)
        assert Table().apply_all(harness.kinds()).rows == {Row(ORDER, second): 1, Row(ORDER, first): 0}
        assert harness.quarantined() == []
        assert len(harness.snapshot().entries) == 2


def test_retraction_of_another_row_goes_to_quarantine():
    with harness_of(joined(("multiset", "single, updates"))) as harness:
        for record, kind in [(ORDER, INSERT), (NEW, INSERT), (OLD, BEFORE)]:
            give(harness, record, kind)
        assert harness.kinds() == [(INSERT, Row(ORDER, NEW))]
        assert harness.quarantined() == [(OLD, "a retraction (-U) that matches none of the right records of its key")]


def test_deletion_of_an_unknown_key_goes_to_quarantine():
    with harness_of(joined(("multiset", "single, upserts"))) as harness:
        give(harness, OLD, DELETE)
        assert [record for record, _ in harness.quarantined()] == [OLD]
        assert harness.snapshot().entries == ()


COLUMNS = ("kind", "item", "at", "cents")


class Place(Struct, frozen=True):
    """A record whose key has two parts."""

    item: str
    shop: str | None
    at: Timestamp


class Placed(Struct, frozen=True):
    kind: str
    item: str


class PlaceLog(KeyedProcessFunction[Place, Placed]):
    async def process(self, record, ctx, /):
        ctx.collect(Placed(ctx.row_kind.symbol, record.item))


def test_rows_with_a_null_key_stay_apart():
    pipeline = Pipeline("places")
    left, right = (
        pipeline.source(name, Place, event_time="at", row_kind="kind")
        .drop_update_before("item", "shop")
        .key_by("item", "shop")
        for name in ("left", "right")
    )
    joined = left.join("joined", right, emit=lambda place, _: place, record=Place, how=JoinType.LEFT, state_ttl=FOREVER)
    harness = PipelineHarness(joined.key_by("item").process("log", PlaceLog()).sink("log"))
    harness.feed("right", [Place("a", "b", 1)], kinds=[INSERT])
    for kinds in ([INSERT, INSERT], [DELETE, AFTER]):
        harness.feed("left", [Place(item, None, 1) for item in "ab"], kinds=kinds)
        harness.run()
    assert [(change.kind, change.item) for change in harness.sink("log")] == [("+I", "a"), ("+I", "b"), ("-D", "a")]


class Price(Struct, frozen=True):
    """A record whose fields all have values."""

    item: str
    at: Timestamp
    cents: float


def priced(form, *rows):
    """Run a join of an order with rows of prices, which are in a file."""
    pipeline = Pipeline("prices")
    orders = pipeline.source("orders", Order, event_time="at").key_by("item")
    source = pipeline.source("prices", Price, event_time="at", row_kind="kind")
    prices = FORMS[form][1](source, "last_prices").key_by("item")
    pairs = orders.join("joined", prices, emit=lambda _, price: price, record=Price, state_ttl=FOREVER)
    harness = PipelineHarness(
        pairs.upsert_materialize("latest", primary_key=("item", "at")).sink("prices"),
        job={"sources": {"prices": {"max_quarantined": "none"}}},
    )
    harness.feed("orders", [Order("a", 1)])
    harness.feed_table("prices", pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows]))
    harness.run(end_of_input=True)
    return harness.sink("prices"), [row["error"] for row in harness.table("quarantine").to_pylist()]


def test_tombstone_of_upserts_needs_only_the_key():
    """Required fields of a deleted row are null, as in a compacted topic; a row that is set must have them."""
    prices, (error,) = priced(
        "map, upserts", ("+I", "a", 1, 1.0), ("+I", "a", 2, 1.0), ("-D", "a", 1, None), ("+U", "a", 2, None)
    )
    assert prices == [Price("a", 2, 1.0)]
    assert error.startswith("cents is null")


def test_deletion_of_updates_must_be_whole():
    prices, (error,) = priced("multiset", ("+I", "a", 1, 1.0), ("-D", "a", 1, None))
    assert prices == [Price("a", 1, 1.0)]
    assert error.startswith("cents is null: a -D takes the whole old row back")


# ----------------------------------------------------------------------------------------------- what the graph decides


@pytest.mark.parametrize(
    ("forms", "names"),
    [
        (("multiset", "multiset"), ("left_outer", "right")),
        # Left records with a null key have the same key.
        (("single, updates", "single, upserts"), ("left_outer_by_item", "right_single")),
        (("map, updates", "map, upserts"), ("left_outer_by_at", "right_by_item__at")),
    ],
)
def test_names_of_states_say_the_form(forms, names):
    function = function_of(joined(forms, JoinType.LEFT))
    assert (function.left.name, function.right.name) == names


class Named(Struct, frozen=True):
    item: str
    at: Timestamp
    price: float = 0.0
    aVeryLongNameOfAFieldThatDoesNotFitIntoTheNameOfAState: int = 0  # noqa: N815 - what a name may be
    parts: tuple[int, ...] = ()


def named(*key, by=("item",)):
    source = Pipeline("named").source("named", Named, event_time="at", row_kind="kind")
    keyed = source.drop_update_before(*key).key_by(*by)
    others = keyed._pipeline.source("others", Named, event_time="at").key_by(*by)
    return keyed.join("joined", others, emit=lambda one, _: one, record=Named, state_ttl=FOREVER)


LONG = "aVeryLongNameOfAFieldThatDoesNotFitIntoTheNameOfAState"


def test_long_fields_give_a_short_name():
    name = function_of(named("item", LONG)).left.name
    assert name.startswith("left_by_")
    assert len(name) < 30


@pytest.mark.parametrize(
    ("key", "by", "message"),
    [
        (("item",), ("at",), "join 'joined': its stream is upsert.item., and the join key is at.*normalize"),
        (("item",), ("item", "at"), "an update of item may change the join key"),
        (("item",), (lambda row: row.item,), "the join key is <lambda>"),
        (("item", "price"), ("item",), "rows cannot be stored by item, price"),
        (("item", "parts"), ("item",), "rows cannot be stored by item, parts"),
    ],
)
def test_unfitting_upserts_are_refused(key, by, message):
    with pytest.raises(ValueError, match=message):
        named(*key, by=by)


def test_upserts_of_unknown_key_are_refused():
    kinds = {"field": "op", "u": "+U", "d": "-D"}
    source = Pipeline("p").source("rows", Named, event_time="at", row_kind=kinds).key_by("item")
    with pytest.raises(ValueError, match=r"join 'joined' gets upsert\(unknown key\) from 'rows'"):
        source.join("joined", source, emit=lambda one, _: one, record=Named, state_ttl=FOREVER)


@pytest.mark.parametrize("after", ["single, upserts", "map, upserts", "single, updates"])
def test_another_form_refuses_stored_state(after):
    harness = PipelineHarness(log_of(joined(("multiset", "multiset"))))
    harness.feed("orders", [Order("a", 1)])
    harness.feed("offers", [Offer("a", 1)])
    harness.run()
    harness.change(pipeline=log_of(joined(("multiset", after))))
    with pytest.raises(StateSchemaError, match="state 'right'"):
        harness.run()
