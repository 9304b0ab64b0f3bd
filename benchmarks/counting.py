"""The jobs of the benchmarks: a count and a sum per key (workloads W1 and W4).

`pipeline` does it with its own code, `ready_made` with an operator of the library.
"""

from headrace import AggregateFunction, Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.operators import running_aggregate


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


class Counts(AggregateFunction[Click, Counted, Counted]):
    def create_accumulator(self):
        return Counted("", 0, 0, 0)

    def add(self, click, counted, /):
        return Counted(click.key, click.seq, counted.count + 1, counted.sum + click.value)

    def get_result(self, counted, /):
        return counted

    def merge(self, one, other, /):
        return Counted(one.key, max(one.seq, other.seq), one.count + other.count, one.sum + other.sum)


def counting(function):
    clicks = Pipeline("counting").source("clicks", Click, event_time="ts", order_by=("seq",))
    return clicks.key_by("key").process("count_and_sum", function).sink("counts")


pipeline = counting(CountAndSum())
ready_made = counting(running_aggregate(Counts(), takes=Click, gives=Counted))
