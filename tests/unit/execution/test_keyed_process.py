"""The keyed process operator, one record at a time. Times are milliseconds; a watermark has the ordinal of the next record."""

from __future__ import annotations

import asyncio
import re
from datetime import timedelta

import msgspec
import pytest

from headrace import (
    KeyedProcessFunction,
    Process,
    RowKind,
    SideOutput,
    StateFuture,
    StateTtl,
    Struct,
    TtlTime,
    ValueState,
)
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.execution.bound_function import declared_states
from headrace.execution.element import NO_WATERMARK, Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.execution.process_context import LATEST_TIMER
from headrace.records.order import record_order
from headrace.state.codec import encode
from tests.unit.support.records import record_of


class Event(Struct, frozen=True):
    key: str
    do: str = ""
    number: int = 0


class Line(Struct, frozen=True):
    text: str
    number: int = 0


class Alert(Struct, frozen=True):
    text: str


class Scripted(KeyedProcessFunction[Event, Line]):
    """Runs the scripted events, each a method of the test."""

    seen = ValueState("seen", int)
    lately = ValueState("lately", int, ttl=StateTtl(timedelta(milliseconds=10)))

    def __init__(self, **methods):
        self.methods = methods

    async def process(self, event, ctx, /):
        if event.do:
            await self.methods[event.do](self, event, ctx)

    async def on_timer(self, timestamp, ctx, /):
        ctx.collect(Line(f"timer {ctx.key}", timestamp))
        if "timer" in self.methods:
            await self.methods["timer"](self, timestamp, ctx)


class Harness:
    """One operator over one backend; each `run` is a micro-batch."""

    def __init__(self, backend, function, sides=()):
        self.backend, self.operator = backend, Process("delay", "key", function, sides)
        self.ordinal, self.watermark = 1, None  # there is no watermark before the very first record

    def run(self, *items):
        """Process `(time, event)` and watermarks (plain numbers); return the outputs in the order of their keys."""
        elements, watermarks = [], []
        for item in items:
            if isinstance(item, int):
                watermarks.append(Watermark(record_order(self.ordinal), item))
                continue
            time, event, kind = (*item, 0)[:3]
            order = record_order(self.ordinal)
            elements.append(Element(order, time, kind, encode(event.key), event))
            self.ordinal += 1
        last = watermarks[-1].timestamp if watermarks else None
        self.process = KeyedProcess(
            self.operator, self.backend, records=(Event,), watermark=self.watermark, last_watermark=last
        )
        self.process.run([elements], watermarks)
        self.watermark = self.watermark if last is None else last
        for store in self.process.stores:
            self.backend.write_batch(store.writes(list(store.changes())))
        self.backend.write_batch(self.process.timers.writes(self.process.timers.changes()))
        emitted = sorted(self.process.emitted, key=lambda out: out.order)
        assert len({out.order for out in emitted}) == len(emitted), "two outputs have the same place"
        return [(record_of(out).text, record_of(out).number) for out in emitted]


@pytest.fixture
def harness(backend):
    return lambda function=None, sides=(), **methods: Harness(backend, function or Scripted(**methods), sides)


async def remind(self, event, ctx):
    ctx.collect(Line(f"asked {event.key}"))
    ctx.timers.register_event_time(event.number)


async def look(self, event, ctx):
    ctx.collect(Line(event.key, ctx.watermark))


async def count(self, event, ctx):
    seen = (await self.seen.value() or 0) + 1
    await self.seen.update(seen)
    ctx.collect(Line(event.key, seen))


async def wait_for_nothing(self, event, ctx):
    await StateFuture(None)
    ctx.collect(Line(event.key))


def test_each_record_may_await_its_own_future(harness):
    events = [(time, Event(key, "wait")) for time, key in enumerate("abab")]
    assert harness(wait=wait_for_nothing).run(*events) == [(key, 0) for key in "abab"]


def test_key_state_is_shared_over_micro_batches(harness):
    h = harness(count=count)
    assert h.run((1, Event("a", "count")), (2, Event("b", "count")), (3, Event("a", "count"))) == [
        ("a", 1),
        ("b", 1),
        ("a", 2),
    ]
    assert h.run((4, Event("b", "count")), (5, Event("a", "count"))) == [("b", 2), ("a", 3)]


