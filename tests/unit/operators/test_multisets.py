"""Values by entry: a change of a key reads and writes what it changes, however many values the key has."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any
from unittest import mock
from uuid import UUID

import msgspec
import pytest

from headrace import Digits, Emit, Lifetime, Pipeline, RowKind, Struct, Timestamp
from headrace.errors import StateSchemaError
from headrace.operators import CountDistinct, Max, Min
from headrace.testing import KeyedHarness, PipelineHarness

INSERT, BEFORE, AFTER, DELETE = RowKind
FOREVER = Lifetime.FOREVER
MANY = 10_000


class Bid(Struct, frozen=True):
    auction: str
    at: Timestamp
    price: int | None = 0


class Lowest(Struct, frozen=True):
    auction: str
    price: Annotated[int | None, Min("price")]


class Highest(Struct, frozen=True):
    auction: str
    price: Annotated[int | None, Max("price")]


class Prices(Struct, frozen=True):
    auction: str
    prices: Annotated[int, CountDistinct("price")]


def aggregated(result, *, record: Any = Bid, state_ttl=FOREVER, emit=Emit.EVERY_CHANGE):
    source = Pipeline("auctions").source("bids", record, event_time="at", row_kind="kind").key_by("auction")
    return source.aggregate("result", result, emit=emit, state_ttl=state_ttl)


def harness_of(result, prices, **options):
    """Return a harness that has taken a bid of each price."""
    harness = PipelineHarness(aggregated(result, **options).sink("result", key="auction"))
    written_by(harness, prices)
    return harness


def written_by(harness, prices, kind=INSERT):
    """Run a micro-batch of bids, and return how many rows of state it writes, by state."""
    harness.feed("bids", [Bid("a", 1, price) for price in prices], kinds=[kind] * len(prices))
    harness.run()
    rows = harness.table("keyed_state").to_pylist()
    last = max(row["checkpoint_id"] for row in rows)
    return Counter(row["state"] for row in rows if row["checkpoint_id"] == last)


@pytest.mark.slow
@pytest.mark.parametrize("emit", Emit)
@pytest.mark.parametrize("kind", [INSERT, DELETE])
def test_one_value_of_many_writes_two_rows(emit, kind):
    harness = harness_of(Prices, range(MANY), emit=emit)
    for price in (MANY, MANY) if kind is INSERT else (5, 6):
        assert written_by(harness, [price], kind) == {"aggregate": 1, "aggregate_values": 1}
    assert harness.sink("result") == [Prices("a", MANY + 1 if kind is INSERT else MANY - 2)]


def test_few_values_are_in_one_row():
    harness = harness_of(Prices, range(100))
    assert written_by(harness, [100]) == {"aggregate": 1}
    assert harness.sink("result") == [Prices("a", 101)]


@pytest.mark.slow
@pytest.mark.parametrize("result", [Lowest, Highest])
def test_retracted_value_of_many_writes_few_rows(result):
    prices = random.Random(1).sample(range(MANY), MANY)
    harness = harness_of(result, prices)
    best_first = sorted(prices, reverse=result is Highest)
    assert written_by(harness, [best_first[5000]], DELETE) == {"aggregate": 1, "aggregate_values": 1}
    assert written_by(harness, [best_first[0]], DELETE) == {"aggregate": 1}
    assert harness.sink("result") == [result("a", best_first[1])]
    removed = written_by(harness, best_first[1:200], DELETE)
    assert removed["aggregate_values"] < 200 + 64  # the next ones move to the row
    assert harness.sink("result") == [result("a", best_first[200])]


@pytest.mark.parametrize("result", [Lowest, Highest])
def test_next_extreme_takes_few_reads(result):
    function = aggregated(result).operators[-1].function
    arguments = {"key": attrgetter("auction"), "backend": "rocksdb"}
    with KeyedHarness(function, **arguments) as harness:
        for price in range(2000):
            harness.process(Bid("a", 1, price), timestamp=1)
        snapshot = harness.snapshot()
    with KeyedHarness.restore(snapshot, aggregated(result).operators[-1].function, **arguments) as harness:
        for price in range(100) if result is Lowest else range(1999, 1899, -1):
            harness.process(Bid("a", 1, price), timestamp=1, kind=DELETE)
        assert harness.kinds()[-1] == (AFTER, result("a", 100 if result is Lowest else 1899))
        assert harness.statistics().cache_misses < 10


def test_value_that_never_came_goes_to_quarantine():
    harness = harness_of(Prices, range(1000))
    written_by(harness, [5, 5, 2000], DELETE)
    assert harness.sink("result") == [Prices("a", 999)]
    assert harness.table("quarantine").num_rows == 2


def test_wrong_retractions_leave_no_entry():
    harness = harness_of(Prices, range(300))
    written_by(harness, [None] * 300, DELETE)
    assert harness.live("keyed_state") == harness.sink("result") == []
    written_by(harness, [7])
    assert harness.sink("result") == [Prices("a", 1)]


VALUES: dict[Any, list[Any]] = {
    int: [-(1 << 63), -5, 0, 3, 200, (1 << 63) - 1],
    float: [-1e300, -2.5, 0.0, 0.1, 3.0, 7e200],
    Annotated[Decimal, Digits(9, 2)]: [Decimal(text) for text in ("-10.5", "-9.75", "0.0", "0.1", "9.50", "100")],
    str: ["", "A", "Z", "a", "ab", "ä", "\U0001f600"],
    bytes: [b"", b"\x00", b"a", b"a\x00", b"\xff"],
    bool: [False, True],
    date: [date(1, 1, 1), date(1969, 5, 1), date(2024, 2, 29), date(9999, 12, 31)],
    datetime: [datetime(1960 + 30 * place, 1, 1, 0, 0, 0, 5 * place, tzinfo=UTC) for place in range(5)],
    time: [time(0), time(0, 0, 0, 1), time(9, 30), time(23, 59)],
    timedelta: [timedelta(days=-3), timedelta(0), timedelta(microseconds=1), timedelta(days=5)],
    UUID: [UUID(int=number) for number in (0, 1, 1 << 64, (1 << 128) - 1)],
}


@pytest.mark.parametrize("takes_larger", [False, True])
@pytest.mark.parametrize("kind", VALUES, ids=str)
def test_stored_values_keep_their_order(kind, takes_larger):
    fields = [("auction", str), ("at", Timestamp), ("value", kind)]
    item = msgspec.defstruct("Item", fields, bases=(Struct,), frozen=True)
    aggregate = Max("value") if takes_larger else Min("value")
    fields = [("auction", str), ("value", Annotated[kind, aggregate])]
    extreme = msgspec.defstruct("Extreme", fields, bases=(Struct,), frozen=True)
    values, chance = VALUES[kind], random.Random(3)
    arguments = {"key": attrgetter("auction")}
    with mock.patch("headrace.operators._multisets.MOST_FIRST", 2):
        harness = KeyedHarness(aggregated(extreme, record=item).operators[-1].function, **arguments)
        for value in chance.sample(values, len(values)):
            harness.process(item("a", 1, value), timestamp=1)
        for value in sorted(values, reverse=takes_larger):
            snapshot = harness.snapshot()
            harness.close()
            function = aggregated(extreme, record=item).operators[-1].function
            harness = KeyedHarness.restore(snapshot, function, **arguments)
            harness.process(item("a", 1, value), timestamp=1, kind=DELETE)
            (kind_of_change, row), *_ = harness.kinds()
            assert (kind_of_change.is_retraction, row) == (True, extreme("a", value))
        harness.close()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((Lowest, FOREVER), (Highest, FOREVER)),
        ((Lowest, FOREVER), (Lowest, timedelta(days=1))),
        ((Prices, timedelta(days=1)), (Prices, FOREVER)),
    ],
)
def test_other_form_of_values_is_refused(before, after):
    harness = harness_of(before[0], range(100), state_ttl=before[1])
    harness.change(pipeline=aggregated(after[0], state_ttl=after[1]).sink("result", key="auction"))
    harness.feed("bids", [Bid("a", 1)], kinds=[INSERT])
    with pytest.raises(StateSchemaError, match="state '"):
        harness.run()
