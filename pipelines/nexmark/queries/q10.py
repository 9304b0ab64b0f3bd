"""Query 10, log: all bids in a table, with the columns of day and minute that name the folders of Flink's sink."""

from __future__ import annotations

from datetime import UTC, datetime

from headrace import Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Bid


class Logged(Struct, frozen=True):
    """A bid with its day and its minute."""

    auction: int
    bidder: int
    price: int
    date_time: Timestamp
    extra: str
    dt: str
    hm: str


def logged(bid: Bid) -> Logged:
    """Return the bid with its day and its minute, UTC."""
    time = datetime.fromtimestamp(bid.date_time / 1000, UTC)
    day, minute = time.strftime("%Y-%m-%d"), time.strftime("%H:%M")
    return Logged(bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra, day, minute)


pipeline = (
    Pipeline("nexmark_q10")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .map(logged)
    .sink("result")
)