#    a@1   |7|   a@2   |9|   a@3        a record sees the last watermark before it, late ones too


def test_record_clock_is_last_watermark_before_it(harness):
    h = harness(look=look)
    event = Event("a", "look")
    assert h.run((1, event), 7, (20, event), (3, event), 9, (4, event)) == [
        ("a", NO_WATERMARK),
        ("a", 7),
        ("a", 7),
        ("a", 9),
    ]
    assert h.run((30, event)) == [("a", 9)]


def test_late_records_are_counted_and_processed(harness):
    """Records at or behind the watermark are counted as late, and still processed."""
    h = harness(look=look)
    event = Event("a", "look")
    assert len(h.run((0, event), 10, (9, event), (10, event), (11, event))) == 4
    assert h.process.metrics == {"records": 4, "late": 2}


def test_key_timers_fire_before_its_next_record(harness):
    h = harness(remind=remind, look=look)
    result = h.run((1, Event("a", "remind", 8)), (2, Event("a", "remind", 5)), 8, (9, Event("a", "look")))
    assert result == [("asked a", 0), ("asked a", 0), ("timer a", 5), ("timer a", 8), ("a", 8)]


def test_timers_of_keys_without_later_records_fire_too(harness):
    h = harness(remind=remind)
    assert h.run((1, Event("b", "remind", 5)), (1, Event("a", "remind", 5)), 9) == [
        ("asked b", 0),
        ("asked a", 0),
        ("timer a", 5),
        ("timer b", 5),
    ]


def test_timer_waits_for_watermark_over_micro_batches(harness):
    h = harness(remind=remind)
    h.run((1, Event("a", "remind", 50)), 10)
    assert h.run(49) == []
    assert h.run(50) == [("timer a", 50)]
    assert h.run(51) == []
    assert list(h.backend.items()) == []


def test_watermark_in_a_timer_is_its_time(harness):
    """However far the watermark moves, the timer's code sees it at the timer's own time."""

    async def timer(self, timestamp, ctx):
        assert (ctx.timestamp, ctx.watermark, ctx.key, ctx.row_kind) == (5, 5, "a", RowKind.INSERT)

    h = harness(remind=remind, timer=timer)
    assert h.run((1, Event("a", "remind", 5), RowKind.DELETE), 8)[-1] == ("timer a", 5)


@pytest.mark.parametrize("watermark_in_this_slice", [True, False])
def test_timer_in_past_fires_after_its_record(harness, watermark_in_this_slice):
    h = harness(remind=remind, look=look)
    slice_ = [(20, Event("a", "remind", 3)), (21, Event("a", "look")), (22, Event("b", "look"))]
    if watermark_in_this_slice:
        result = h.run(10, *slice_)
    else:
        h.run(10)
        result = h.run(*slice_)
    assert result == [("asked a", 0), ("timer a", 3), ("a", 10), ("b", 10)]
    assert list(h.backend.items()) == []


def test_timers_for_past_times_fire_in_time_order(harness):
    async def several(self, event, ctx):
        for time in (7, 3, 12, 5):
            ctx.timers.register_event_time(time)
        ctx.timers.delete_event_time(5)

    assert harness(several=several).run(10, (20, Event("a", "several")), 11) == [("timer a", 3), ("timer a", 7)]


#    at |100|: timer 50 fires, sets 20 (past) and 60; 60 waits for its turn behind 55


def test_timer_may_set_an_earlier_timer(harness):
    """A timer that a timer sets for an earlier time fires next."""

    async def timer(self, timestamp, ctx):
        if timestamp == 50:
            ctx.timers.register_event_time(60)
            ctx.timers.register_event_time(20)
            ctx.collect(Line("after registering"))

    h = harness(remind=remind, timer=timer)
    result = h.run((1, Event("a", "remind", 55)), (1, Event("a", "remind", 50)), 100)
    assert result[2:] == [
        ("timer a", 50),
        ("after registering", 0),
        ("timer a", 20),
        ("timer a", 55),
        ("timer a", 60),
    ]


