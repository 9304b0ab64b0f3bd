"""Query 5, hot items: the auctions with most bids in the last 10 seconds, every 2 seconds.

Of auctions with equally many bids all are hot. A count has the time of its window's last moment, so the counts of all auctions
for one end are in one tumbling window, and are joined with its result at that moment.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, Hopping, Max, Tumbling
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


class Most(Struct, frozen=True):
    """The largest of the counts in a window."""

    window_end: Timestamp
    num: Annotated[int, Max("num")]


bids = Pipeline("nexmark_q5").source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
counts = bids.key_by("auction").window(Hopping(timedelta(seconds=10), timedelta(seconds=2))).aggregate("counts", Bids)
most = counts.key_by("window_end").window(Tumbling(timedelta(seconds=2))).aggregate("most", Most)
hot = counts.key_by("window_end", "num").join(
    "hot",
    most.key_by("window_end", "num"),
    emit=lambda count, _: count,
    record=Bids,
    within=(timedelta(0), timedelta(0)),
)
pipeline = hot.sink("result")
