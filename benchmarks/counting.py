"""The jobs of the benchmarks: a count and a sum per key (workloads W1 and W4).

`pipeline` does it with its own code, `plain` with plain functions, `aggregate` and `net_aggregate` with aggregates of the
library, the latter with one result for each key and micro-batch, and `ready_made` with an `AggregateFunction` of its own. `priced` and
`priced_aggregate` sum a decimal and carry a day.
"""

from datetime import date
from decimal import Decimal
from typing import Annotated

from headrace import (
    AggregateFunction,
    Context,
    Digits,
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


class Sale(Struct, frozen=True):
    key: str
    price: Annotated[Decimal, Digits(18, 2)]
    day: date
    seq: int
    ts: Timestamp


class Sales(Struct, frozen=True):
    count: int
    sum: Decimal


class Sold(Struct, frozen=True):
    key: str
    seq: int
    count: int
    sum: Annotated[Decimal, Digits(18, 2)]
    day: date


class CountAndSumPrices(KeyedProcessFunction[Sale, Sold]):
    total = ValueState("total", Sales)

    async def process(self, sale: Sale, ctx: Context, /) -> None:
        before = await self.total.value() or Sales(0, Decimal(0))
        after = Sales(before.count + 1, before.sum + sale.price)
        await self.total.update(after)
        ctx.collect(Sold(sale.key, sale.seq, after.count, after.sum, sale.day))


class AggregatedPrices(Struct, frozen=True):
    key: str
    seq: Annotated[int, Max("seq")]
    count: Annotated[int, Count()]
    sum: Annotated[Decimal, Digits(18, 2), Sum("price")]
    day: Annotated[date, Max("day")]


def clicks():
    return Pipeline("counting").source("clicks", Click, event_time="ts", order_by=("seq",)).key_by("key")


def counting(function):
    return clicks().process("count_and_sum", function).sink("counts")


def sales():
    return Pipeline("counting").source("clicks", Sale, event_time="ts", order_by=("seq",)).key_by("key")


def aggregated(stream, result, emit):
    results = stream.aggregate("count_and_sum", result, emit=emit, retract=False, state_ttl=Lifetime.FOREVER)
    return results.sink("counts")


pipeline = counting(CountAndSum())
plain = counting(PlainCountAndSum())
ready_made = counting(running_aggregate(Counts(), takes=Click, gives=Counted))
aggregate = aggregated(clicks(), Aggregated, Emit.EVERY_CHANGE)
net_aggregate = aggregated(clicks(), Aggregated, Emit.NET_CHANGE)
priced = sales().process("count_and_sum", CountAndSumPrices()).sink("counts")
priced_aggregate = aggregated(sales(), AggregatedPrices, Emit.EVERY_CHANGE)
