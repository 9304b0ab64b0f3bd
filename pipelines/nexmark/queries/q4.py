"""Query 4, average price: the mean of the winning prices of each category.

The bids of an auction are a session, since the auction runs for a minute at most. Here the end of the auction closes it.
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
    category: int


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    auction: int
    price: int
    date_time: Timestamp


class Offer(Struct, frozen=True):
    """A bid, with the category of its auction."""

    auction: int
    category: int
    price: int
    in_time: bool

    @classmethod
    def of(cls, auction: Auction, bid: Bid) -> Self:
        """Return a bid with its auction's category."""
        return cls(auction.id, auction.category, bid.price, bid.date_time <= auction.expires)


class Sold(Struct, frozen=True):
    """The winning price of an auction."""

    category: Annotated[int, First("category")]
    final: Annotated[int, Max("price")]


class Average(Struct, frozen=True):
    """The mean of the winning prices of a category."""

    category: int
    final: Annotated[float, Avg("final")]


pipeline = Pipeline("nexmark_q4")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER).key_by("id")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("auction")
offers = auctions.join("offers", bids, emit=Offer.of, within=(timedelta(0), LONGEST_AUCTION))
valid = offers.filter(lambda offer: offer.in_time).key_by("auction")
sold = valid.window(Session(LONGEST_AUCTION + timedelta(milliseconds=1))).aggregate("sold", Sold)
sold.key_by("category").aggregate("mean", Average, state_ttl=Lifetime.FOREVER).sink("result", key="category")
