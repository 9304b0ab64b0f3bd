"""A small job that remembers its guests for a minute of processing time: one state counts pauses of the job, one does not."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from headrace import (
    Cleanup,
    Context,
    KeyedProcessFunction,
    OnGap,
    Pipeline,
    StateTtl,
    Struct,
    Timestamp,
    TtlTime,
    ValueState,
)
from tests.jobs.wake_ups import Order

JOB: Final[dict[str, Any]] = {
    "job": "lodgers",
    "pipeline": "tests.jobs.lodgers:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 20},
    "sources": {"orders": {"path": "input", "interval": "%Y-%m-%d"}},
    "sinks": {"greetings": {"path": "lake/greetings", "mode": "append"}},
}
MINUTE: Final = timedelta(minutes=1)
LASTING: Final = StateTtl(
    MINUTE,
    time=TtlTime.PROCESSING,
    on_gap=OnGap.PROLONG,
    gap_threshold=10 * MINUTE,
    cleanup=Cleanup(entries_per_record=0, exact=True),
)
STRICT: Final = StateTtl(MINUTE, time=TtlTime.PROCESSING, cleanup=Cleanup(entries_per_record=0))


class Greeting(Struct, frozen=True):
    """The greeting of a guest, and whether either state remembered the guest."""

    at: Timestamp
    guest: str
    lasting: bool
    strict: bool


class Desk(KeyedProcessFunction[Order, Greeting]):
    """Greets a guest, and remembers the guest."""

    lasting = ValueState("lasting", int, ttl=LASTING)
    strict = ValueState("strict", int, ttl=STRICT)

    async def process(self, order: Order, ctx: Context, /) -> None:
        """Emit whether the guest is remembered."""
        result = await self.lasting.value(), await self.strict.value()
        await self.lasting.update(1)
        await self.strict.update(1)
        ctx.collect(Greeting(order.at, order.guest, result[0] is not None, result[1] is not None))


pipeline: Final = (
    Pipeline("lodgers")
    .source("orders", Order, event_time="at")
    .key_by("guest")
    .process("desk", Desk())
    .sink("greetings")
)
