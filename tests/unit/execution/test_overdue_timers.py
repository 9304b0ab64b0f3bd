"""Timers that a record registers for past times: their firing order, and their cost."""

from __future__ import annotations

import sys

from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, Struct, TimeDomain
from headrace.testing import KeyedHarness

WATERMARK = 100
places = st.tuples(st.integers(0, WATERMARK), st.sampled_from(["", "a", "b"]))


class Go(Struct, frozen=True):
    """Registers (time, namespace) timers by event time and by processing time, and deletes others."""

    event: tuple[tuple[int, str], ...] = ()
    processing: tuple[tuple[int, str], ...] = ()
    forget: tuple[tuple[int, str], ...] = ()


class Fired(Struct, frozen=True):
    at: int
    domain: str
    namespace: str


class Alarms(KeyedProcessFunction[Go, Fired]):
    def process(self, go, ctx, /):
        for time, namespace in go.event:
            ctx.timers.register_event_time(time, namespace)
        for time, namespace in go.processing:
            ctx.timers.register_processing_time(time, namespace)
        for time, namespace in go.forget:
            ctx.timers.delete_event_time(time, namespace)
            ctx.timers.delete_processing_time(time, namespace)

    def on_timer(self, timestamp, ctx, /):
        ctx.collect(Fired(timestamp, str(ctx.time_domain), ctx.namespace))


def fired(function, go):
    with KeyedHarness(function, key=lambda _: "k") as h:
        h.clock.advance(WATERMARK)
        h.watermark(WATERMARK)
        h.output()
        h.process(go, timestamp=0)
        return [output for output in h.output() if isinstance(output, Fired)]


@given(event=st.lists(places), processing=st.lists(places), forget=st.lists(places, max_size=3))
def test_overdue_timers_fire_once_in_order(event, processing, forget):
    expected = {(at, str(TimeDomain.EVENT_TIME), namespace) for at, namespace in {*event} - {*forget}}
    expected |= {(at, str(TimeDomain.PROCESSING_TIME), namespace) for at, namespace in {*processing} - {*forget}}
    go = Go(tuple(event), tuple(processing), tuple(forget))
    assert [(record.at, record.domain, record.namespace) for record in fired(Alarms(), go)] == sorted(expected)


def test_timer_set_by_timer_precedes_later_timers():
    class Countdown(Alarms):
        """Each timer sets the one before it, which is overdue as well."""

        def on_timer(self, timestamp, ctx, /):
            super().on_timer(timestamp, ctx)
            if timestamp:
                ctx.timers.register_event_time(timestamp - 1)

    times = [record.at for record in fired(Countdown(), Go(event=((3, ""), (90, ""))))]
    assert times == [3, 2, 1, 0, *range(90, -1, -1)]


def steps_for(timers):
    """Return the number of function calls for a record that registers this number of overdue timers."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    go = Go(event=tuple((at, f"{number}") for number in range(timers // 50) for at in range(50)))
    with KeyedHarness(Alarms(), key=lambda _: "k") as h:
        h.watermark(WATERMARK)
        sys.setprofile(count)
        try:
            h.process(go, timestamp=0)
        finally:
            sys.setprofile(None)
        assert sum(isinstance(output, Fired) for output in h.output()) == timers
    return calls


def test_each_overdue_timer_costs_the_same():
    assert steps_for(2_000) < 2.5 * steps_for(1_000)
