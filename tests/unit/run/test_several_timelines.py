"""Sources that never meet have separate lines of ordinals and separate watermarks: operators, TTL and readers use their own line."""

from __future__ import annotations

import asyncio
import itertools
from datetime import timedelta

import pytest
from typer.testing import CliRunner

from headrace import (
    AsyncFunction,
    Context,
    FixedDelay,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OnGap,
    OutputMode,
    Pipeline,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.cli import app
from headrace.edits.compact import compact
from headrace.edits.restore import restore
from headrace.errors import StateSchemaError
from headrace.readers import state as keyed_state
from headrace.readers.history import key_history
from headrace.readers.job_at import JobAtCheckpoint
from headrace.storage import pandas as late_pandas
from headrace.testing import PipelineHarness
from tests.jobs.outcome import assert_well_formed, checkpoints, live_rows

pytestmark = pytest.mark.delta

START = 1_577_836_800_000
NEVER = -(1 << 62)
TTL = timedelta(milliseconds=100)


class Event(Struct, frozen=True):
    key: str
    at: Timestamp
    timer: Timestamp | None = None


class Seen(Struct, frozen=True):
    """The view of a function, in milliseconds after `START`; -1 means no watermark yet."""

    key: str
    at: int
    watermark: int
    is_timer: bool = False
    input: int = 0


def seen(key, at, ctx, **how):
    return Seen(key, at - START, max(ctx.watermark - START, -1), **how)


class Watch(KeyedProcessFunction[Event, Seen]):
    last = ValueState("last", int, ttl=StateTtl(TTL))

    async def process(self, event, ctx: Context, /):
        await self.last.update(event.at)
        if event.timer is not None:
            ctx.timers.register_event_time(event.timer)
        ctx.collect(seen(event.key, event.at, ctx))

    async def on_timer(self, timestamp, ctx: Context, /):
        ctx.collect(seen(ctx.key, timestamp, ctx, is_timer=True))


class WatchBoth(KeyedCoProcessFunction[Event, Event, Seen]):
    async def process1(self, event, ctx: Context, /):
        ctx.collect(seen(event.key, event.at, ctx))

    async def process2(self, event, ctx: Context, /):
        ctx.collect(seen(event.key, event.at, ctx, input=1))


class Ask(AsyncFunction[Event, Event]):
    """Calls a service that is down for keys with a capital first letter."""

    is_up = True

    async def invoke(self, event, /):
        await asyncio.sleep(0)
        if event.key[0].isupper() and not Ask.is_up:
            raise TimeoutError
        return [event]


@pytest.fixture
def service(monkeypatch):
    monkeypatch.setattr(Ask, "is_up", False)
    return Ask


def asked(stream):
    retry = FixedDelay(max_retries=9, delay=timedelta(seconds=10), exceptions=(TimeoutError,))
    return stream.async_wait(
        "ask",
        Ask(),
        mode=OutputMode.ORDERED,
        timeout=timedelta(hours=1),
        retry=retry,
        park_after=timedelta(0),
    )


def graph(*, meets=False, calls=False, function=Watch):
    """Two sources with an operator each; `meets` adds an operator that joins them."""
    p = Pipeline("lines")
    one, two = (p.source(name, Event, event_time="at") for name in ("one", "two"))
    for number, stream in enumerate((asked(one) if calls else one, two), 1):
        stream.key_by("key").process(f"watch_{number}", function()).sink(f"seen_{number}")
    if meets:
        one.key_by("key").connect(two.key_by("key")).process("both", WatchBoth()).sink("seen_both")
    return p


def job(**what):
    return PipelineHarness(graph(**what), bucket=1)


def feed(harness, source, *events):
    """Feed (key, time) or (key, time, timer), in milliseconds after `START`."""
    harness.feed(source, [Event(key, *(START + time for time in times)) for key, *times in events])


def last(harness):
    return checkpoints(harness.config)[-1]


def watermarks(harness):
    """Return the watermarks by operator, in milliseconds after `START`."""
    result = {name: last(harness).watermark_of(name) for name in ("watch_1", "watch_2")}
    return {name: None if time is None else time - START for name, time in result.items()}


def test_operators_use_the_watermark_of_their_line():
    harness = job()
    feed(harness, "one", ("a", 1_000), ("a", 1_001))
    feed(harness, "two", ("b", 10, 20), ("b", 11))
    harness.run()
    assert harness.sink("seen_1")[-1].watermark == 999
    assert {row.watermark for row in harness.sink("seen_2")} == {-1, 9}
    assert watermarks(harness) == {"watch_1": 1_000, "watch_2": 10}
    assert not any(row.is_timer for row in harness.sink("seen_2"))
    feed(harness, "two", ("b", 30))
    harness.run()
    assert Seen("b", 20, 20, is_timer=True) in harness.sink("seen_2")
    assert_well_formed(harness.config)


def test_line_without_watermark_borrows_none():
    harness = job()
    feed(harness, "one", ("a", 1_000))
    harness.run()
    feed(harness, "two", ("b", 5, 900))
    harness.run()
    assert harness.sink("seen_2") == [Seen("b", 5, -1)]


def live(harness):
    """Return by operator the keys that `headrace state` shows."""
    rows = keyed_state.scan(JobAtCheckpoint(harness.config))
    place = {name: rows.columns.index(name) for name in ("operator", "key")}
    return {(row[place["operator"]], row[place["key"]].strip('"')) for row in rows.rows}


def stored(harness):
    return len(live_rows(harness.config, last(harness), "keyed_state"))


@pytest.mark.parametrize("ahead", ["one", "two"])
def test_state_expires_by_the_watermark_of_its_line(ahead):
    harness = job()
    other = "one" if ahead == "two" else "two"
    feed(harness, ahead, ("a", 10), ("b", 1_000))
    feed(harness, other, ("c", 10))
    harness.run()
    watch = {name: f"watch_{1 + (name == 'two')}" for name in ("one", "two")}
    assert live(harness) == {(watch[ahead], "b"), (watch[other], "c")}
    assert stored(harness) == 3
    compact(harness.config, "somebody")
    assert stored(harness) == 2
    assert live(harness) == {(watch[ahead], "b"), (watch[other], "c")}


def test_history_of_key_follows_its_line():
    harness = job()
    feed(harness, "one", ("a", 10), ("b", 1_000))
    feed(harness, "two", ("a", 10))
    harness.run()
    last = JobAtCheckpoint(harness.config, with_expired=True)
    first, second = (key_history(last, "a", operator=f"watch_{number}") for number in (1, 2))
    what = first.columns.index("what")
    assert [row[what] for row in first.rows] == ["written", "expired, and still stored"]
    assert [row[what] for row in second.rows] == ["written"]


def test_pause_prolongs_by_watermark_of_line():
    class PausedWatch(Watch):
        last = ValueState("last", int, ttl=StateTtl(TTL, on_gap=OnGap.PROLONG, gap_threshold=timedelta(minutes=1)))

    # Line one is past the pause, so the pause prolongs nothing there. Line two is before the pause, so live entries
    # there live longer.
    hour = 3_600_000
    harness = PipelineHarness(graph(function=PausedWatch), bucket=1, now=START)
    feed(harness, "one", ("a", 2 * hour), ("b", 2 * hour + 1))
    feed(harness, "two", ("c", 0), ("d", 1))
    harness.run()
    harness.clock.advance(hour)
    feed(harness, "one", ("b", 2 * hour + 101))
    feed(harness, "two", ("d", 200))
    harness.run()
    assert live(harness) == {("watch_1", "b"), ("watch_2", "c"), ("watch_2", "d")}


def ordered(harness, sink):
    return sorted(harness.sink(sink), key=lambda item: (item.at, item.is_timer))


def test_one_line_continues_while_another_waits(service):
    harness = job(calls=True)
    feed(harness, "one", ("a", 10, 15), ("B", 20), ("c", 30))
    feed(harness, "two", ("d", 10, 15), ("e", 20), ("f", 30))
    harness.run()
    assert ordered(harness, "seen_1") == [Seen("a", 10, -1)]
    assert Seen("d", 15, 15, is_timer=True) in harness.sink("seen_2")
    assert watermarks(harness) == {"watch_1": 9, "watch_2": 29}
    feed(harness, "two", ("d", 40))
    harness.run()
    assert watermarks(harness) == {"watch_1": 9, "watch_2": 39}
    service.is_up = True
    harness.clock.advance(60_000)
    harness.run()
    assert watermarks(harness) == {"watch_1": 29, "watch_2": 39}
    assert Seen("a", 15, 15, is_timer=True) in harness.sink("seen_1")
    assert len(harness.sink("seen_1")) == 4
    assert len(harness.sink("seen_2")) == 5


def test_waiting_line_lends_no_watermark(service):
    harness = PipelineHarness(graph(calls=True), bucket=2)
    feed(harness, "one", ("A", 1_000), ("b", 1_001))
    feed(harness, "two", ("c", 5))
    harness.run()
    assert service.is_up is False
    feed(harness, "two", ("d", 6))
    harness.run()
    assert ordered(harness, "seen_2") == [Seen("c", 5, -1), Seen("d", 6, -1)]
    assert watermarks(harness)["watch_2"] == 5


def ordinals(harness):
    timelines = last(harness).timelines.values()
    return {name: timeline.bucket.next_ordinal for timeline in timelines for name in timeline.sources}


@pytest.mark.slow
def test_two_lines_become_one():
    harness = job()
    feed(harness, "one", ("a", 1_000), ("a", 1_001), ("a", 1_002))
    feed(harness, "two", ("b", 10, 500), ("b", 20))
    harness.run()
    harness.change(pipeline=graph(meets=True))
    feed(harness, "one", ("a", 1_010))
    feed(harness, "two", ("b", 1_020), ("b", 30))
    harness.run(end_of_input=True)
    assert ordinals(harness) == {"one": 8, "two": 8}
    # The line is at the position of the furthest line: timers due by then fire, and earlier rows are late.
    assert ordered(harness, "seen_2")[2:] == [
        Seen("b", 30, 1_019),
        Seen("b", 500, 500, is_timer=True),
        Seen("b", 1_020, 1_009),
    ]
    assert ordered(harness, "seen_both") == [
        Seen("b", 30, 1_019, input=1),
        Seen("a", 1_010, 1_001),
        Seen("b", 1_020, 1_009, input=1),
    ]


def test_lines_that_meet_fire_due_timers():
    harness = job()
    feed(harness, "one", ("a", 1_000))
    feed(harness, "two", ("b", 10, 500))
    harness.run()
    harness.change(pipeline=graph(meets=True))
    feed(harness, "one", ("a", 1_100))
    feed(harness, "two", ("b", 20))
    harness.run()
    assert Seen("b", 500, 500, is_timer=True) in harness.sink("seen_2")
    assert watermarks(harness) == {"watch_1": 999, "watch_2": 999}


@pytest.mark.slow
def test_lines_that_wait_must_not_meet(service):
    harness = job(calls=True)
    feed(harness, "one", ("A", 10))
    feed(harness, "two", ("b", 10))
    harness.run()
    before = last(harness)
    harness.change(pipeline=graph(calls=True, meets=True))
    with pytest.raises(StateSchemaError, match="records of sources 'one', 'two' wait. .*now they do"):
        harness.run()
    assert last(harness) == before
    service.is_up = True
    harness.change(pipeline=graph(calls=True))
    harness.run(finish=True)
    harness.change(pipeline=graph(calls=True, meets=True))
    harness.run()


def test_line_is_split():
    harness = job(meets=True)
    feed(harness, "one", ("a", 10), ("a", 20), ("a", 1_000))
    feed(harness, "two", ("b", 15, 40))
    harness.run()
    assert last(harness).sources["one"].begun
    before = ordinals(harness)
    harness.change(pipeline=graph())
    feed(harness, "two", ("b", 30), ("b", 50))
    harness.run()
    assert before == {"one": 2, "two": 2}
    assert ordinals(harness) == {"one": 4, "two": 4}
    assert [row.at for row in ordered(harness, "seen_1")] == [10, 20, 1_000]
    assert Seen("b", 40, 40, is_timer=True) in harness.sink("seen_2")
    assert watermarks(harness) == {"watch_1": 999, "watch_2": 49}


@pytest.mark.slow
def test_lines_split_and_meet_again():
    harness = job(meets=True)
    for meets, time in zip(itertools.cycle((True, False)), range(0, 600, 100), strict=False):
        harness.change(pipeline=graph(meets=meets))
        feed(harness, "one", ("a", time + 10), ("a", time + 20))
        feed(harness, "two", ("b", time + 15), ("b", time + 25))
        harness.run()
    harness.run(end_of_input=True)
    for sink in ("seen_1", "seen_2"):
        assert len(harness.sink(sink)) == 12
        marks = [row.watermark for row in ordered(harness, sink)]
        assert marks == sorted(marks)
    assert len({*ordinals(harness).values()}) == 2


def test_status_shows_the_watermark_of_each_line(monkeypatch):
    harness = job()
    feed(harness, "one", ("a", 1_001))
    feed(harness, "two", ("b", 11))
    harness.run()
    monkeypatch.setattr(late_pandas, "without_pandas", lambda: None)
    monkeypatch.setenv("HEADRACE_HOME", str(harness.config.file.parents[2]))
    shown = CliRunner().invoke(app, ["status"]).stdout
    assert "lines: watermark of source 'one': 2020-01-01T00:00:01Z" in shown
    assert "lines: watermark of source 'two': 2020-01-01T00:00:00.010Z" in shown


@pytest.mark.slow
def test_restore_takes_the_lines_back():
    harness = job()
    feed(harness, "one", ("a", 10))
    feed(harness, "two", ("b", 10))
    harness.run()
    then = watermarks(harness)
    feed(harness, "one", ("a", 100))
    harness.run()
    restore(harness.config, 1, "again", "somebody")
    assert watermarks(harness) == then == {"watch_1": 9, "watch_2": 9}
    harness.run()
    assert watermarks(harness) == {"watch_1": 99, "watch_2": 9}
