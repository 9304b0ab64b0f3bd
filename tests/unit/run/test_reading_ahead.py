"""State that is read ahead, in parts of any size and with any cache, is the same as state that is read as records come."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import timedelta

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    AggregateFunction,
    AggregatingState,
    Context,
    KeyedProcessFunction,
    Pipeline,
    ReducingState,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.options import KeyOrder
from headrace.run import keyed_stage, transit
from headrace.state.rocksdb import RocksDbBackend
from headrace.testing import PipelineHarness
from tests.unit.support.fuzzing import examples


class Act(Struct, frozen=True):
    key: str
    number: int
    at: Timestamp
    act: str


class Seen(Struct, frozen=True):
    key: str
    values: tuple[int | None, ...]


class Numbers(AggregateFunction[int, list[int], int]):
    """Adds numbers up. No more than three are kept: a fourth one removes all."""

    def create_accumulator(self):
        return []

    def add(self, number, kept, /):
        return [*kept, number] if len(kept) < 3 else []

    def get_result(self, kept, /):
        return sum(kept) if kept else None

    def merge(self, one, other, /):
        return one + other


TTL = StateTtl(timedelta(milliseconds=40))


class Acting(KeyedProcessFunction[Act, Seen]):
    """Does what a record says, then emits what each state has."""

    plain = ValueState("plain", int)
    short = ValueState("short", int, ttl=TTL)
    total = AggregatingState("total", Numbers())
    most = ReducingState("most", int, max, ttl=TTL)

    async def process(self, act: Act, ctx: Context, /) -> None:
        states = self.plain, self.short, self.plain.namespace("day"), self.short.namespace("day")
        state = states[act.number % 4]
        match act.act:
            case "write":
                await state.update(act.number)
            case "live long":
                await states[1].update(act.number, ttl=timedelta(milliseconds=90))
            case "clear":
                await state.clear()
                await self.total.clear()
            case "add":
                await self.total.add(act.number)
                await self.most.add(act.number)
            case "add apart":
                await self.total.namespace("day").add(act.number)
            case "read":
                read = [await state.value() for state in states]
                read += [await self.total.get(), await self.most.get(), await self.total.namespace("day").get()]
                ctx.collect(Seen(act.key, tuple(read)))


class ActingInOrder(KeyedProcessFunction[Act, Seen]):
    """Does so in a plain function."""

    plain = ValueState("plain", int)
    short = ValueState("short", int, ttl=TTL)
    total = AggregatingState("total", Numbers())

    def process(self, act: Act, ctx: Context, /) -> None:
        state = self.short if act.number % 2 else self.plain
        match act.act:
            case "write":
                state.update((state.value() or 0) + act.number)
            case "live long":
                self.short.update(act.number, ttl=timedelta(milliseconds=90))
            case "clear":
                state.clear()
            case "add":
                self.total.add(act.number)
            case "add apart":
                state.update(act.number)
            case "read":
                state.update(None)
        ctx.collect(Seen(act.key, (self.plain.value(), self.short.value(), self.total.get())))


def acting(function):
    source = Pipeline("acting").source("acts", Act, event_time="at", out_of_orderness=timedelta(milliseconds=10))
    return source.key_by("key").process("acting", function).sink("seen")


@contextmanager
def parts_of(rows):
    """Read the state of so many records ahead."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(transit, "ROWS_AT_ONCE", max(1, rows // 2))
        patched.setattr(keyed_stage, "READ_AHEAD", rows)
        yield


def left_behind(function, files, **settings):
    harness = PipelineHarness(acting(function), bucket=10, **settings)
    for file in files:
        harness.feed_table("acts", file)
        harness.run()
    rows = harness.table("keyed_state").to_pylist()
    lasting = [
        row for row in rows if row["state"] in {"plain", "total"}
    ]  # a clean-up takes other entries of each backend
    return sorted(map(repr, lasting)), harness.sink_table("seen").to_pylist()


def file_of(rows):
    schema = pa.schema([("key", pa.string()), ("number", pa.int64()), ("at", pa.int64()), ("act", pa.string())])
    return pa.Table.from_pylist(rows, schema)


ACTS = st.fixed_dictionaries(
    {
        "key": st.sampled_from("abcdef"),
        "number": st.integers(0, 9),
        "at": st.integers(0, 200),
        "act": st.sampled_from(["write", "live long", "clear", "add", "add apart", "read", "read"]),
    }
)


@examples(12)
@given(
    files=st.lists(st.lists(ACTS, min_size=1, max_size=25), min_size=1, max_size=3),
    function=st.sampled_from([Acting, ActingInOrder]),
    rows=st.integers(1, 12),
    cache=st.sampled_from([1, 3, 6, 1000]),
    at_once=st.sampled_from([1, 4, 1000]),
    inline=st.sampled_from([0, 1 << 20]),
    backend=st.sampled_from(["rocksdb", "delta"]),
    order=st.sampled_from([*KeyOrder]),
)
def test_state_read_ahead_is_the_same(files, function, rows, cache, at_once, inline, backend, order):
    tables = [file_of(file) for file in files]
    options = {"cache-entries": cache, "in-flight-records-limit": at_once, "order-with-same-key": order.value}
    job = {"execution": {"async-state": options}, "state": {"inline_reads_below": inline}}
    with parts_of(rows):
        ahead = left_behind(function(), tables, job=job, backend=backend, parallelism=1)
    assert ahead == left_behind(function(), tables, backend="hashmap", parallelism=1)


@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@pytest.mark.parametrize("act", ["read", "live long", "clear", "add apart"])
def test_plain_functions_write_first(act, backend):
    """Their first access to what was read ahead need not be a read."""
    acts = [{"key": "a", "number": number, "at": 1, "act": kind} for kind in ("write", act) for number in (1, 2)]
    files = [file_of(acts[:2]), file_of(acts[2:])]
    ahead = left_behind(ActingInOrder(), files, backend=backend, parallelism=1)
    assert ahead == left_behind(ActingInOrder(), files, backend="hashmap", parallelism=1)


class Counting(KeyedProcessFunction[Act, Seen]):
    count = ValueState("plain", int)

    async def process(self, act: Act, ctx: Context, /) -> None:
        await self.count.update((await self.count.value() or 0) + 1)


def some_acts(keys):
    return file_of([{"key": f"k{key}", "number": 1, "at": key, "act": ""} for key in keys])


def test_keys_are_read_with_one_call(monkeypatch):
    calls, get_many = [], RocksDbBackend.get_many

    def counted(backend, keys, /):
        calls.append(len(keys))
        return get_many(backend, keys)

    with parts_of(100):
        harness = PipelineHarness(acting(Counting()), backend="rocksdb", parallelism=1)
        harness.feed_table("acts", some_acts([*range(150), *range(150)]))
        harness.run()
        monkeypatch.setattr(RocksDbBackend, "get_many", counted)
        harness.feed_table("acts", some_acts([*range(150), *range(150)]))
        harness.run()
    assert [count for count in calls if count] == [100, 50]
