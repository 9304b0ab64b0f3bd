"""Query 19, top 10: the ten highest bids for each auction, with their rank; of equal prices, the earliest."""

from __future__ import annotations

from typing import Annotated

from headrace import Lifetime, Pipeline, Struct, Timestamp
from headrace.operators import Rank
from pipelines.nexmark.records import DISORDER, Bid


class RankedBid(Struct, frozen=True):
    """A bid and its rank."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: Timestamp
    extra: str
    rank_number: Annotated[int, Rank()]


pipeline = (
    Pipeline("nexmark_q19")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by("auction")
    .top("top_ten", 10, by="price", result=RankedBid, state_ttl=Lifetime.FOREVER)
    .upsert_materialize("ranks", primary_key=("auction", "rank_number"), upsert_key=("auction", "rank_number"))
    .sink("result")
)