def test_repeating_timer_keeps_its_outputs_apart(harness):
    """A timer that sets itself again fires again, and its outputs are distinguishable."""

    async def timer(self, timestamp, ctx):
        left = await self.seen.value() or 0
        if left < 2:
            await self.seen.update(left + 1)
            ctx.timers.register_event_time(timestamp)

    assert harness(remind=remind, timer=timer).run((1, Event("a", "remind", 5)), 9)[1:] == [("timer a", 5)] * 3


def test_timer_may_be_deleted(harness):
    async def forget(self, event, ctx):
        ctx.timers.delete_event_time(event.number)

    h = harness(remind=remind, forget=forget)
    h.run((1, Event("a", "remind", 50)), (1, Event("b", "remind", 50)))
    assert h.run((2, Event("a", "forget", 50)), (2, Event("a", "forget", 51)), 90) == [("timer b", 50)]


@pytest.mark.parametrize("timestamp", [LATEST_TIMER + 1, -LATEST_TIMER - 1, 5.0, "5", None])
def test_timer_needs_a_storable_whole_number(harness, timestamp):
    async def wrong(self, event, ctx):
        ctx.timers.register_event_time(timestamp)

    with pytest.raises(UserFunctionError, match=r"integer|must lie within"):
        harness(wrong=wrong).run((1, Event("a", "wrong")))


def test_timers_at_time_limits_are_stored_and_fire(harness):
    h = harness(remind=remind)
    h.run((1, Event("a", "remind", LATEST_TIMER)), (1, Event("b", "remind", -LATEST_TIMER)))
    assert h.run(LATEST_TIMER) == [("timer b", -LATEST_TIMER), ("timer a", LATEST_TIMER)]


#    written at 5, ttl 10: alive for a record behind |14|, dead behind |15|


@pytest.mark.parametrize(("watermark", "expected"), [(14, 1), (15, 0)])
def test_state_ages_by_watermark_not_latest_record(harness, watermark, expected):
    async def write(self, event, ctx):
        await self.lately.update(1)

    async def read(self, event, ctx):
        ctx.collect(Line("lately", await self.lately.value() or 0))

    h = harness(write=write, read=read, look=look)
    h.run((5, Event("a", "write")), (1_000, Event("b", "look")))
    assert h.run(watermark, (6, Event("a", "read"))) == [("lately", expected)]


def test_processing_time_state_ages_by_micro_batch(harness, clock):
    class Sessions(Scripted):
        session = ValueState("session", int, ttl=StateTtl(timedelta(seconds=1), time=TtlTime.PROCESSING))

    async def visit(self, event, ctx):
        visits = (await self.session.value() or 0) + 1
        await self.session.update(visits)
        ctx.collect(Line("visits", visits))

    h = harness(Sessions(visit=visit))
    assert h.run((5, Event("a", "visit")), 900_000_000, (5, Event("a", "visit"))) == [("visits", 1), ("visits", 2)]
    clock.advance(1_000)
    assert h.run((5, Event("a", "visit"))) == [("visits", 1)]


def test_outputs_carry_causes_time_and_chosen_kind(harness):
    async def both(self, event, ctx):
        ctx.collect(Line("old"), RowKind.UPDATE_BEFORE)
        ctx.collect(Line("new"), RowKind.UPDATE_AFTER)
        ctx.timers.register_event_time(33)

    h = harness(both=both)
    h.run((7, Event("a", "both")), 40)
    assert [(out.timestamp, out.kind) for out in h.process.emitted] == [(7, 1), (7, 2), (33, 0)]


def test_kept_context_stays_with_its_record(harness):
    kept = []

    async def keep(self, event, ctx):
        kept.append(ctx)

    async def keep_a_method(self, event, ctx):
        kept.append(ctx.collect)

    h = harness(keep=keep, method=keep_a_method, look=look)
    records = [(1, Event("a", "keep")), (2, Event("b", "look")), (3, Event("c", "method")), (4, Event("d", "look"))]
    assert h.run(*records) == [("b", NO_WATERMARK), ("d", NO_WATERMARK)]
    kept[0].collect(Line("of a"))
    kept[1](Line("of c"))
    assert (kept[0].key, kept[0].timestamp) == ("a", 1)
    assert [out.timestamp for out in h.process.emitted[2:]] == [1, 3]


