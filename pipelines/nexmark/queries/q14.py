"""Query 14, calculation: bids of some prices with the time of day, and the number of letters c in their text."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace import Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Bid


class Calculated(Struct, frozen=True):
    """A bid in euro cents, with the computed values."""

    auction: int
    bidder: int
    price: float
    bid_time_type: str
    date_time: Timestamp
    extra: str
    c_counts: int


def calculated(bid: Bid) -> Calculated:
    """Return the computed values of a bid."""
    hour = datetime.fromtimestamp(bid.date_time / 1000, UTC).hour
    kind = "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"
    return Calculated(bid.auction, bid.bidder, 0.908 * bid.price, kind, bid.date_time, bid.extra, bid.extra.count("c"))


pipeline = (
    Pipeline("nexmark_q14")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .map(calculated)
    .filter(lambda bid: 1_000_000 < bid.price < 50_000_000)
    .sink("result")
)
