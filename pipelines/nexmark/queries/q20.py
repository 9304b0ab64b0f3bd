"""Query 20, expand bid with auction: bids for auctions of category 10, with the auction.

Both sides are kept for good, as in SQL.
"""

from __future__ import annotations

from headrace import Lifetime, Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Auction, Bid


class Expanded(Struct, frozen=True):
    """A bid and its auction."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    bid_date_time: Timestamp
    bid_extra: str
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    auction_date_time: Timestamp
    expires: Timestamp
    seller: int
    category: int
    auction_extra: str


def expanded(bid: Bid, auction: Auction) -> Expanded:
    """Return both as one record."""
    columns = (bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.date_time, bid.extra)
    item = (auction.item_name, auction.description, auction.initial_bid, auction.reserve, auction.date_time)
    return Expanded(*columns, *item, auction.expires, auction.seller, auction.category, auction.extra)


pipeline = Pipeline("nexmark_q20")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("auction")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER)
wanted = auctions.filter(lambda auction: auction.category == 10).key_by("id")
bids.join("expanded", wanted, emit=expanded, state_ttl=Lifetime.FOREVER).sink("result")