def test_function_sees_its_records_row_kind(harness):
    async def tell(self, event, ctx):
        ctx.collect(Line(ctx.row_kind.symbol))

    events = [(1, Event("a", "tell"), kind) for kind in RowKind]
    assert [text for text, _ in harness(tell=tell).run(*events)] == ["+I", "-U", "+U", "-D"]


def test_side_outputs_keep_their_place_among_the_others(harness):
    async def both(self, event, ctx):
        ctx.collect(Line("first"))
        ctx.output("alerts", Alert("second"))
        ctx.collect(Line("third"))

    h = harness(both=both, sides=(SideOutput("alerts", Alert, "alerts_sink"),))
    h.run((7, Event("a", "both")))
    (alert,) = h.process.side_outputs["alerts"]
    first, third = h.process.emitted
    assert alert.record == Alert("second")
    assert first.order < alert.order < third.order


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda ctx: ctx.output("alarms", Alert("x")), "'alarms' is not declared in the pipeline .declared: alerts"),
        (lambda ctx: ctx.output("alerts", Line("x")), "'alerts' takes Alert, not Line"),
        (lambda ctx: ctx.collect(Alert("x")), "the output takes Line, not Alert"),
        (lambda ctx: ctx.collect(None), "the output takes Line, not NoneType"),
    ],
)
def test_undeclared_output_is_an_error(harness, call, says):
    async def wrong(self, event, ctx):
        call(ctx)

    with pytest.raises(UserFunctionError, match=says):
        harness(wrong=wrong, sides=(SideOutput("alerts", Alert, "s"),)).run((1, Event("a", "wrong")))


def test_user_error_names_operator_key_record_traceback(harness):
    async def fails(self, event, ctx):
        raise ZeroDivisionError("of all things")

    with pytest.raises(UserFunctionError) as raised:
        harness(fails=fails).run((1, Event("ä", "fails", 7)))
    error = raised.value
    assert (error.operator, error.key, error.record) == ("delay", '"ä"', '{"key":"ä","do":"fails","number":7}')
    assert "in fails" in error.traceback
    assert "ZeroDivisionError: of all things" in str(error)


def test_user_error_in_timer_names_the_timer(harness):
    async def timer(self, timestamp, ctx):
        raise KeyError("gone")

    with pytest.raises(UserFunctionError) as raised:
        harness(remind=remind, timer=timer).run((1, Event("a", "remind", 5)), 9)
    assert (raised.value.key, raised.value.record) == ('"a"', "timer at 5 ms")


@pytest.mark.parametrize("width", [0, 1])
def test_long_record_is_cut_within_characters(harness, width):
    """An error cuts a long record by bytes, even within a character."""

    async def waits(self, event, ctx):
        await asyncio.sleep(0)

    event = Event("k" * (400 + width) + "ü" * 400, "waits")
    with pytest.raises(UserFunctionError) as raised:
        harness(waits=waits).run((1, event))
    assert 490 < len(raised.value.record.encode()) < 510


def test_awaiting_foreign_object_is_a_located_error(harness):
    async def waits(self, event, ctx):
        await asyncio.sleep(0)

    async def waits_later(self, event, ctx):
        await count(self, event, ctx)
        await asyncio.sleep(0)

    h = harness(waits=waits, later=waits_later)
    for do in ("waits", "later"):
        with pytest.raises(
            UserFunctionError, match=r"Scripted.process awaited something other than its own state in line"
        ):
            h.run((1, Event("a")), (2, Event("b", do)))


def test_function_with_wrong_parameters_is_user_error(harness):
    class Short(Scripted):
        async def process(self, _, /):
            return None

    with pytest.raises(UserFunctionError, match="operator 'delay'"):
        harness(Short()).run((1, Event("a")))


