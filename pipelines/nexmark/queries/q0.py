"""Query 0, pass through: all bids unchanged."""

from __future__ import annotations

from headrace import Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Bid


class Copy(Struct, frozen=True):
    """A bid without its channel."""

    auction: int
    bidder: int
    price: int
    date_time: Timestamp
    extra: str


def copied(bid: Bid) -> Copy:
    """Return the columns of the query."""
    return Copy(bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra)


pipeline = (
    Pipeline("nexmark_q0")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .map(copied)
    .sink("result")
)
