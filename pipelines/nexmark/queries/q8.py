"""Query 8, new users: persons who have registered and started an auction within the same 10 seconds.

It is an EXISTS within windows: a person with several auctions is in the result once.
"""

from __future__ import annotations

from datetime import timedelta

from headrace import Pipeline, Struct, Timestamp
from headrace.operators import Tumbling
from pipelines.nexmark.records import DISORDER


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


def new_user(person: Person) -> NewUser:
    """Return the columns of the query."""
    return NewUser(person.id, person.name, person.date_time - person.date_time % 10_000)


pipeline = Pipeline("nexmark_q8")
persons = pipeline.source("persons", Person, event_time="date_time", out_of_orderness=DISORDER).key_by("id")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER).key_by("seller")
period = Tumbling(timedelta(seconds=10))
new_persons = persons.window(period).semi_join("new_users", auctions.window(period))
new_persons.map(new_user).sink("result")
