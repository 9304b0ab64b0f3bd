"""Query 5, hot items: the auctions with most bids in the last 10 seconds, every 2 seconds.

Of auctions with equally many bids all are hot. The windows of one end are all in the same tumbling window behind them, since a
result has the time of its window's last moment.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import AggregateFunction, Pipeline, Struct, Timestamp
from headrace.operators import Count, Hopping, Tumbling
from pipelines.nexmark.records import DISORDER, Bid


class Bids(Struct, frozen=True):
    """How many bids an auction has in a window."""

    auction: int
    window_end: Timestamp
    num: Annotated[int, Count()]


class Most(Struct, frozen=True):
    """The auctions with most bids, so far."""

    auctions: list[Bids]


class Hottest(AggregateFunction[Bids, Most, list[Bids]]):
    """Keeps the auctions with most bids."""

    def create_accumulator(self) -> Most:
        """Begin without auctions."""
        return Most([])

    def add(self, value: Bids, accumulator: Most, /) -> Most:
        """Take in an auction."""
        return self.merge(accumulator, Most([value]))

    def get_result(self, accumulator: Most, /) -> list[Bids]:
        """Return all of them."""
        return accumulator.auctions

    def merge(self, one: Most, other: Most, /) -> Most:
        """Keep those that have as many as the first."""
        both = one.auctions + other.auctions
        most = max((bids.num for bids in both), default=0)
        return Most([bids for bids in both if bids.num == most])


class Hot(Struct, frozen=True):
    """The hot items of a window."""

    items: Annotated[list[Bids], Hottest()]


pipeline = (
    Pipeline("nexmark_q5")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("auction")
    .window(Hopping(timedelta(seconds=10), timedelta(seconds=2)))
    .aggregate("bids_of_auctions", Bids)
    .key_by("window_end")
    .window(Tumbling(timedelta(seconds=2)))
    .aggregate("hottest", Hot)
    .flat_map(lambda hot: hot.items, record=Bids)
    .sink("result")
)
