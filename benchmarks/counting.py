"""The jobs of the benchmarks: a count and a sum per key (workloads W1 and W4).

`pipeline` does it with its own code, `plain` with plain functions, `aggregate` and `net_aggregate` with aggregates of the
library, the latter with one result for each key and micro-batch, and `ready_made` with an `AggregateFunction` of its own.
"""

from typing import Annotated

from headrace import (
    AggregateFunction,
    Context,
    Emit,
    KeyedProcessFunction,
    Lifetime,
    Pipeline,
    Struct,
    Timestamp,
    ValueState,
)
from headrace.operators import Count, Max, Sum, running_aggregate


class Click(Struct, frozen=True):
    key: str
    value: int
    seq: int
    ts: Timestamp


class Total(Struct, frozen=True):
    count: int
    sum: int


class Counted(Struct, frozen=True):
    key: str
    seq: int
    count: int
    sum: int


class CountAndSum(KeyedProcessFunction[Click, Counted]):
    total = ValueState("total", Total)

    async def process(self, click: Click, ctx: Context, /) -> None:
        before = await self.total.value() or Total(0, 0)
        after = Total(before.count + 1, before.sum + click.value)
        await self.total.update(after)
        ctx.collect(Counted(click.key, click.seq, after.count, after.sum))


class PlainCountAndSum(KeyedProcessFunction[Click, Counted]):
    """The same with plain `def`."""

    total = ValueState("total", Total)

    def process(self, click: Click, ctx: Context, /) -> None:
        before = self.total.value() or Total(0, 0)
        after = Total(before.count + 1, before.sum + click.value)
        self.total.update(after)
        ctx.collect(Counted(click.key, click.seq, after.count, after.sum))


class Counts(AggregateFunction[Click, Counted, Counted]):
    def create_accumulator(self):
        return Counted("", 0, 0, 0)

    def add(self, click, counted, /):
        return Counted(click.key, click.seq, counted.count + 1, counted.sum + click.value)

    def get_result(self, counted, /):
        return counted

    def merge(self, one, other, /):
        return Counted(one.key, max(one.seq, other.seq), one.count + other.count, one.sum + other.sum)


class Aggregated(Struct, frozen=True):
    key: str
    seq: Annotated[int, Max("seq")]
    count: Annotated[int, Count()]
    sum: Annotated[int, Sum("value")]


def clicks():
    return Pipeline("counting").source("clicks", Click, event_time="ts", order_by=("seq",)).key_by("key")


def counting(function):
    return clicks().process("count_and_sum", function).sink("counts")


def aggregated(emit):
    results = clicks().aggregate("count_and_sum", Aggregated, emit=emit, retract=False, state_ttl=Lifetime.FOREVER)
    return results.sink("counts")


pipeline = counting(CountAndSum())
plain = counting(PlainCountAndSum())
ready_made = counting(running_aggregate(Counts(), takes=Click, gives=Counted))
aggregate = aggregated(Emit.EVERY_CHANGE)
net_aggregate = aggregated(Emit.NET_CHANGE)
