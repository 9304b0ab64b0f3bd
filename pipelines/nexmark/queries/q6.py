"""Query 6, average selling price: the mean of the winning prices of each seller's last ten closed auctions.

Flink SQL cannot run this query: its OVER windows do not support retractions. Here an auction is emitted once, when
its bidding ends (see query 4), and a seller's last ten auctions are those by closing time.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Self

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.operators import Avg, First, Max, Session
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


class Sold(Struct, frozen=True):
    """The winning price of an auction, and when the auction closed."""

    expires: Annotated[int, First("expires")]
    id: Annotated[int, First("auction")]
    seller: Annotated[int, First("seller")]
    final: Annotated[int, Max("price")]


class Average(Struct, frozen=True):
    """The mean of a seller's last winning prices."""

    seller: int
    avg_price: Annotated[float, Avg("final")]


def closing(auction: Sold) -> tuple[int, int]:
    """Return what orders the auctions of a seller."""
    return auction.expires, auction.id


pipeline = Pipeline("nexmark_q6")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER).key_by("id")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("auction")
offers = auctions.join("offers", bids, emit=Offer.of, within=(timedelta(0), LONGEST_AUCTION))
valid = offers.filter(lambda offer: offer.in_time).key_by("auction")
sold = valid.window(Session(LONGEST_AUCTION + timedelta(milliseconds=1))).aggregate("sold", Sold).key_by("seller")
latest = sold.top("latest", 10, by=closing, state_ttl=Lifetime.FOREVER)
means = latest.key_by("seller").aggregate("mean_of_ten", Average, state_ttl=Lifetime.FOREVER)
means.sink("result", key="seller")
