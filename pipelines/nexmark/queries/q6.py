"""Query 6, average selling price: the mean of the winning prices of each seller's last ten closed auctions.

Flink SQL cannot run this query: its OVER windows do not support retractions. Here an auction is emitted once, when
its bidding ends (see query 4), and a seller's list has the last ten auctions by closing time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from headrace import Context, KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState
from headrace.operators import First, Max, Session
from pipelines.nexmark.records import DISORDER, LONGEST_AUCTION


class Auction(Struct, frozen=True):
    """What this query reads of an auction."""

    id: int
    date_time: Timestamp
    expires: Timestamp
    seller: int


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    auction: int
    price: int
    date_time: Timestamp


class Offer(Struct, frozen=True):
    """A bid, with its auction's seller and end."""

    auction: int
    seller: int
    expires: int
    price: int
    in_time: bool

    @classmethod
    def of(cls, auction: Auction, bid: Bid) -> Self:
        """Return a bid with its auction's seller and end."""
        return cls(auction.id, auction.seller, auction.expires, bid.price, bid.date_time <= auction.expires)


class Sold(Struct, frozen=True, order=True):
    """The winning price of an auction, and when the auction closed."""

    expires: Annotated[int, First("expires")]
    id: Annotated[int, First("auction")]
    seller: Annotated[int, First("seller")]
    final: Annotated[int, Max("price")]


class Latest(Struct, frozen=True):
    """The last auctions of a seller."""

    auctions: tuple[Sold, ...] = ()


class Average(Struct, frozen=True):
    """The mean of a seller's last winning prices."""

    seller: int
    avg_price: float


class MeanOfTen(KeyedProcessFunction[Sold, Average]):
    """Keeps the last ten auctions of a seller."""

    latest = ValueState("latest", Latest)

    async def process(self, sold: Sold, ctx: Context, /) -> None:
        """Emit the mean with one more auction."""
        before = await self.latest.value() or Latest()
        last = sorted([*before.auctions, sold])[-10:]
        await self.latest.update(Latest(tuple(last)))
        ctx.collect(Average(sold.seller, sum(auction.final for auction in last) / len(last)), RowKind.UPDATE_AFTER)


pipeline = Pipeline("nexmark_q6")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER).key_by("id")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("auction")
offers = auctions.join("offers", bids, emit=Offer.of, within=(timedelta(0), LONGEST_AUCTION))
valid = offers.filter(lambda offer: offer.in_time).key_by("auction")
sold = valid.window(Session(LONGEST_AUCTION + timedelta(milliseconds=1))).aggregate("sold", Sold)
means = sold.key_by("seller").process("mean_of_ten", MeanOfTen())
means.upsert_materialize("means", primary_key=("seller",), upsert_key=("seller",)).sink("result")
