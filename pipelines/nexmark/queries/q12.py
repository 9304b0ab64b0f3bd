"""Query 12, windows of processing time: the number of bids of a user in 10 seconds of the wall clock.

All bids of a micro-batch have the same processing time: the start of the micro-batch. So the counts are those of
micro-batches, and a window is emitted by the first micro-batch that starts after its end.
"""

from __future__ import annotations

from typing import Final

from headrace import Context, KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from pipelines.nexmark.records import DISORDER

SIZE: Final = 10_000


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    bidder: int
    date_time: Timestamp


class Count(Struct, frozen=True):
    """How many bids came of a bidder in a window."""

    bidder: int
    bid_count: int
    window_start: Timestamp
    window_end: Timestamp


class CountBids(KeyedProcessFunction[Bid, Count]):
    """Counts until the window ends; only one window is open at a time, since processing time only grows."""

    bids = ValueState("bids", int)

    async def process(self, _bid: Bid, ctx: Context, /) -> None:
        """Count a bid, and have the window's end wake the key."""
        ctx.timers.register_processing_time((ctx.processing_time // SIZE + 1) * SIZE)
        await self.bids.update((await self.bids.value() or 0) + 1)

    async def on_timer(self, timestamp: int, ctx: Context, /) -> None:
        """Emit the count."""
        ctx.collect(Count(int(ctx.key), await self.bids.value() or 0, timestamp - SIZE, timestamp))
        await self.bids.clear()


pipeline = (
    Pipeline("nexmark_q12")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("bidder")
    .process("count_bids", CountBids())
    .sink("result")
)
