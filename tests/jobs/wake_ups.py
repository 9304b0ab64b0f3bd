"""A small job whose results come when nothing arrives: calls that were asked for, by timers of processing time."""

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
    """Who wants to be called, in how many milliseconds, and how many times more after that."""

    at: Timestamp
    guest: str
    delay: int
    snoozes: int = 0


class Ring(Struct, frozen=True):
    """It is time for a call."""

    guest: str
    due: Timestamp


class Call(Struct, frozen=True):
    """A guest's calls are numbered."""

    guest: str
    due: Timestamp
    number: int


class Alarms(KeyedProcessFunction[Order, Ring]):
    """Rings when it is time, and again for those who snooze."""

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

    made = ValueState("made", int)

    async def process(self, ring: Ring, ctx: Context, /) -> None:
        """Count it."""
        number = (await self.made.value() or 0) + 1
        await self.made.update(number)
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
