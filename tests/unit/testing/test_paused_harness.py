"""A paused job in the harness: the remembered states, against clocks moved by hand."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import KeyedProcessFunction, OnGap, StateTtl, Struct, TtlTime, ValueState
from headrace.testing import KeyedHarness, SideRecord

TTL, THRESHOLD = 50, 20


class Guest(Struct, frozen=True):
    name: str


class Known(Struct, frozen=True):
    lasting: bool
    strict: bool


class Rung(Struct, frozen=True):
    at: int


def ttl(time, **arguments):
    return StateTtl(timedelta(milliseconds=TTL), time=time, **arguments)


PATIENT = {"on_gap": OnGap.PROLONG, "gap_threshold": timedelta(milliseconds=THRESHOLD)}


class Desk(KeyedProcessFunction[Guest, Known]):
    """Emits guests who were here recently."""

    lasting = ValueState("lasting", int, ttl=ttl(TtlTime.PROCESSING, **PATIENT))
    strict = ValueState("strict", int, ttl=ttl(TtlTime.PROCESSING))

    async def process(self, guest, ctx, /):
        lasting, strict = await self.lasting.value(), await self.strict.value()
        if lasting is None and strict is None:
            ctx.timers.register_processing_time(ctx.processing_time + 30)
        ctx.collect(Known(lasting is not None, strict is not None))
        if lasting is None:
            await self.lasting.update(1)
        if strict is None:
            await self.strict.update(1)

    async def on_timer(self, timestamp, ctx, /):
        ctx.output("rung", Rung(ctx.processing_time))


def new(function=Desk, **arguments):
    return KeyedHarness(function(), key=lambda guest: guest.name, side_outputs={"rung": Rung}, **arguments)


def known(h):
    return [(output.lasting, output.strict) for output in h.output() if isinstance(output, Known)]


def visit(h, **arguments):
    h.process(Guest("ann"), **arguments)
    (output,) = known(h)
    return output


def test_pause_above_threshold_is_not_counted_in_lifetime(backend):
    with new(backend=backend) as h:
        assert visit(h) == (False, False)
        h.clock.advance(10)
        h.pause(1_000)
        assert h.clock.now() == 1_010
        assert visit(h) == (True, False)
        h.clock.advance(TTL - 10 - 1)
        assert visit(h)[0] is True
        h.clock.advance(1)
        assert visit(h)[0] is False


def test_pause_below_threshold_does_not_count(backend):
    with new(backend=backend) as h:
        visit(h)
        h.pause(THRESHOLD)
        h.pause(THRESHOLD)
        assert visit(h) == (True, True)
        h.pause(TTL - 2 * THRESHOLD)
        assert visit(h) == (False, False)


@pytest.mark.parametrize(
    ("watermark", "event_time", "expected"),
    [
        # The job stands at 100, and is paused until 200. The guest was here at 60, which is good until 110.
        (105, 204, (True, False)),
        (105, 205, (False, False)),
        (104, 205, (True, False)),
        (104, 206, (False, False)),
        (110, 200, (False, False)),  # dead before the pause, so it stays dead
        (0, 209, (True, False)),
        (0, 210, (False, False)),
    ],
)
def test_watermark_pause_begins_no_earlier_than_watermark(backend, watermark, event_time, expected):
    class ByEventTime(Desk):
        lasting = ValueState("lasting", int, ttl=ttl(TtlTime.EVENT, **PATIENT))
        strict = ValueState("strict", int, ttl=ttl(TtlTime.EVENT))

    with new(ByEventTime, backend=backend) as h:
        h.clock.advance(100)
        h.watermark(0)
        visit(h, timestamp=60)
        h.watermark(watermark)
        h.pause(100)
        h.watermark(max(event_time, watermark))
        assert visit(h, timestamp=event_time) == expected


def test_timers_due_in_pause_fire_at_end(backend):
    with new(backend=backend) as h:
        visit(h)
        h.pause(29)
        assert h.output() == []
        h.pause(500)
        assert h.output() == [SideRecord("rung", Rung(529))]


def test_pauses_are_in_a_snapshot(backend):
    with new() as h:
        visit(h)
        h.pause(1_000)
        snapshot = h.snapshot()
    whole = {"key": lambda guest: guest.name, "backend": backend, "side_outputs": {"rung": Rung}}
    with KeyedHarness.restore(snapshot, Desk(), **whole) as again:
        again.clock.advance(TTL - 1)
        assert visit(again) == (True, False)
        again.clock.advance(1)
        assert visit(again)[0] is False


def test_started_records_finish_before_the_pause():
    with new(automatic=False) as h:
        h.process(Guest("ann"))
        assert h.statistics().in_flight == 1
        h.pause(29)
        assert known(h) == [(False, False)]
        assert h.state("lasting", "ann") == 1
        assert h.statistics().in_flight == 0


@pytest.mark.parametrize("milliseconds", [0, -5])
def test_pause_takes_time(milliseconds):
    with new() as h, pytest.raises(ValueError, match=f"at least 1 ms, not {milliseconds}"):
        h.pause(milliseconds)


steps = st.lists(
    st.tuples(st.just("advance"), st.integers(1, 30))
    | st.tuples(st.just("pause"), st.integers(1, 60))
    | st.tuples(st.sampled_from(["visit", "snapshot"]), st.just(0)),
    max_size=25,
)


@given(steps)
def test_lifetime_counts_only_unpaused_time(backends, steps):
    now, gaps = 0, []
    born: dict[str, Any] = {"lasting": None, "strict": None}

    def lived(state):
        counted = gaps if state == "lasting" else []
        return sum(not any(at in gap for gap in counted) for at in range(born[state], now))

    with backends.lent() as lent, new(backend=lent()) as h:
        for what, span in [*steps, ("visit", 0)]:
            if what == "visit":
                alive = {state: born[state] is not None and lived(state) < TTL for state in born}
                assert visit(h) == (alive["lasting"], alive["strict"])
                born = {state: born[state] if alive[state] else now for state in born}
            elif what == "snapshot":
                h.snapshot()
            elif what == "advance":
                h.clock.advance(span)
                now += span
            else:
                h.pause(span)
                if span > THRESHOLD:
                    gaps.append(range(now, now + span))
                now += span
