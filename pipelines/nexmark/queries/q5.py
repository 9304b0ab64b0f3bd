"""Query 5, hot items: the auctions with most bids in the last 10 seconds, every 2 seconds.

Of auctions with equally many bids all are hot. A count has the time of its window's last timestamp, so the counts of all auctions
for one end are in one tumbling window.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, Hopping, Tumbling
from pipelines.nexmark.records import DISORDER


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    auction: int
    date_time: Timestamp


class Bids(Struct, frozen=True):
    """How many bids an auction has in a window."""

    auction: int
    window_end: Timestamp
    num: Annotated[int, Count()]


bids = Pipeline("nexmark_q5").source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
counts = bids.key_by("auction").window(Hopping(timedelta(seconds=10), timedelta(seconds=2))).aggregate("counts", Bids)
hot = counts.key_by("window_end").window(Tumbling(timedelta(seconds=2))).top("hot", 1, by="num", ties=True)
pipeline = hot.sink("result")
