"""Keep the first record of each key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, TypeVar

from headrace.api import Context, KeyedProcessFunction, StateTtl, Struct, TtlTime, UpdateType, ValueState

Record = TypeVar("Record", bound=Struct)


def deduplicate(record: type[Record], /, *, ttl: timedelta) -> KeyedProcessFunction[Record, Record]:
    """Return a keyed function that emits the first record of each key and drops those that follow it.

    A key is forgotten `ttl` of event time after its first record: state does not grow for ever, and a record that comes
    later counts as a first one again. Records are taken in arrival order, so the result does not depend on parallelism.
    Use it on insert-only streams: a retraction is dropped like any other record.

        .key_by("order_id").process("first_orders", deduplicate(Order, ttl=timedelta(days=7)))

    Raises `ValueError` for a `ttl` below a millisecond.
    """

    class Deduplicate(KeyedProcessFunction[record, record]):  # type: ignore[valid-type]  # known when it is called
        seen = ValueState("seen", bool, ttl=StateTtl(ttl, update=UpdateType.ON_CREATE_AND_WRITE, time=TtlTime.EVENT))

        async def process(self, incoming: Any, ctx: Context, /) -> None:
            if await self.seen.value() is None:
                await self.seen.update(True)
                ctx.collect(incoming)

    return Deduplicate()
