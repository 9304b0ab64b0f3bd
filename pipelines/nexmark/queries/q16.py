"""Query 16, channel statistics: bids, bidders and auctions of a channel and day, by three levels of price."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Count, CountDistinct, Max, Tumbling
from pipelines.nexmark.records import DISORDER


class Bid(Struct, frozen=True):
    """What this query reads of a bid."""

    auction: int
    bidder: int
    price: int
    channel: str
    date_time: Timestamp


def rank1(bid: Bid) -> bool:
    """Tell whether the price is low."""
    return bid.price < 10_000


def rank2(bid: Bid) -> bool:
    """Tell whether the price is in between."""
    return 10_000 <= bid.price < 1_000_000


def rank3(bid: Bid) -> bool:
    """Tell whether the price is high."""
    return bid.price >= 1_000_000


def minute(bid: Bid) -> str:
    """Return the minute of the day, UTC, as in 23:59."""
    return datetime.fromtimestamp(bid.date_time / 1000, UTC).strftime("%H:%M")


class ChannelDay(Struct, frozen=True):
    """The statistics of a channel, and of the day that begins at `window_start`."""

    channel: str
    window_start: Timestamp
    minute: Annotated[str, Max(minute)]
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


pipeline = Pipeline("nexmark_q16")
bids = pipeline.source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER).key_by("channel")
bids.window(Tumbling(timedelta(days=1))).aggregate("channels", ChannelDay).sink("result")
