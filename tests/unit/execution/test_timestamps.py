"""The clock at a watermark: one that moves far equals many that move by a millisecond, in one operator and in chains."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from headrace import (
    JoinType,
    KeyedProcessFunction,
    Lifetime,
    OnConflict,
    Pipeline,
    RowKind,
    StateTtl,
    Struct,
    Timestamp,
    ValueState,
    native,
)
from headrace.testing import KeyedHarness, MaterializerHarness, PipelineHarness, Watermark
from tests.unit.support.fuzzing import examples
from tests.unit.support.timestamps import (
    MATERIALIZERS,
    STREAMS,
    Chain,
    Event,
    Other,
    Pair,
    each_at_one_place,
    each_timestamp,
    far,
    few,
)

OPERATORS = [*STREAMS, *MATERIALIZERS]


@st.composite
def event_lists(draw, max_size=14):
    """Events in arrival order, and watermarks (plain numbers) among them that mostly move far. The last one is behind all."""
    event = st.builds(
        lambda kind, **fields: kind(**fields),
        st.sampled_from([Event, Event, Other]),
        key=st.sampled_from("aab"),
        at=st.integers(-9, 6),
        number=st.integers(0, 9),
    )
    drawn, now, items = draw(st.lists(event | st.integers(1, 25), max_size=max_size)), 0, []
    for item in drawn:
        now += 2
        items.append(
            max(now := now + item - 3, 0) if isinstance(item, int) else replace(item, at=max(now + item.at, -9))
        )
    return [*items, 150]


def cut(items, places):
    """Return the micro-batches that begin at these places."""
    bounds = [0, *sorted({place % len(items) for place in places}), len(items)]
    return [items[start:end] for start, end in itertools.pairwise(bounds)]


def check(names, items, *, cuts=(), steps=far, parallelism=1, new_backend=None):
    options = {} if new_backend is None else {"new_backend": new_backend}
    wanted = Chain(names, each_timestamp).run(items)
    assert Chain(names, steps, parallelism, **options).run(*cut(items, cuts)) == wanted


ways = {
    "cuts": st.lists(st.integers(0, 20), max_size=2),
    "steps": st.sampled_from([far, far, few, each_at_one_place]),
    "parallelism": st.sampled_from([1, 1, 3]),
}


@pytest.mark.parametrize("name", OPERATORS)
@examples(4)
@given(items=event_lists(), **{name: ways[name] for name in ("cuts", "steps")})
def test_steps_of_the_watermark_change_nothing(name, items, cuts, steps):
    check((name,), items, cuts=cuts, steps=steps)


@examples(15)
@given(
    first=st.sampled_from([*STREAMS]),
    second=st.sampled_from([*STREAMS]),
    third=st.none() | st.sampled_from(OPERATORS),
    items=event_lists(),
    **ways,
)
def test_steps_of_the_watermark_change_no_chain(first, second, third, items, **ways):
    check((first, second, *([] if third is None else [third])), items, **ways)


@examples(4)
@given(chain=st.lists(st.sampled_from([*STREAMS]), min_size=2, max_size=2), items=event_lists(), **ways)
def test_chains_in_python_alone_are_the_same(chain, items, **ways):
    with native.in_python():
        check(tuple(chain), items, **ways)


@examples(2)
@given(chain=st.lists(st.sampled_from([*STREAMS]), min_size=2, max_size=2), items=event_lists(), **ways)
def test_chains_over_each_backend_are_the_same(backends, chain, items, **ways):
    with backends.lent() as new:
        check(tuple(chain), items, **ways, new_backend=new)


@pytest.mark.long
@examples(400)
@given(
    chain=st.lists(st.sampled_from([*STREAMS]), min_size=1, max_size=2),
    last=st.sampled_from(OPERATORS),
    items=event_lists(max_size=25),
    **ways,
)
def test_many_chains_are_the_same(chain, last, items, **ways):
    check((*chain, last), items, **ways)


# ------------------------------------------------------------------------------------------------ examples

MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class Alarm(Struct, frozen=True):
    key: str
    at: Timestamp
    number: int | None = None


class Alarms(KeyedProcessFunction[Alarm, Alarm]):
    """Keeps a number for an hour, and looks for it half an hour later, when it expires, and after that."""

    number = ValueState("number", int, ttl=StateTtl(timedelta(hours=1)))

    async def process(self, record, ctx, /):
        await self.number.update(7)
        for delay in (30 * MINUTE, HOUR, HOUR + 1):
            ctx.timers.register_event_time(record.at + delay)

    async def on_timer(self, timestamp, ctx, /):
        assert ctx.watermark == ctx.timestamp == timestamp
        ctx.collect(Alarm(ctx.key, timestamp, await self.number.value()))


@pytest.mark.parametrize("stops", [[], [30 * MINUTE], [HOUR - 1, HOUR], [HOUR, HOUR + 1]])
def test_timer_finds_state_as_of_its_time(backend, stops):
    with KeyedHarness(Alarms(), key=lambda alarm: alarm.key, backend=backend) as h:
        h.process(Alarm("a", 0), timestamp=0)
        for stop in [*stops, 2 * HOUR]:
            h.watermark(stop)
        seen = [(alarm.at, alarm.number) for alarm in h.output() if not isinstance(alarm, Watermark)]
    assert seen == [(30 * MINUTE, 7), (HOUR, 7), (HOUR + 1, None)]


def emitted_by(stream, key, *steps):
    """Return what an operator emits: a number is a watermark, a record goes to the input of its type."""
    function = stream.operators[-1].function
    with KeyedHarness(function, key=key) as h:
        for step in steps:
            if isinstance(step, int):
                h.watermark(step)
            elif isinstance(key, tuple):
                (h.process2 if isinstance(step, Other) else h.process1)(step, timestamp=step.at)
            else:
                h.process(step, timestamp=step.at)
        return [record for _, record in h.kinds()]


def key_of(event):
    return event.key


def first(state_ttl):
    events = Pipeline("p").source("events", Event, event_time="at").key_by("key")
    return events.first_by_time("first", at_watermark=True, state_ttl=state_ttl)


def test_far_watermark_finds_the_first_record():
    assert emitted_by(first(timedelta(milliseconds=10)), key_of, Event("a", 5), 100) == [Event("a", 5)]


@pytest.mark.parametrize("waiting", [[], [Event("a", 15)]])
def test_record_at_the_watermark_is_late(waiting):
    late, later = Event("a", 10, 1), Event("a", 15)
    assert emitted_by(first(Lifetime.FOREVER), key_of, 10, *waiting, late, later, 20) == [later]


def test_first_record_waits_through_a_quiet_week():
    events = Pipeline("p").source("events", Event, event_time="at", out_of_orderness=timedelta(minutes=5)).key_by("key")
    firsts = events.first_by_time("first", at_watermark=True, state_ttl=timedelta(days=7)).sink("firsts")
    h = PipelineHarness(firsts, bucket=1)
    h.feed("events", [Event("a", day * DAY) for day in (0, 8, 9)])
    h.run()
    assert [row.at for row in h.sink("firsts")] == [0]
    h.run(end_of_input=True)
    assert {row.at for row in h.sink("firsts")} == {0, 9 * DAY}  # that of day 8 came while the first one waited


@pytest.mark.parametrize("how", [JoinType.LEFT, JoinType.INNER])
def test_version_is_valid_as_of_the_record(how):
    pipeline = Pipeline("p")
    left = pipeline.source("events", Event, event_time="at").key_by("key")
    right = pipeline.source("versions", Other, event_time="at").key_by("key")
    joined = left.join_as_of("joined", right, emit=Pair, how=how, state_ttl=timedelta(milliseconds=10))
    version, order, later = Other("a", 5), Event("a", 8), Event("a", 16)
    pairs = emitted_by(joined, (key_of, key_of), version, order, later, 100)
    assert pairs == [Pair(order, version), *([Pair(later, None)] if how is JoinType.LEFT else [])]


class Later(KeyedProcessFunction[Event, Event]):
    """Emits an event when its `number` is reached."""

    async def process(self, record, ctx, /):
        ctx.timers.register_event_time(record.number)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Event("k", timestamp))


class Heard(Struct, frozen=True):
    text: str


class Hears(KeyedProcessFunction[Event, Heard]):
    """Tells of each record, and 10 ms after it."""

    async def process(self, record, ctx, /):
        ctx.collect(Heard(f"record of {ctx.timestamp} at {ctx.watermark}"))
        ctx.timers.register_event_time(ctx.timestamp + 10)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Heard(f"timer of {timestamp} at {ctx.watermark}"))


@pytest.mark.parametrize("stop", [None, "ingest.after"])
def test_timers_of_two_operators_take_turns(stop):
    """One watermark fires all of them, also where a run that had to stop left it to the next one."""
    events = Pipeline("p").source("events", Event, event_time="at").key_by("key")
    h = PipelineHarness(
        events.process("later", Later()).key_by("key").process("hears", Hears()).sink("heard"), bucket=4
    )
    h.feed("events", [Event("a", 1, 20), Event("b", 1, 50), Event("c", 1, 60), Event("d", 1000, 2000)])
    h.run(budget_ends_at=stop)
    assert bool(h.sink("heard")) == (stop is None)
    h.run()
    assert [row.text for row in h.sink("heard")] == [
        "record of 20 at 19",
        "timer of 30 at 30",
        "record of 50 at 49",
        "record of 60 at 59",
        "timer of 60 at 60",
        "timer of 70 at 70",
    ]


def test_conflict_is_decided_before_its_row_expires():
    ttl = StateTtl(timedelta(milliseconds=10))
    with MaterializerHarness(Event, ("key",), ttl=ttl, on_conflict=OnConflict.DO_NOTHING) as h:
        h.process(RowKind.INSERT, Event("a", 1), timestamp=1)
        h.process(RowKind.INSERT, Event("a", 4), timestamp=4)
        h.watermark(12)
        assert h.history("a") == []
