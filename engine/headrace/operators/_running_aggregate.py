"""Aggregate the records of each key, and emit every new result."""

from __future__ import annotations

from typing import Any, TypeVar

from headrace.api import AggregateFunction, AggregatingState, Context, KeyedProcessFunction, RowKind, StateTtl, Struct
from headrace.api.changelog_mode import UPSERTS_OF_UNKNOWN_KEY

Acc = TypeVar("Acc")
In = TypeVar("In", bound=Struct)
Out = TypeVar("Out", bound=Struct)


def running_aggregate(
    function: AggregateFunction[In, Acc, Out], /, *, takes: type[In], gives: type[Out], ttl: StateTtl | None = None
) -> KeyedProcessFunction[In, Out]:
    """Return a keyed function that adds each record to its key's accumulator and emits the result.

    `takes` and `gives` are the record types of input and output. A result is an update (+U): write it into a merge sink
    behind `upsert_materialize`, or into an append sink as a log of results. Use it on insert-only streams: a retraction
    is added like any other record. The state's name is `aggregate`. `ttl` is its TTL; by default (None) keys are kept
    for ever. With a `ttl`, a record that is older than the watermark by more than `ttl` emits nothing: its result has
    expired already.

        .key_by("customer").process("totals", running_aggregate(Totals(), takes=Order, gives=Total))

    Raises `TypeError` unless `function` names its types, as in `AggregateFunction[Order, Sum, Total]`.
    """

    class RunningAggregate(KeyedProcessFunction[takes, gives]):  # type: ignore[valid-type]  # known when it is called
        _emits = UPSERTS_OF_UNKNOWN_KEY
        aggregate = AggregatingState("aggregate", function, ttl=ttl)

        async def process(self, record: Any, ctx: Context, /) -> None:
            await self.aggregate.add(record)
            result = await self.aggregate.get()
            if result is not None:
                ctx.collect(result, RowKind.UPDATE_AFTER)

    return RunningAggregate()
