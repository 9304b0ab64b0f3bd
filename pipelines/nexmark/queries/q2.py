"""Query 2, selection: the bids for every 123rd auction."""

from __future__ import annotations

from headrace import Pipeline, Struct
from pipelines.nexmark.records import DISORDER, Bid


class Price(Struct, frozen=True):
    """An auction and the offered price."""

    auction: int
    price: int


pipeline = (
    Pipeline("nexmark_q2")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .filter(lambda bid: bid.auction % 123 == 0)
    .map(lambda bid: Price(bid.auction, bid.price), record=Price)
    .sink("result")
)
