"""Query 15, bidding statistics: bids, bidders and auctions of a day, by three levels of price."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, CountDistinct, Tumbling
from pipelines.nexmark.records import DISORDER, Bid


def rank1(bid: Bid) -> bool:
    """Tell whether the price is low."""
    return bid.price < 10_000


def rank2(bid: Bid) -> bool:
    """Tell whether the price is in between."""
    return 10_000 <= bid.price < 1_000_000


def rank3(bid: Bid) -> bool:
    """Tell whether the price is high."""
    return bid.price >= 1_000_000


class Day(Struct, frozen=True):
    """The statistics of the day that begins at `window_start`."""

    window_start: Timestamp
    total_bids: Annotated[int, Count()]
    rank1_bids: Annotated[int, Count(where=rank1)]
    rank2_bids: Annotated[int, Count(where=rank2)]
    rank3_bids: Annotated[int, Count(where=rank3)]
    total_bidders: Annotated[int, CountDistinct("bidder")]
    rank1_bidders: Annotated[int, CountDistinct("bidder", where=rank1)]
    rank2_bidders: Annotated[int, CountDistinct("bidder", where=rank2)]
    rank3_bidders: Annotated[int, CountDistinct("bidder", where=rank3)]
    total_auctions: Annotated[int, CountDistinct("auction")]
    rank1_auctions: Annotated[int, CountDistinct("auction", where=rank1)]
    rank2_auctions: Annotated[int, CountDistinct("auction", where=rank2)]
    rank3_auctions: Annotated[int, CountDistinct("auction", where=rank3)]


pipeline = (
    Pipeline("nexmark_q15")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .key_by(lambda _: 0)
    .window(Tumbling(timedelta(days=1)))
    .aggregate("days", Day)
    .sink("result")
)
