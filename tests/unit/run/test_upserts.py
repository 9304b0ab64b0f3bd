"""Streams of upserts: what refuses a row, or has no response for it, deletes its key."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AsyncFunction,
    ChangelogMode,
    FixedDelay,
    JoinType,
    KeyedProcessFunction,
    Lifetime,
    OnFailure,
    OutputMode,
    Pipeline,
    RowKind,
    Struct,
    Timestamp,
)
from headrace.errors import UserFunctionError
from headrace.operators import Sum, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, UPDATE_BEFORE, UPDATE_AFTER, DELETE = RowKind


class Order(Struct, frozen=True):
    id: str
    at: Timestamp
    amount: int = 0


class UnavailableError(Exception):
    pass


class Ask(AsyncFunction[Order, Order]):
    """Answers with the order, but not if it has no amount. It fails for 7, and at first for 8."""

    asked: ClassVar[list[Order]] = []

    async def invoke(self, order, /):
        self.asked.append(order)
        if order.amount == 7 or (order.amount == 8 and self.asked.count(order) == 1):
            raise UnavailableError
        return [order] if order.amount else []


@pytest.fixture(autouse=True)
def asked():
    Ask.asked.clear()
    return Ask.asked


def retracts():
    return Pipeline("shop").source("orders", Order, event_time="at", row_kind="op")


def upserts():
    return retracts().drop_update_before("id")


def is_open(order: Order) -> bool:
    return order.amount > 0


def same(order: Order) -> Order:
    return order


def moved(order: Order) -> Order:
    return Order("x", order.at, order.amount)


def into_table(stream):
    return stream.upsert_materialize("m", primary_key=("id",), upsert_key=("id",)).sink("table")


def changes_of(updates):
    """Return the changes of a table whose rows are set to amounts, or removed (None), and the table."""
    table, changes = {}, []
    for at, (key, amount) in enumerate(updates, 1):
        before = table.pop(key, None)
        if amount is not None:
            table[key] = Order(key, at, amount)
            changes += [(UPDATE_BEFORE, before), (UPDATE_AFTER, table[key])] if before else [(INSERT, table[key])]
        elif before:
            changes.append((DELETE, before))
    return changes, table


def fed(pipeline, *slices, **options):
    harness = PipelineHarness(pipeline, bucket=1, **options)
    for changes in slices:
        if changes:
            kinds, rows = zip(*changes, strict=True)
            harness.feed("orders", rows, kinds=kinds)
        harness.run()
    return harness


def table_of(harness):
    return sorted((row.id, row.amount) for row in harness.sink("table"))


def ask(stream, mode=OutputMode.ORDERED, **options):
    given = {"retry": FixedDelay(max_retries=3, delay=timedelta(minutes=1), exceptions=(UnavailableError,))} | options
    return stream.async_wait("ask", Ask(), mode=mode, timeout=timedelta(hours=1), park_after=timedelta(0), **given)


BUILDS = {
    "filter": lambda: upserts().filter(is_open),
    "map": lambda: upserts().map(same, keeps=("id",)).filter(is_open),
    "columns": upserts,
    "answers": lambda: ask(upserts()),
    "keyed answers": lambda: ask(upserts().key_by("id"), OutputMode.KEYED_ORDERED),
}
UPDATES = [("a", 5), ("b", 4), ("a", 0), ("c", 3), ("c", None), ("b", 2), ("d", 0), ("d", 6)]


@pytest.mark.parametrize("build", BUILDS)
def test_refused_upserts_delete_their_keys(build, asked):
    changes, table = changes_of(UPDATES)
    expected = sorted((key, row.amount) for key, row in table.items() if row.amount or build == "columns")
    assert table_of(fed(into_table(BUILDS[build]()), changes[:5], changes[5:])) == expected
    assert len(asked) == ("answers" in build) * 7  # neither for -U nor for -D


@pytest.mark.slow
@examples(10)
@given(
    build=st.sampled_from(sorted(BUILDS)),
    updates=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 6) | st.none()), min_size=1, max_size=12),
    cut=st.integers(0, 12),
)
def test_upserts_describe_the_same_table(build, updates, cut):
    changes, table = changes_of(updates)
    expected = sorted((key, row.amount) for key, row in table.items() if row.amount or build == "columns")
    assert table_of(fed(into_table(BUILDS[build]()), changes[:cut], changes[cut:])) == expected


@pytest.mark.parametrize("mode", [OutputMode.ORDERED, OutputMode.KEYED_ORDERED])
def test_abandoned_calls_delete_their_keys_in_order(mode):
    # b fails for good while it waits behind a, which has to be asked again.
    stream = upserts().key_by("id") if mode is OutputMode.KEYED_ORDERED else upserts()
    given = {"on_failure": OnFailure.QUARANTINE}
    pipeline = into_table(
        stream.async_wait(
            "ask",
            Ask(),
            mode=mode,
            timeout=timedelta(hours=1),
            park_after=timedelta(0),
            retry=FixedDelay(max_retries=1, delay=timedelta(minutes=1), exceptions=(UnavailableError,)),
            **given,
        )
    )
    first = [(INSERT, Order("a", 1, 5)), (INSERT, Order("b", 2, 5))]
    later = [(UPDATE_AFTER, Order("a", 3, 8)), (UPDATE_AFTER, Order("b", 4, 7)), (DELETE, Order("a", 5, 8))]
    harness = fed(pipeline, first, later)
    assert table_of(harness)[0] == ("a", 5)
    for _ in range(3):
        harness.clock.advance(120_000)
        harness.run()
    assert table_of(harness) == []
    assert [row["operator"] for row in harness.table("quarantine").to_pylist()] == ["ask"]


def test_declared_fields_must_stay():
    with pytest.raises(UserFunctionError, match=r"keeps=\('id',\).*let it keep these fields"):
        fed(into_table(upserts().map(moved, keeps=("id",))), [(INSERT, Order("a", 1))])


def test_answers_must_keep_the_key():
    class Move(Ask):
        async def invoke(self, order, /):
            return [moved(order)]

    pipeline = into_table(upserts().async_wait("ask", Move(), mode=OutputMode.ORDERED, timeout=timedelta(1)))
    with pytest.raises(UserFunctionError, match="another key: let the results keep"):
        fed(pipeline, [(INSERT, Order("a", 1, 1))])


class Copy(KeyedProcessFunction[Order, Order]):
    async def process(self, order, ctx, /):
        ctx.collect(order, ctx.row_kind)


class Certain(Ask):
    deterministic = True


@pytest.mark.parametrize("function", [Ask(), Certain()])
def test_undeclared_retractions_never_call_again(function):
    copies = retracts().key_by("id").process("copy", Copy()).key_by("id")
    pipeline = into_table(copies.async_wait("ask", function, mode=OutputMode.KEYED_ORDERED, timeout=timedelta(1)))
    changes = [(INSERT, Order("a", 1, 1)), (DELETE, Order("a", 1, 1))]
    harness = fed(pipeline, changes[:1])
    assert table_of(harness) == [("a", 1)]
    harness.feed("orders", [changes[1][1]], kinds=[DELETE])
    if function.deterministic:
        harness.run()
        assert table_of(harness) == []
    else:
        with pytest.raises(UserFunctionError, match=r"the row is -D.*emits=ChangelogMode.*deterministic"):
            harness.run()


EMITS = {
    "insert": (ChangelogMode.INSERT, {INSERT}, "declare ChangelogMode.upsert"),
    "upsert": (ChangelogMode.upsert("id"), {INSERT, UPDATE_AFTER, DELETE}, "leave the -U out"),
    "retract": (ChangelogMode.RETRACT, {*RowKind}, ""),
}


@pytest.mark.parametrize("emits", EMITS)
def test_kinds_that_are_not_declared_are_refused(emits):
    mode, kinds, way_out = EMITS[emits]
    for kind in RowKind:
        harness = PipelineHarness(retracts().key_by("id").process("copy", Copy(), emits=mode).sink("copies"))
        harness.feed("orders", [Order("a", 1)], kinds=[kind])
        if kind in kinds:
            assert harness.run().rows_out == 1
            continue
        with pytest.raises(UserFunctionError, match=way_out) as error:
            harness.run()
        text = str(error.value)
        assert [word for word in ("'copy'", 'key "a"', kind.symbol, "ctx.collect(order,") if word not in text] == []


def test_kinds_that_timers_emit_are_compared():
    class CopyInTimer(Copy):
        async def process(self, order, ctx, /):
            ctx.timers.register_event_time(order.at)

        async def on_timer(self, timestamp, ctx, /):
            ctx.collect(Order(ctx.key, timestamp), DELETE)

    pipeline = retracts().key_by("id").process("copy", CopyInTimer(), emits=ChangelogMode.INSERT).sink("copies")
    with pytest.raises(UserFunctionError, match=r"emits=ChangelogMode.INSERT, and emits -D"):
        fed(pipeline, [(INSERT, Order("a", 1)), (INSERT, Order("b", 5))])


def test_late_records_keep_their_kinds():
    class Amount(Struct, frozen=True):
        id: str
        amount: Annotated[int, Sum("amount")]

    windows = retracts().key_by("id").window(Tumbling(timedelta(milliseconds=10)))
    results = windows.aggregate("sums", Amount)
    late = results.side("late", Order).key_by("id").aggregate("late_sums", Amount, state_ttl=Lifetime.FOREVER)
    results.sink("on_time")
    pipeline = into_table(late)
    in_time = [(INSERT, Order("z", 30, 1))]
    too_late = [(INSERT, Order("a", 5, 4)), (INSERT, Order("a", 6, 2)), (DELETE, Order("a", 5, 4))]
    assert table_of(fed(pipeline, in_time, too_late)) == [("a", 2)]


def test_join_by_time_reorders_updates():
    def pair(order: Order, _: Order | None) -> Order:
        return order

    # The first record by time is replaced by an earlier one, which the watermark reaches first.
    pipeline = Pipeline("shop")
    lag = timedelta(milliseconds=50)
    orders = pipeline.source("orders", Order, event_time="at", row_kind="op", out_of_orderness=lag).key_by("id")
    others = pipeline.source("others", Order, event_time="at", out_of_orderness=lag).key_by("id")
    joined = orders.join_as_of("as_of", others, emit=pair, how=JoinType.LEFT, state_ttl=Lifetime.FOREVER)
    harness = PipelineHarness(into_table(joined), bucket=1)
    changes = [(INSERT, Order("a", 9, 1)), (UPDATE_BEFORE, Order("a", 9, 1)), (UPDATE_AFTER, Order("a", 5, 2))]
    kinds, rows = zip(*changes, (INSERT, Order("z", 57)), strict=True)
    harness.feed("orders", rows, kinds=kinds)
    harness.feed("others", [Order("z", 57)])
    harness.run()
    harness.feed("orders", [Order("z", 100, 1)], kinds=[INSERT])
    harness.feed("others", [Order("z", 100)])
    harness.run()
    assert ("a", 2) in table_of(harness)
