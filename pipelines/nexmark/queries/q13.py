"""Query 13, bounded side input: bids with the text that a table of 10,000 rows has for their auction.

The table is a second source. Its rows are older than all bids, so they arrive first, and all tasks keep them.
"""

from __future__ import annotations

from headrace import BroadcastContext, BroadcastState, Context, KeyedBroadcastFunction, Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Bid, SideInput


class Enriched(Struct, frozen=True):
    """A bid with the text of its auction's key."""

    auction: int
    bidder: int
    price: int
    date_time: Timestamp
    value: str


class LookUp(KeyedBroadcastFunction[Bid, SideInput, Enriched]):
    """Joins bids with the earlier rows of the table."""

    values = BroadcastState("values", int, str)

    async def process(self, bid: Bid, ctx: Context, /) -> None:
        """Emit the bid, if the table has its key."""
        if (value := self.values.get(bid.auction % 10_000)) is not None:
            ctx.collect(Enriched(bid.auction, bid.bidder, bid.price, bid.date_time, value))

    def process_broadcast(self, row: SideInput, _ctx: BroadcastContext, /) -> None:
        """Take in a row of the table."""
        self.values.put(row.key, row.value)


pipeline = Pipeline("nexmark_q13")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
side_input = pipeline.source("side_input", SideInput, event_time="date_time")
bids.key_by("auction").connect(side_input.broadcast()).process("look_up", LookUp()).sink("result")
