"""A limit of memory: tasks read, hold and write rows in parts, and leave the same behind."""

from __future__ import annotations

import json
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    Cleanup,
    Context,
    Emit,
    KeyedProcessFunction,
    Lifetime,
    ListState,
    MapState,
    Pipeline,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.errors import SourceError
from headrace.operators import Count, Session, Sum, Tumbling
from headrace.run import output, transit
from headrace.run.backend import STATE_PART
from headrace.run.messages import BatchSettings
from headrace.sources.folder.parquet import ParquetColumns
from headrace.state.backend import memory_of
from headrace.state.spilled_changes import SpilledChanges
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Sale(Struct, frozen=True):
    shop: str
    cents: int
    at: Timestamp


class Total(Struct, frozen=True):
    shop: str
    sales: Annotated[int, Count()]
    cents: Annotated[int, Sum("cents")]


class AddUp(KeyedProcessFunction[Sale, Total]):
    total = ValueState("total", Total)

    async def process(self, sale: Sale, ctx: Context, /) -> None:
        before = await self.total.value() or Total(sale.shop, 0, 0)
        after = Total(sale.shop, before.sales + 1, before.cents + sale.cents)
        await self.total.update(after)
        ctx.collect(after)


def own():
    """Make a keyed stage behind another one, and a sink of plain rows beside them."""
    pipeline = Pipeline("shops")
    sales = pipeline.source("sales", Sale, event_time="at")
    sales.sink("sales")
    totals = sales.key_by("shop").process("totals", AddUp())
    totals.sink("totals")
    totals.key_by("sales").aggregate("ranks", Rank, state_ttl=Lifetime.FOREVER).sink("ranks")
    return pipeline


class Rank(Struct, frozen=True):
    sales: int
    shops: Annotated[int, Count()]


def aggregate(emit=Emit.EVERY_CHANGE):
    pipeline = Pipeline("shops")
    sales = pipeline.source("sales", Sale, event_time="at").key_by("shop")
    sales.aggregate("totals", Total, state_ttl=Lifetime.FOREVER, emit=emit).sink("totals")
    return pipeline


class KeepAll(KeyedProcessFunction[Sale, Rank]):
    """Writes, removes and clears entries of states of each kind, some of them with a lifetime."""

    last = ValueState("last", int, ttl=StateTtl(timedelta(seconds=2)))
    exact = ValueState("exact", int, ttl=StateTtl(timedelta(seconds=2), cleanup=Cleanup(exact=True)))
    by_cents = MapState("by_cents", int, int)
    times = ListState("times", int)

    async def process(self, sale: Sale, ctx: Context, /) -> None:
        await self.last.update(sale.cents)
        await self.exact.update(sale.cents)
        await self.times.add(sale.at)
        count = await self.by_cents.get(sale.cents % 5) or 0
        await self.by_cents.put(sale.cents % 5, count + 1)
        if sale.cents % 7 == 0:
            await self.by_cents.remove(sale.cents % 3)
        if sale.cents % 11 == 0:
            await self.by_cents.clear()
        if sale.cents % 13 == 0:
            await self.times.clear()
        ctx.collect(Rank(count, len([entry async for entry in self.by_cents.entries()])))


def states(function):
    return (
        Pipeline("shops")
        .source("sales", Sale, event_time="at")
        .key_by("shop")
        .process("states", function)
        .sink("ranks")
    )


class Transient(KeyedProcessFunction[Sale, Rank]):
    """Its state holds a number that is none for a while, and it makes and removes an entry of another one."""

    mean = ValueState("mean", float)
    open = ValueState("open", int)

    async def process(self, sale: Sale, ctx: Context, /) -> None:
        await self.mean.update(float("inf") if sale.cents < 80 and sale.cents % 3 == 0 else sale.cents / 2)
        await (self.open.clear() if sale.cents % 2 else self.open.update(sale.cents))
        ctx.collect(Rank(sale.cents, 1))


class Visit(Struct, frozen=True):
    shop: str
    window_start: Timestamp
    window_end: Timestamp
    sales: Annotated[int, Count()]


def windows(kind):
    sales = Pipeline("shops").source("sales", Sale, event_time="at", out_of_orderness=timedelta(seconds=4))
    return sales.key_by("shop").window(kind).aggregate("visits", Visit).sink("visits")


WINDOWS = {
    "tumbling": lambda: windows(Tumbling(timedelta(seconds=1))),
    "sessions": lambda: windows(Session(timedelta(milliseconds=300))),
}
PIPELINES = WINDOWS | {
    "states": lambda: states(KeepAll()),
    "own": own,
    "aggregate": aggregate,
    "net change": lambda: aggregate(Emit.NET_CHANGE),
}


