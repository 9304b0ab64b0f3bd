"""Query 9, winning bids: each auction with its highest bid; of equal prices, the earliest.

The bids of an auction are a session, since the auction runs for a minute at most. Here the end of the auction closes it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from msgspec.structs import asdict

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import ArgMax, Session
from pipelines.nexmark.records import DISORDER, LONGEST_AUCTION, Auction, Bid


class Offer(Struct, frozen=True):
    """An auction and a bid."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: Timestamp
    expires: Timestamp
    seller: int
    category: int
    extra: str
    auction: int
    bidder: int
    price: int
    bid_date_time: Timestamp
    bid_extra: str


class Winner(Struct, frozen=True):
    """The best offer for an auction."""

    best: Annotated[Offer, ArgMax(by="price")]


def offer(auction: Auction, bid: Bid) -> Offer:
    """Return both as one record."""
    columns = asdict(auction) | {"auction": bid.auction, "bidder": bid.bidder, "price": bid.price}
    return Offer(**columns, bid_date_time=bid.date_time, bid_extra=bid.extra)


pipeline = Pipeline("nexmark_q9")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER).key_by("id")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("auction")
offers = auctions.join("offers", bids, emit=offer, within=(timedelta(0), LONGEST_AUCTION))
valid = offers.filter(lambda offer: offer.bid_date_time <= offer.expires).key_by("id")
winners = valid.window(Session(LONGEST_AUCTION + timedelta(milliseconds=1))).aggregate("winners", Winner)
winners.map(lambda winner: winner.best, record=Offer).sink("result")
