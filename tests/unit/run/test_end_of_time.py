"""The end of the input for everything that depends on time: timers, TTL, materializers, and elements that wait for services."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from headrace import (
    AsyncFunction,
    Cleanup,
    Context,
    FixedDelay,
    KeyedProcessFunction,
    OnConflict,
    OutputMode,
    Pipeline,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.readers import state as keyed_state
from headrace.readers.job_at import JobAtCheckpoint
from headrace.testing import PipelineHarness
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows

pytestmark = pytest.mark.delta

START = 1_577_836_800_000
HOUR = 3_600_000
TTL = timedelta(hours=1)


class Event(Struct, frozen=True):
    key: str
    at: Timestamp
    value: int = 0


class Ticking(KeyedProcessFunction[Event, Event]):
    """Sets its timer again an hour later, each time it fires."""

    async def process(self, event, ctx: Context, /):
        ctx.timers.register_event_time((event.at // HOUR + 1) * HOUR)

    async def on_timer(self, timestamp, ctx: Context, /):
        ctx.timers.register_event_time(timestamp + HOUR)
        ctx.collect(Event(ctx.key, timestamp))


class Hours(KeyedProcessFunction[Event, Event]):
    """Counts records by hour. Each timer sets the one of the next hour that has records."""

    counts = ValueState("counts", dict[int, int])

    async def process(self, event, ctx: Context, /):
        end = (event.at // HOUR + 1) * HOUR
        counts = await self.counts.value() or {}
        await self.counts.update({**counts, end: counts.get(end, 0) + 1})
        if not counts:
            ctx.timers.register_event_time(end)

    async def on_timer(self, timestamp, ctx: Context, /):
        counts = await self.counts.value()
        ctx.collect(Event(ctx.key, timestamp, counts.pop(timestamp)))
        await self.counts.update(counts)
        if counts:
            ctx.timers.register_event_time(min(counts))


class Later(KeyedProcessFunction[Event, Event]):
    """Emits by a timer of processing time, and stores the event time of that timer."""

    last = ValueState("last", int, ttl=StateTtl(TTL, cleanup=Cleanup(exact=True)))

    async def process(self, event, ctx: Context, /):
        await self.last.update(event.value)
        ctx.timers.register_processing_time(ctx.processing_time + HOUR)

    async def on_timer(self, timestamp, ctx: Context, /):
        await self.last.update(timestamp)
        ctx.collect(Event(ctx.key, timestamp))


class Ask(AsyncFunction[Event, Event]):
    """Calls a service that is down."""

    is_up = False

    async def invoke(self, event, /):
        await asyncio.sleep(0)
        if not Ask.is_up:
            raise TimeoutError
        return [event]


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(Ask, "is_up", False)
    return Ask


def job(*steps, bucket=1):
    """Return a job of one source, and of steps that each take a stream."""
    stream = Pipeline("end").source("events", Event, event_time="at")
    for step in steps:
        stream = step(stream)
    return PipelineHarness(stream.sink("out"), bucket=bucket)


def keyed(name, function):
    return lambda stream: stream.key_by("key").process(name, function)


def materialized(**how):
    return lambda stream: stream.upsert_materialize("latest", primary_key=("key",), **how)


def asked(stream):
    retry = FixedDelay(max_retries=3, delay=timedelta(seconds=10), exceptions=(TimeoutError,))
    how = {"timeout": timedelta(days=1), "retry": retry, "park_after": timedelta(0)}
    return stream.key_by("key").async_wait("ask", Ask(), mode=OutputMode.KEYED_ORDERED, **how)


def feed(harness, *events):
    """Feed (key, hour) or (key, hour, value)."""
    harness.feed("events", [Event(key, START + round(hour * HOUR), *value) for key, hour, *value in events])


def hours(harness):
    return sorted((row.key, (row.at - START) / HOUR) for row in harness.sink("out"))


def rows_of(harness, table):
    return live_rows(harness.config, checkpoints(harness.config)[-1], table)


def assert_sound(harness):
    assert_well_formed(harness.config)
    assert all(finding.ok for finding in verify(harness.config))
    compact(harness.config, "somebody")
    keyed_state.scan(JobAtCheckpoint(harness.config, with_expired=True))


@pytest.mark.slow
@pytest.mark.parametrize("bucket", [1, 1000])
def test_timer_that_sets_itself_stops_eventually(bucket):
    harness = job(keyed("ticks", Ticking()), bucket=bucket)
    feed(harness, ("a", 0.5), ("b", 2.5), ("a", 3.5))
    report = harness.run(end_of_input=True)
    assert report.stopped_because == "ended"
    # The job continues up to the last event; after that, each remaining timer fires once.
    assert hours(harness) == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 3), ("b", 4)]
    assert not rows_of(harness, "timers")
    assert_sound(harness)


@pytest.mark.parametrize("bucket", [1, 1000])
def test_chain_of_timers_loses_nothing(bucket):
    harness = job(keyed("hours", Hours()), bucket=bucket)
    feed(harness, *(("a", hour) for hour in (0.1, 0.2, 1.5, 5.1, 5.2)), ("b", 0.3))
    harness.run(end_of_input=True)
    counts = sorted((row.key, (row.at - START) / HOUR, row.value) for row in harness.sink("out"))
    assert counts == [("a", 1, 2), ("a", 2, 1), ("a", 6, 2), ("b", 1, 1)]


def test_timers_of_operator_reach_next_operator():
    harness = job(keyed("first", Hours()), keyed("second", Hours()))
    feed(harness, ("a", 0.1), ("a", 0.2), ("a", 5.1))
    harness.run(end_of_input=True)
    assert hours(harness) == [("a", 2), ("a", 7)]


@pytest.mark.slow
def test_processing_time_continues_after_the_end():
    harness = job(keyed("later", Later()))
    feed(harness, ("a", 1))
    harness.run(end_of_input=True)
    assert harness.sink("out") == []
    harness.clock.advance(2 * HOUR)
    harness.run()
    assert len(harness.sink("out")) == 1
    assert_sound(harness)


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", [OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE])
def test_rows_after_input_end_expire_without_overflow(on_conflict):
    harness = job(keyed("later", Later()), materialized(ttl=StateTtl(TTL), upsert_key=("at",), on_conflict=on_conflict))
    feed(harness, ("a", 1), ("b", 2))
    harness.run(end_of_input=True)
    harness.clock.advance(2 * HOUR)
    harness.run()
    assert len(harness.sink("out")) == 2
    assert_sound(harness)


@pytest.mark.slow
@pytest.mark.parametrize("on_conflict", [OnConflict.KEEP_HISTORY, OnConflict.DO_NOTHING, OnConflict.DEDUPLICATE])
def test_conflicts_are_settled_at_the_end(on_conflict):
    harness = job(materialized(upsert_key=("at",), on_conflict=on_conflict), bucket=1000)
    feed(harness, ("a", 1), ("a", 2))
    harness.run(end_of_input=True)
    first = on_conflict is OnConflict.DO_NOTHING
    assert hours(harness) == [("a", 1 if first else 2)]
    assert len(rows_of(harness, "materializer_history")) == (2 if on_conflict is OnConflict.KEEP_HISTORY else 1)
    assert_sound(harness)


@pytest.mark.slow
def test_waiting_elements_are_called_before_the_end(service):
    harness = job(asked, keyed("hours", Hours()))
    feed(harness, ("a", 0.5), ("a", 1.5))
    harness.run()
    assert hours(harness) == []
    service.is_up = True
    harness.run(end_of_input=True)
    assert hours(harness) == [("a", 1), ("a", 2)]


@pytest.mark.slow
def test_requests_made_at_the_end_are_answered(service):
    harness = job(keyed("hours", Hours()), asked, keyed("again", Hours()))
    feed(harness, ("a", 0.5), ("a", 1.5), ("b", 7.5))
    service.is_up = True
    assert harness.run(end_of_input=True).stopped_because == "ended"
    assert hours(harness) == [("a", 2), ("a", 3), ("b", 9)]
    assert_sound(harness)


@pytest.mark.slow
def test_crash_at_input_end_repeats_it():
    harness = job(keyed("ticks", Ticking()))
    feed(harness, ("a", 0.5), ("a", 3.5))
    before = harness.snapshot()
    harness.run(end_of_input=True)
    whole = hours(harness)
    for place in ("commit.before:2", "commit.after:2", "task.half:2"):
        harness.restore(before)
        harness.run(end_of_input=True, crash_at=place)
        harness.run(end_of_input=True)
        assert hours(harness) == whole, place
