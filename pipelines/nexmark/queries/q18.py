"""Query 18, last bid: the latest bid of each bidder for each auction."""

from __future__ import annotations

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, ValueState
from pipelines.nexmark.records import DISORDER, Bid


class LastBid(KeyedProcessFunction[Bid, Bid]):
    """Keeps the time of the latest bid."""

    latest = ValueState("latest", int)

    async def process(self, bid: Bid, ctx: Context, /) -> None:
        """Emit a bid that is later than those before it."""
        if bid.date_time > (await self.latest.value() or 0):
            await self.latest.update(bid.date_time)
            ctx.collect(bid, RowKind.UPDATE_AFTER)


pipeline = (
    Pipeline("nexmark_q18")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("bidder", "auction")
    .process("last_bid", LastBid())
    .upsert_materialize("latest", primary_key=("bidder", "auction"), upsert_key=("bidder", "auction"))
    .sink("result")
)
