"""Query 17, auction statistics: the number of bids of an auction per day, and their prices."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Avg, Count, Max, Min, Sum, Tumbling
from pipelines.nexmark.records import DISORDER


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    auction: int
    price: int
    date_time: Timestamp


class AuctionDay(Struct, frozen=True):
    """The statistics of an auction, and of the day that begins at `window_start`."""

    auction: int
    window_start: Timestamp
    total_bids: Annotated[int, Count()]
    rank1_bids: Annotated[int, Count(where=lambda bid: bid.price < 10_000)]
    rank2_bids: Annotated[int, Count(where=lambda bid: 10_000 <= bid.price < 1_000_000)]
    rank3_bids: Annotated[int, Count(where=lambda bid: bid.price >= 1_000_000)]
    min_price: Annotated[int, Min("price")]
    max_price: Annotated[int, Max("price")]
    avg_price: Annotated[float, Avg("price")]
    sum_price: Annotated[int, Sum("price")]


pipeline = (
    Pipeline("nexmark_q17")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("auction")
    .window(Tumbling(timedelta(days=1)))
    .aggregate("days", AuctionDay)
    .sink("result")
)