class Plain(KeyedProcessFunction[Event, Line]):
    """A function whose state calls return the value itself."""

    seen = ValueState("seen", int)

    def process(self, event, ctx, /):
        seen = (self.seen.value() or 0) + 1
        self.seen.update(seen)
        ctx.collect(Line(event.key, seen))
        ctx.timers.register_event_time(event.number)
        if event.do == "forget":
            self.seen.clear()

    def on_timer(self, timestamp, ctx, /):
        ctx.collect(Line(f"timer {self.seen.value()}", timestamp))


def test_plain_function_gets_blocking_handles(harness):
    h = harness(Plain())
    event = Event("a", number=5)
    assert h.run((1, event), (2, event), 9) == [("a", 1), ("a", 2), ("timer 2", 5)]
    assert h.run((10, Event("a", "forget", 20)), 30) == [("a", 3), ("timer None", 20)]


def test_function_is_wholly_plain_or_async(harness):
    class Mixed(Plain):
        async def on_timer(self, timestamp, ctx, /):
            """Never called."""

    with pytest.raises(TypeError, match=r"process\(\) and on_timer\(\) of Mixed must both be"):
        harness(Mixed()).run((1, Event("a")))


def test_state_misfit_is_not_blamed_on_function(harness):
    class Before(Scripted):
        seen = ValueState("seen", str)

    async def write(self, event, ctx):
        await self.seen.update("text")
        ctx.timers.register_event_time(5)

    async def timer(self, timestamp, ctx):
        await self.seen.value()

    harness(Before(write=write)).run((1, Event("a", "write")))
    with pytest.raises(StateSchemaError, match="state 'seen' of operator 'delay'"):
        harness(timer=timer).run(9)


def test_failed_micro_batch_leaves_nothing_behind(harness):
    async def fails(self, event, ctx):
        await self.seen.update(99)
        ctx.timers.register_event_time(50)
        raise ValueError("no")

    h = harness(count=count, fails=fails)
    h.run((1, Event("a", "count")))
    before = dict(h.backend.items())
    with pytest.raises(UserFunctionError):
        h.run((2, Event("a", "count")), (3, Event("a", "fails")))
    assert dict(h.backend.items()) == before


def test_states_may_be_inherited_and_redeclared():
    class Derived(Scripted):
        seen = ValueState("seen", str)
        more = ValueState("more", int)

    states = declared_states(Derived())
    types = {name: state.type for name, state in states.items() if isinstance(state, ValueState)}
    assert types == {"seen": str, "lately": int, "more": int}


def test_two_states_of_one_name_are_refused():
    class Twice(Scripted):
        again = ValueState("seen", int)

    with pytest.raises(TypeError, match="Twice declares two states named 'seen'"):
        declared_states(Twice())


def test_function_may_be_bound_again_and_again(harness):
    # A worker process runs many tasks with the same instance.
    function = Scripted(count=count)
    first = harness(function)
    first.run((1, Event("a", "count")))
    first.run((1, Event("a", "count")))
    assert declared_states(function)["seen"] is Scripted.seen
    assert re.fullmatch("ValueStore", type(function.seen).__name__)
    assert msgspec.json.encode(first.run((1, Event("a", "count")))) == b'[["a",3]]'


def test_every_part_reports_its_statistics(harness):
    async def count(f, event, ctx):
        await f.seen.update((await f.seen.value() or 0) + 1)
        await f.lately.value()
        ctx.timers.register_event_time(event.number)

    h = harness(Scripted(count=count))
    h.run((1, Event("a", "count", 5)), (2, Event("b", "count", 90)), 10, (3, Event("a")))
    output = h.process.statistics()
    assert (output.records, output.late, output.removed) == (3, 1, 0)
    assert (output.timers.due, output.timers.changed, output.timers.fired) == (0, 2, 1)
    assert (output.controller.in_flight, output.controller.occupied_keys, output.controller.epochs) == (0, 0, 1)
    seen, lately = output.states["seen"], output.states["lately"]
    assert (seen.cached, seen.changed, seen.hits + seen.misses, seen.waiting, seen.expired) == (2, 2, 2, 0, 0)
    assert (lately.cached, lately.changed) == (2, 0)
