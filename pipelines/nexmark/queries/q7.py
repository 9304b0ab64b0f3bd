"""Query 7, highest bid: the bids with the highest price in 10 seconds. Of equal prices all bids are."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import Pipeline
from headrace.operators import Tumbling
from pipelines.nexmark.records import DISORDER, Bid

PERIOD: Final = timedelta(seconds=10)

bids = Pipeline("nexmark_q7").source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
winners = bids.key_by(lambda _: 0).window(Tumbling(PERIOD)).top("winners", 1, by="price", ties=True)
pipeline = winners.sink("result")
