"""A feed of changes of customers, its tables, and what they are by a fold over all events, sorted by their sequence."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter

from msgspec.structs import replace

from headrace import History, Lifetime, Pipeline, Struct, Timestamp
from headrace.testing import KeyedHarness
from tests.unit.support.changelog_table import by_fields

FOREVER = Lifetime.FOREVER


class Change(Struct, frozen=True):
    """An event of a database's log."""

    id: str
    lsn: int | None
    at: Timestamp
    op: str
    tier: str | None = None
    city: str | None = None


class Customer(Struct, frozen=True):
    id: str
    tier: str | None
    city: str | None


class CustomerVersion(Struct, frozen=True):
    id: str
    tier: str | None
    city: str | None
    valid_from: int
    valid_to: int | None


def changes_of(history, **options):
    """Return the arguments of `apply_changes` for a table of customers."""
    record = CustomerVersion if history is History.SCD2 else Customer
    bounds = {"corrections": FOREVER} if history is History.SCD2 or options.get("ignore_nulls") else {}
    own = {"history": history, "record": record, "deletes": ("op", "d"), "tombstones": FOREVER, **bounds}
    return {"key": ("id",), "sequence_by": "lsn", **own, **options}


def stream_of(history, **options):
    source = Pipeline("shop").source("changes", Change, event_time="at")
    return source.apply_changes("customers", **changes_of(history, **options))


def harness_of(history, *, backend="hashmap", late=False, **options):
    stream = stream_of(history, **options)
    if late:
        stream.side("late", Change)
    sides = {"late": Change} if late else {}
    return KeyedHarness(stream.operators[-1].function, key=attrgetter("id"), backend=backend, side_outputs=sides)


def filled(events):
    """Yield the events of a key in order, with the values before their nulls since the last deletion."""
    before = None
    for event in events:
        if event.op == "d" or before is None:
            result = event
        else:
            values = {name: getattr(event, name) or getattr(before, name) for name in ("tier", "city")}
            result = replace(event, **values)
        before = None if event.op == "d" else result
        yield result


def versions(events, track=("tier", "city"), *, ignore_nulls=False):
    """Return the versions of all keys: runs of events whose tracked fields are equal, up to the next run or deletion."""
    rows = []
    for _, of_key in groupby(sorted(events, key=attrgetter("id", "lsn")), key=attrgetter("id")):
        current = None
        for event in filled(of_key) if ignore_nulls else of_key:
            values = [getattr(event, name) for name in track]
            is_new = current is None or values != [getattr(current, name) for name in track]
            if current is not None and (event.op == "d" or is_new):
                rows.append(replace(current, valid_to=event.lsn))
                current = None
            if event.op != "d":
                begins = event.lsn if current is None else current.valid_from
                current = CustomerVersion(event.id, event.tier, event.city, begins, None)
        rows += [] if current is None else [current]
    return by_fields(rows)


def current(events, **options):
    rows = [row for row in versions(events, **options) if row.valid_to is None]
    return by_fields(Customer(row.id, row.tier, row.city) for row in rows)


MODELS = {History.SCD1: (current, Customer), History.SCD2: (versions, CustomerVersion)}


def give(harness, *events):
    for event in events:
        harness.process(event, timestamp=event.at)
    harness.drain()
