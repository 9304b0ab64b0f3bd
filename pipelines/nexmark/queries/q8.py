"""Query 8, new users: persons who have registered and started an auction within the same 10 seconds.

A person with several auctions is joined several times; the table has one row for each person and period.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from headrace import Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER

PERIOD: Final = timedelta(seconds=10)


class Person(Struct, frozen=True):
    """What this query reads of a person."""

    id: int
    name: str
    date_time: Timestamp


class Auction(Struct, frozen=True):
    """What this query reads of an auction."""

    date_time: Timestamp
    seller: int


class NewUser(Struct, frozen=True):
    """A person, and the period of their registration."""

    id: int
    name: str
    window_start: Timestamp


def new_user(person: Person, _auction: Auction) -> NewUser:
    """Return the columns of the query."""
    return NewUser(person.id, person.name, person.date_time - person.date_time % 10_000)


pipeline = Pipeline("nexmark_q8")
persons = pipeline.source("persons", Person, event_time="date_time", out_of_orderness=DISORDER)
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER)
(
    persons.key_by(lambda person: (person.id, person.date_time // 10_000))
    .join(
        "new_users",
        auctions.key_by(lambda auction: (auction.seller, auction.date_time // 10_000)),
        emit=new_user,
        within=(-PERIOD, PERIOD),
    )
    .upsert_materialize("once", primary_key=("id", "window_start"), upsert_key=("id", "window_start"))
    .sink("result")
)
