"""Query 19, top 10: the ten highest bids for each auction, with their rank; of equal prices, the earliest."""

from __future__ import annotations

import msgspec

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState
from pipelines.nexmark.records import DISORDER, Bid


class Top(Struct, frozen=True):
    """The highest bids, the highest one first."""

    bids: tuple[Bid, ...] = ()


class RankedBid(Struct, frozen=True):
    """A bid and its rank."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: Timestamp
    extra: str
    rank_number: int


class TopTen(KeyedProcessFunction[Bid, RankedBid]):
    """Keeps the ten highest bids."""

    top = ValueState("top", Top)

    async def process(self, bid: Bid, ctx: Context, /) -> None:
        """Emit the ranks that have another bid now."""
        before = (await self.top.value() or Top()).bids
        after = sorted([*before, bid], key=lambda one: (-one.price, one.date_time))[:10]
        await self.top.update(Top(tuple(after)))
        for place, one in enumerate(after):
            if one not in before[place : place + 1]:
                ctx.collect(RankedBid(**msgspec.structs.asdict(one), rank_number=place + 1), RowKind.UPDATE_AFTER)


pipeline = (
    Pipeline("nexmark_q19")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("auction")
    .process("top_ten", TopTen())
    .upsert_materialize("ranks", primary_key=("auction", "rank_number"), upsert_key=("auction", "rank_number"))
    .sink("result")
)
