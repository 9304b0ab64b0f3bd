"""Query 12, windows of processing time: the number of bids of a user in 10 seconds of the wall clock.

All bids of a micro-batch have the same processing time: the start of the micro-batch. So the counts are those of
micro-batches, and a window is emitted by the first micro-batch that starts after its end.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, TimeDomain, Timestamp
from headrace.operators import Count, Tumbling
from pipelines.nexmark.records import DISORDER


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    bidder: int
    date_time: Timestamp


class Bids(Struct, frozen=True):
    """How many bids came of a bidder in a window."""

    bidder: int
    bid_count: Annotated[int, Count()]
    window_start: Timestamp
    window_end: Timestamp


pipeline = (
    Pipeline("nexmark_q12")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("bidder")
    .window(Tumbling(timedelta(seconds=10)), time=TimeDomain.PROCESSING_TIME)
    .aggregate("count_bids", Bids)
    .sink("result")
)
