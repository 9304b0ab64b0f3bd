"""The job of the benchmarks: a count and a sum per key (workloads W1 and W4)."""

from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState


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


pipeline = (
    Pipeline("counting")
    .source("clicks", Click, event_time="ts", order_by=("seq",))
    .key_by("key")
    .process("count_and_sum", CountAndSum())
    .sink("counts")
)
