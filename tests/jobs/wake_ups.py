"""A small job that emits results without new input: calls requested by timers of processing time."""

from __future__ import annotations

from typing import Any, Final

from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState

JOB: Final[dict[str, Any]] = {
    "job": "wake_ups",
    "pipeline": "tests.jobs.wake_ups:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 20},
    "sources": {"orders": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {"calls": {"path": "lake/calls", "mode": "append"}},
}
SNOOZE: Final = 5_000


class Order(Struct, frozen=True):
    """A request for calls: who, in how many milliseconds, and how many repeats."""

    at: Timestamp
    guest: str
    delay: int
    snoozes: int = 0


class Ring(Struct, frozen=True):
    """A call that is due."""

    guest: str
    due: Timestamp


class Call(Struct, frozen=True):
    """A numbered call of a guest."""

    guest: str
    due: Timestamp
    number: int


class Alarms(KeyedProcessFunction[Order, Ring]):
    """Emits due calls, and repeats them for guests who snooze."""

    snoozes = ValueState("snoozes", int)

    async def process(self, order: Order, ctx: Context, /) -> None:
        """Set the alarm."""
        await self.snoozes.update(order.snoozes)
        ctx.timers.register_processing_time(ctx.processing_time + order.delay)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Ring."""
        ctx.collect(Ring(str(ctx.key), timestamp))
        left = await self.snoozes.value() or 0
        if left:
            await self.snoozes.update(left - 1)
            ctx.timers.register_processing_time(timestamp + SNOOZE)


class Calls(KeyedProcessFunction[Ring, Call]):
    """Numbers a guest's calls."""

    alarms = ValueState("made", int)

    async def process(self, ring: Ring, ctx: Context, /) -> None:
        """Count it."""
        number = (await self.alarms.value() or 0) + 1
        await self.alarms.update(number)
        ctx.collect(Call(ring.guest, ring.due, number))


pipeline: Final = (
    Pipeline("wake_ups")
    .source("orders", Order, event_time="at")
    .key_by("guest")
    .process("alarms", Alarms())
    .key_by("guest")
    .process("numbers", Calls())
    .sink("calls")
)