@contextmanager
def little_memory(size, rows=7):
    """Let the tasks of jobs with a limit have this many bytes, far below what a job's file may say, and read few rows at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(BatchSettings, "memory_for", lambda batch, part: batch.max_memory and max(1, size // part))
        patched.setattr(transit, "ROWS_AT_ONCE", rows)
        yield {"max_memory": 1 << 24}


def run(pipeline, files, job, **settings):
    harness = PipelineHarness(pipeline, bucket=10, job=job, **settings)
    for file in files:
        harness.feed_table("sales", file)
    harness.run()
    return harness


def left_behind(harness):
    tables = [harness.table(name) for name in ("keyed_state", "quarantine")]
    sinks = [harness.sink_table(name) for name in harness.config.sinks]
    return [sorted(map(repr, table.to_pylist())) for table in (*tables, *sinks)]


def file_of(rows):
    return pa.Table.from_pylist(rows, pa.schema([("shop", pa.string()), ("cents", pa.int64()), ("at", pa.int64())]))


FEW_AT_ONCE = {"execution": {"async-state": {"in-flight-records-limit": 5}}}

SALES = st.fixed_dictionaries(
    {
        "shop": st.sampled_from(["a", "b", "c", None]),
        "cents": st.integers(0, 99),
        "at": st.one_of(st.integers(0, 10_000), st.none()),
    }
)


@examples(6)
@given(
    files=st.lists(st.lists(SALES, min_size=1, max_size=40), min_size=1, max_size=3),
    name=st.sampled_from([*PIPELINES]),
    size=st.sampled_from([1, 2000, 20_000]),
    parallelism=st.sampled_from([1, 3]),
    backend=st.sampled_from(["hashmap", "rocksdb"]),
)
def test_any_limit_leaves_the_same_behind(files, name, size, parallelism, backend):
    """Some rows are bad: they go to the quarantine under their places in the file, whichever part has them."""
    job = {"sources": {"sales": {"max_quarantined": "none"}}, **FEW_AT_ONCE}
    tables = [file_of(rows) for rows in files]
    free = run(PIPELINES[name](), tables, job, parallelism=parallelism)
    with little_memory(size) as limit:
        bound = run(PIPELINES[name](), tables, job | limit, parallelism=parallelism, backend=backend)
    assert left_behind(bound) == left_behind(free)


def test_changed_state_stays_within_its_memory():
    """Tasks with a database of their own write what has changed there; a chunk of records may go beyond the limit."""
    size, sizes, due = 400_000, [], SpilledChanges.is_due

    def counted(spilled, stores):
        sizes.append(sum(store.size for store in stores))
        return due(spilled, stores)

    rows = file_of([{"shop": f"shop-{row % 2000}", "cents": row, "at": row} for row in range(4000)])
    with little_memory(size, rows=100) as limit, pytest.MonkeyPatch.context() as patched:
        patched.setattr(SpilledChanges, "is_due", counted)
        harness = run(own(), [rows], limit | FEW_AT_ONCE, parallelism=1, backend="rocksdb")
    of_shops = 2000 * memory_of(len('{"shop":"shop-1000","sales":1,"cents":1000}'))
    assert of_shops > 5 * size / STATE_PART
    assert size / STATE_PART < max(sizes) < 1.2 * size / STATE_PART
    assert harness.sink_table("totals").num_rows == len(rows)
    assert len(harness.live("keyed_state")) == 2002
    (metrics,) = [row["metrics"] for row in harness.table("checkpoints").to_pylist() if row["kind"] == "batch"]
    assert 2000 < json.loads(metrics)["spilled"] < 3 * len(rows)


def test_passing_values_need_not_fit():
    """A value is stored at the end of the task: a later record may correct it. What was made and removed in the task leaves no row."""
    rows = file_of([{"shop": f"shop-{row % 9}", "cents": row, "at": row} for row in range(100)])
    free = run(states(Transient()), [rows], FEW_AT_ONCE, parallelism=1)
    with little_memory(1, rows=5) as limit:
        bound = run(states(Transient()), [rows], limit | FEW_AT_ONCE, parallelism=1, backend="rocksdb")
    assert left_behind(bound) == left_behind(free)
    assert not any(row["deleted"] for row in bound.table("keyed_state").to_pylist())


@pytest.mark.parametrize("size", [1, 4000])
def test_file_of_bad_rows_fails_as_a_whole(size):
    """Each part of the file is counted, as if it had been read at once."""
    rows = file_of([{"shop": "a", "cents": 1, "at": None} for _ in range(100)])
    with little_memory(size) as limit:
        job = {"sources": {"sales": {"max_quarantined": "1000"}}}
        with pytest.raises(SourceError) as bound:
            run(own(), [rows], limit)
        assert len(run(own(), [rows], limit | job).table("quarantine")) == 100
    with pytest.raises(SourceError) as free:
        run(own(), [rows], {})
    assert _without_places(bound) == _without_places(free)


def _without_places(error):
    return [word for word in str(error.value).split() if "/" not in word]


@contextmanager
def counted_memory():
    """Note the bytes of the parts of files, of the rows that wait to be staged, and of those that are processed as columns at once."""
    read, waiting, columns = [0], [0], [0]
    parts, end, concat = ParquetColumns.parts, output._Room.end, pa.concat_batches

    def counted_parts(file, limit):
        for table in parts(file, limit):
            read.append(table.nbytes)
            yield table

    def counted_end(room):
        waiting.append(room.size)
        end(room)

    def counted_concat(batches):
        columns.append(sum(batch.nbytes for batch in batches))
        return concat(batches)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ParquetColumns, "parts", counted_parts)
        patched.setattr(output._Room, "end", counted_end)
        patched.setattr(pa, "concat_batches", counted_concat)
        yield read, waiting, columns


@pytest.mark.parametrize("name", ["own", "aggregate"])
def test_parts_stay_within_their_memory(name):
    """A part ends with the step that goes beyond its limit: a step is at most an eighth of it, by what the file says of its rows."""
    size = 100_000
    rows = file_of([{"shop": f"shop-{row % 97}", "cents": row, "at": row} for row in range(8000)])
    with little_memory(size, rows=100) as limit, counted_memory() as counted:
        run(PIPELINES[name](), [rows], limit, parallelism=1)
    assert rows.nbytes > 1.5 * size
    assert 0 < max(counted[0]) <= size / 4
    assert 0 < max(counted[1]) <= size / 2
    assert max(counted[2]) <= size / 4
    assert sum(counted[2]) > size or name == "own"
