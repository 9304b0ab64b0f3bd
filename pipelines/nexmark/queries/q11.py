"""Query 11, user sessions: the number of bids of a user until a gap of 10 seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, Session
from pipelines.nexmark.records import DISORDER


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    bidder: int
    date_time: Timestamp


class Visit(Struct, frozen=True):
    """A session of a bidder."""

    bidder: int
    bid_count: Annotated[int, Count()]
    window_start: Timestamp
    window_end: Timestamp


pipeline = (
    Pipeline("nexmark_q11")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("bidder")
    .window(Session(timedelta(seconds=10)))
    .aggregate("sessions", Visit)
    .sink("result")
)
