"""Query 1, currency conversion: the price of each bid in euros."""

from __future__ import annotations

from headrace import Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER, Bid


class EuroBid(Struct, frozen=True):
    """A bid in euro cents. Records have no decimal type; a float has 15 digits, and a price 8."""

    auction: int
    bidder: int
    price: float
    date_time: Timestamp
    extra: str


def in_euros(bid: Bid) -> EuroBid:
    """Return the bid at the rate of the benchmark."""
    return EuroBid(bid.auction, bid.bidder, 0.908 * bid.price, bid.date_time, bid.extra)


pipeline = (
    Pipeline("nexmark_q1")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .map(in_euros)
    .sink("result")
)
