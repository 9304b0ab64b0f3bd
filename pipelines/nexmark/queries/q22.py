"""Query 22, URL directories: the first three folders of a bid's URL."""

from __future__ import annotations

from headrace import Pipeline, Struct
from pipelines.nexmark.records import DISORDER, Bid


class Folders(Struct, frozen=True):
    """A bid with the folders of its URL; null where the URL has fewer."""

    auction: int
    bidder: int
    price: int
    channel: str
    dir1: str | None
    dir2: str | None
    dir3: str | None


def folders(bid: Bid) -> Folders:
    """Return the bid with the parts 3 to 5 of its URL, counted from 0, between slashes."""
    dir1, dir2, dir3 = [*bid.url.split("/"), None, None, None, None, None, None][3:6]
    return Folders(bid.auction, bid.bidder, bid.price, bid.channel, dir1, dir2, dir3)


pipeline = (
    Pipeline("nexmark_q22")
    .source("bids", Bid, event_time="date_time", out_of_orderness=DISORDER)
    .map(folders)
    .sink("result")
)
