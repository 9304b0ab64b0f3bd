"""Query 3, local item suggestion: auctions of category 10 whose sellers live in Oregon, Idaho or California.

Both sides are kept for good, as in SQL: an auction waits for its seller, and a seller for the auctions of years to come.
"""

from __future__ import annotations

from headrace import Lifetime, Pipeline, Struct, Timestamp
from pipelines.nexmark.records import DISORDER


class Auction(Struct, frozen=True):
    """What this query reads of an auction."""

    id: int
    date_time: Timestamp
    seller: int
    category: int


class Person(Struct, frozen=True):
    """What this query reads of a person."""

    id: int
    name: str
    city: str
    state: str
    date_time: Timestamp


class Suggestion(Struct, frozen=True):
    """An auction and the place of its seller."""

    name: str
    city: str
    state: str
    id: int


def suggestion(auction: Auction, person: Person) -> Suggestion:
    """Return the columns of the query."""
    return Suggestion(person.name, person.city, person.state, auction.id)


pipeline = Pipeline("nexmark_q3")
auctions = pipeline.source("auctions", Auction, event_time="date_time", out_of_orderness=DISORDER)
persons = pipeline.source("persons", Person, event_time="date_time", out_of_orderness=DISORDER)
wanted = auctions.filter(lambda auction: auction.category == 10).key_by("seller")
near = persons.filter(lambda person: person.state in {"OR", "ID", "CA"}).key_by("id")
wanted.join("suggestions", near, emit=suggestion, state_ttl=Lifetime.FOREVER).sink("result")
