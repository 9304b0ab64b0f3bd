"""Broadcast records that visit keys equal a loop over all keys with a value, at the record's place in arrival order."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import (
    BroadcastState,
    KeyedBroadcastFunction,
    MapState,
    Pipeline,
    ReducingState,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.errors import UserFunctionError
from headrace.options import AsyncStateOptions
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.fuzzing import examples

TTL_MS = 10


class Paid(Struct, frozen=True):
    key: str
    amount: int
    at: Timestamp


class Bonus(Struct, frozen=True):
    amount: int
    at: Timestamp


class Total(Struct, frozen=True):
    key: str
    total: int
    by: str
    at: Timestamp


class Totals(KeyedBroadcastFunction[Paid, Bonus, Total]):
    """Adds each bonus to the total of each key, and takes a total of 13 away; tells it again 2 ms later."""

    total = ValueState("total", int, ttl=StateTtl(timedelta(milliseconds=TTL_MS)))
    given = BroadcastState("given", str, int)

    async def process(self, paid, ctx, /):
        await self.add(paid.amount, "paid", ctx)

    def process_broadcast(self, bonus, ctx, /):
        self.given.put("all", (self.given.get("all") or 0) + bonus.amount)
        ctx.visit_keys(self.total)

    async def visit(self, bonus, ctx, /):
        await self.add(bonus.amount, "bonus", ctx)
        ctx.timers.register_event_time(ctx.timestamp + 2)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Total(ctx.key, await self.total.value() or 0, "timer", timestamp))

    async def add(self, amount, by, ctx, /):
        total = (await self.total.value() or 0) + amount
        await self.total.update(total)
        if total == 13:
            await self.total.clear()
        ctx.collect(Total(ctx.key, total, by, ctx.timestamp))


class BlockingTotals(KeyedBroadcastFunction[Paid, Bonus, Total]):
    total = ValueState("total", int, ttl=StateTtl(timedelta(milliseconds=TTL_MS)))
    given = BroadcastState("given", str, int)
    process_broadcast = Totals.process_broadcast

    def process(self, paid, ctx, /):
        self.add(paid.amount, "paid", ctx)

    def visit(self, bonus, ctx, /):
        self.add(bonus.amount, "bonus", ctx)
        ctx.timers.register_event_time(ctx.timestamp + 2)

    def on_timer(self, timestamp, ctx, /):
        ctx.collect(Total(ctx.key, self.total.value() or 0, "timer", timestamp))

    def add(self, amount, by, ctx, /):
        total = (self.total.value() or 0) + amount
        self.total.update(total)
        if total == 13:
            self.total.clear()
        ctx.collect(Total(ctx.key, total, by, ctx.timestamp))


class Loop:
    """What a loop over records of keys, bonuses for all keys, and steps of the watermark (ms) emits."""

    def __init__(self):
        self.totals, self.timers, self.out, self.watermark = {}, set(), [], -1

    def alive(self, now):
        return {key: total for key, (total, stamp) in self.totals.items() if stamp + TTL_MS > now}

    def add(self, key, amount, by, at):
        alive = self.alive(self.watermark)
        total = alive.get(key, 0) + amount
        self.totals[key] = (total, max(at, self.totals[key][1]) if key in alive else at)
        if total == 13:
            del self.totals[key]
        self.out.append(Total(key, total, by, at))

    def visit(self, bonus):
        for key in sorted(self.alive(self.watermark)):
            self.add(key, bonus.amount, "bonus", bonus.at)
            self.timers.add((bonus.at + 2, key))
            self.fire(self.watermark)

    def fire(self, until):
        for at, key in sorted(timer for timer in self.timers if timer[0] <= until):
            self.timers.remove((at, key))
            now = self.watermark if at <= self.watermark else at - 1
            self.out.append(Total(key, self.alive(now).get(key, 0), "timer", at))

    def take(self, event):
        if isinstance(event, Paid):
            self.add(event.key, event.amount, "paid", event.at)
        elif isinstance(event, Bonus):
            self.visit(event)
        else:
            self.fire(self.watermark + event)
            self.watermark += event


def looped(events):
    loop = Loop()
    for event in events:
        loop.take(event)
    return loop.out


EVENTS = st.lists(
    st.one_of(
        st.builds(Paid, st.sampled_from("abc"), st.integers(0, 9), st.integers(0, 30)),
        st.builds(Bonus, st.integers(0, 5), st.integers(0, 30)),
        st.integers(1, 12),
    ),
    max_size=14,
)


def give(harness, events, watermark=-1):
    for event in events:
        if isinstance(event, int):
            watermark += event
            harness.watermark(watermark)
        else:
            take = harness.process if isinstance(event, Paid) else harness.process_broadcast
            take(event, event.at)
    harness.drain()
    return watermark


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb", "delta"])
@pytest.mark.parametrize("function", [Totals, BlockingTotals])
@examples(40)
@given(events=EVENTS, cut=st.integers(0, 14), limit=st.sampled_from([1, 2, 100]))
def test_visits_equal_a_loop(function, backend, events, cut, limit):
    options = AsyncStateOptions(in_flight_records_limit=limit)
    key = lambda record: record.key  # noqa: E731
    with KeyedHarness(function(), key=key, backend=backend, options=options) as harness:
        watermark = give(harness, events[:cut])
        first, snapshot = [record for _, record in harness.kinds()], harness.snapshot()
    with KeyedHarness.restore(snapshot, function(), key=key, backend=backend, options=options) as harness:
        give(harness, events[cut:], watermark)
        emitted = [*first, *(record for _, record in harness.kinds())]
    expected = looped(events)
    for name in "abc":  # of several keys, timers of one watermark are in an order of their own
        assert [total for total in emitted if total.key == name] == [total for total in expected if total.key == name]


BATCHES = st.lists(EVENTS.map(lambda events: [event for event in events if not isinstance(event, int)]), max_size=3)
STOPS = st.sampled_from(
    [{}, {"crash_at": "task.half"}, {"crash_at": "commit.after"}, {"budget_ends_at": "task.half"}, {"max_batches": 1}]
)


def run_of(batches, stops, *, parallelism, backend="hashmap", runs_between=True):
    """Return what the job emits for batches of input, in any number of runs."""
    pipeline = Pipeline("paid")
    bonuses = pipeline.source("bonuses", Bonus, event_time="at").broadcast()
    paid = pipeline.source("paid", Paid, event_time="at").key_by("key")
    sink = paid.connect(bonuses).process("totals", Totals()).sink("out")
    harness = PipelineHarness(sink, bucket=1, parallelism=parallelism, backend=backend, files_per_batch=1)
    for batch, stop in zip(batches, stops, strict=True):
        for name, kind in (("paid", Paid), ("bonuses", Bonus)):
            if some := [event for event in batch if isinstance(event, kind)]:
                harness.feed(name, some)
        if runs_between:
            harness.run(**stop)
    assert harness.run(end_of_input=True).quarantined == 0
    return sorted(harness.sink("out"), key=repr)


@pytest.mark.slow
@examples(10)
@given(batches=BATCHES, stops=st.lists(STOPS, min_size=3, max_size=3), backend=st.sampled_from(["hashmap", "rocksdb"]))
def test_runs_tasks_and_crashes_change_no_visit(batches, stops, backend):
    stops = stops[: len(batches)]
    expected = run_of(batches, stops, parallelism=1, runs_between=False)
    assert run_of(batches, stops, parallelism=3, backend=backend) == expected


class Broken(Totals):
    async def visit(self, bonus, ctx, /):
        raise LookupError("no such bonus")


class WithoutVisit(KeyedBroadcastFunction[Paid, Bonus, Total]):
    total = ValueState("total", int)

    async def process(self, paid, ctx, /):
        await self.total.update(paid.amount)

    def process_broadcast(self, bonus, ctx, /):
        ctx.visit_keys(self.total)


class OfMaps(Totals):
    by_day = MapState("by_day", str, int)

    def process_broadcast(self, bonus, ctx, /):
        ctx.visit_keys(self.by_day)


class Foreign(Totals):
    def process_broadcast(self, bonus, ctx, /):
        ctx.visit_keys("total")


@pytest.mark.parametrize(
    ("function", "method", "error"),
    [
        (Broken, "visit", "no such bonus"),
        (WithoutVisit, "process_broadcast", "WithoutVisit has no such method: write it"),
        (OfMaps, "process_broadcast", "takes a ValueState, ReducingState or AggregatingState"),
        (Foreign, "process_broadcast", "not str"),
    ],
)
def test_errors_name_the_method_and_the_way_out(function, method, error):
    with KeyedHarness(function(), key=lambda record: record.key) as harness:
        harness.process(Paid("a", 1, 0), 0)
        with pytest.raises(UserFunctionError) as caught:
            harness.process_broadcast(Bonus(1, 0), 0)
    assert error in str(caught.value)
    assert f"{method}()" in str(caught.value)


class Mixed(Totals):
    def visit(self, bonus, ctx, /):
        pass


def test_visit_is_of_the_kind_of_process():
    pipeline = Pipeline("paid")
    bonuses = pipeline.source("bonuses", Bonus, event_time="at").broadcast()
    connected = pipeline.source("paid", Paid, event_time="at").key_by("key").connect(bonuses)
    with pytest.raises(TypeError, match=r"process\(\), visit\(\) and on_timer\(\) of Mixed must all be 'async def'"):
        connected.process("totals", Mixed())


class Refusing(Totals):
    most = ReducingState("most", int, max)

    async def process(self, paid, ctx, /):
        await self.most.add(paid.amount)

    def process_broadcast(self, bonus, ctx, /):
        if bonus.amount > 4:
            ctx.quarantine("too large")
        else:
            ctx.visit_keys(self.total)
            ctx.visit_keys(self.most)

    async def visit(self, bonus, ctx, /):
        ctx.collect(Total(ctx.key, await self.most.get() or 0, "bonus", ctx.timestamp))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_refused_broadcast_record_is_stored_once(parallelism):
    pipeline = Pipeline("paid")
    bonuses = pipeline.source("bonuses", Bonus, event_time="at").broadcast()
    paid = pipeline.source("paid", Paid, event_time="at").key_by("key")
    harness = PipelineHarness(
        paid.connect(bonuses).process("totals", Refusing()).sink("out"), bucket=1, parallelism=parallelism, now=0
    )
    harness.feed("paid", [Paid(key, 3, 0) for key in "abcd"])
    harness.feed("bonuses", [Bonus(9, 1), Bonus(1, 1)])
    assert harness.run(end_of_input=True).quarantined == 1
    assert sorted(row.key for row in harness.sink("out")) == [*"abcd"]
