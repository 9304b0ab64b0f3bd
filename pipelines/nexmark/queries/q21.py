"""Query 21, channel ids: the number of a known channel, else the id in the URL; bids without either are left out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from headrace import Pipeline, Struct
from pipelines.nexmark.records import DISORDER, Bid

IDS: Final = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
IN_URL: Final = re.compile("(?:&|^)channel_id=([^&]*)")


class Channel(Struct, frozen=True):
    """A bid with the id of its channel."""

    auction: int
    bidder: int
    price: int
    channel: str
    channel_id: str


def with_channel_id(bid: Bid) -> Iterator[Channel]:
    """Yield the bid with its channel's id, if it has one."""
    match = IN_URL.search(bid.url)
    channel_id = IDS.get(bid.channel.lower(), match[1] if match else None)
    if channel_id is not None:
        yield Channel(bid.auction, bid.bidder, bid.price, bid.channel, channel_id)


pipeline = (
    Pipeline("nexmark_q21")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .flat_map(with_channel_id, record=Channel)
    .sink("result")
)
