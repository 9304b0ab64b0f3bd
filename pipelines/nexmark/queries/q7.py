"""Query 7, highest bid: the bids with the highest price in 10 seconds. Of equal prices all bids are."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Final

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Max, Tumbling
from pipelines.nexmark.records import DISORDER, Bid

PERIOD: Final = timedelta(seconds=10)


class Highest(Struct, frozen=True):
    """The highest price of 10 seconds."""

    window_start: Timestamp
    price: Annotated[int, Max("price")]


bids = Pipeline("nexmark_q7").source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
highest = bids.key_by(lambda _: 0).window(Tumbling(PERIOD)).aggregate("highest", Highest)
winners = bids.key_by(lambda bid: (bid.date_time - bid.date_time % 10_000, bid.price)).join(
    "winners",
    highest.key_by("window_start", "price"),
    emit=lambda bid, _: bid,
    record=Bid,
    within=(timedelta(0), PERIOD),
)
pipeline = winners.sink("result")
