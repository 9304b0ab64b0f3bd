"""Query 18, last bid: the latest bid of each bidder for each auction."""

from __future__ import annotations

from headrace import Lifetime, Pipeline
from pipelines.nexmark.records import DISORDER, Bid

pipeline = (
    Pipeline("nexmark_q18")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("bidder", "auction")
    .last_by_time("last_bid", state_ttl=Lifetime.FOREVER)
    .upsert_materialize("latest", primary_key=("bidder", "auction"), upsert_key=("bidder", "auction"))
    .sink("result")
)
