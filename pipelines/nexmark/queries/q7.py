"""Query 7, highest bid: the bids with the highest price in 10 seconds. Of equal prices all bids are."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import AggregateFunction, Pipeline, Struct
from headrace.operators import Tumbling
from pipelines.nexmark.records import DISORDER, Bid


class Bids(Struct, frozen=True):
    """The bids with the highest price, so far."""

    bids: list[Bid]


class Highest(AggregateFunction[Bid, Bids, list[Bid]]):
    """Keeps the bids with the highest price."""

    def create_accumulator(self) -> Bids:
        """Begin without bids."""
        return Bids([])

    def add(self, value: Bid, accumulator: Bids, /) -> Bids:
        """Take in a bid."""
        return self.merge(accumulator, Bids([value]))

    def get_result(self, accumulator: Bids, /) -> list[Bid]:
        """Return all of them."""
        return accumulator.bids

    def merge(self, one: Bids, other: Bids, /) -> Bids:
        """Keep those that are as high as the highest."""
        both = one.bids + other.bids
        price = max((bid.price for bid in both), default=0)
        return Bids([bid for bid in both if bid.price == price])


class Window(Struct, frozen=True):
    """The highest bids of 10 seconds."""

    highest: Annotated[list[Bid], Highest()]


pipeline = (
    Pipeline("nexmark_q7")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by(lambda _: 0)
    .window(Tumbling(timedelta(seconds=10)))
    .aggregate("highest", Window)
    .flat_map(lambda window: window.highest, record=Bid)
    .sink("result")
)
