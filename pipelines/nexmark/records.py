"""The three tables of Nexmark: persons sell and bid, auctions run from `date_time` to `expires`, bids offer a price."""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import Struct, Timestamp

DISORDER: Final = timedelta(seconds=4)
"""How far the watermark stays behind, in all queries: the generator delivers no event later, unless it is asked to."""

LONGEST_AUCTION: Final = timedelta(minutes=1)
"""How long an auction runs at most, from `date_time` to `expires`."""


class Person(Struct, frozen=True):
    """A person who has registered at the auction house."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: Timestamp
    extra: str


class Auction(Struct, frozen=True):
    """An item that a person sells. Bids count from `date_time` to `expires`, both included."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: Timestamp
    expires: Timestamp
    seller: int
    category: int
    extra: str


class Bid(Struct, frozen=True):
    """A person's offer for an item, in cents."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: Timestamp
    extra: str


class SideInput(Struct, frozen=True):
    """A row of the bounded table that query 13 looks up: the text that belongs to a key."""

    key: int
    value: str
    date_time: Timestamp
