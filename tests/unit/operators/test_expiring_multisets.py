"""Values by entry of rows that expire: a key forgets all of them at once, as if they were in its row."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Cleanup, ExpiryClock, OnGap, Pipeline, RowKind, StateTtl, Struct, Timestamp, TtlTime, UpdateType
from headrace.operators import Count, CountDistinct, Max, Min
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.support.fuzzing import examples

INSERT, BEFORE, AFTER, DELETE = RowKind
TTL = timedelta(milliseconds=10)
CLOCKS = [
    (TtlTime.EVENT, None),
    (TtlTime.EVENT, ExpiryClock.PROCESSING_TIME),
    (TtlTime.PROCESSING, None),
]


class Bid(Struct, frozen=True):
    auction: str
    at: Timestamp
    price: int | None


class Prices(Struct, frozen=True):
    auction: str
    bids: Annotated[int, Count()]
    prices: Annotated[int, CountDistinct("price")]
    even: Annotated[int, CountDistinct("price", where=lambda bid: bid.price is not None and bid.price % 2 == 0)]
    lowest: Annotated[int | None, Min("price")]
    highest: Annotated[int | None, Max("price")]


class Distinct(Struct, frozen=True):
    auction: str
    prices: Annotated[int, CountDistinct("price")]


@st.composite
def lifetimes(draw):
    """Draw all that decides when a row expires."""
    time, expiry = draw(st.sampled_from(CLOCKS))
    prolongs = draw(st.booleans())
    return StateTtl(
        TTL,
        update=draw(st.sampled_from(UpdateType)),
        time=time,
        expiry=expiry,
        cleanup=Cleanup(exact=draw(st.booleans()), entries_per_record=draw(st.integers(0, 2))),
        on_gap=OnGap.PROLONG if prolongs else OnGap.EXPIRE,
        gap_threshold=timedelta(milliseconds=3) if prolongs else None,
    )


BIDS = st.tuples(st.just("bid"), st.sampled_from("aaab"), st.integers(-11, 5), st.none() | st.integers(0, 6))
STEPS = st.lists(
    st.one_of(
        st.tuples(BIDS, st.just(INSERT)),
        st.tuples(BIDS, st.just(INSERT)),
        st.tuples(BIDS, st.sampled_from(RowKind)),
        st.tuples(st.tuples(st.sampled_from(["watermark", "watermark", "clock", "pause"]), st.integers(1, 8))),
        st.just((("restart",),)),
    ),
    max_size=50,
)
"""Bids at times near the watermark, and all that lets time pass."""


def stream_of(ttl, result: Any = Prices):
    source = Pipeline("auctions").source("bids", Bid, event_time="at", row_kind="kind").key_by("auction")
    return source.aggregate("prices", result, state_ttl=ttl)


def function_of(ttl, result: Any = Prices):
    return stream_of(ttl, result).operators[-1].function


@contextmanager
def rows_of(values):
    """Let the row of a key have so many values, beside entries."""
    with mock.patch.multiple("headrace.operators._multisets", MOST_DISTINCT=values, MOST_FIRST=values):
        yield


@contextmanager
def whole_sets():
    """Let each aggregate keep its values as one set."""
    with ExitStack() as patches:
        for aggregate in (CountDistinct, Min, Max):
            patches.enter_context(mock.patch.object(aggregate, "multiset", return_value=None))
        yield


def played(steps, ttl, backend):
    """Return what a function emits and refuses up to each step, and the entries that it stores when all rows have expired."""
    arguments = {"key": attrgetter("auction"), "backend": backend}
    harness, watermark, results = KeyedHarness(function_of(ttl), **arguments), 0, []
    for (name, *values), *kinds in steps:
        if name == "bid":
            auction, offset, price = values
            at = max(watermark + offset, 0)
            harness.process(Bid(auction, at, price), timestamp=at, kind=kinds[0])
        elif name == "watermark":
            watermark += values[0]
            harness.watermark(watermark)
        elif name == "restart":
            snapshot = harness.snapshot()
            harness.close()
            harness = KeyedHarness.restore(snapshot, function_of(ttl), **arguments)
        else:
            (harness.clock.advance if name == "clock" else harness.pause)(*values)
        results.append((harness.kinds(), harness.quarantined()))
    harness.clock.advance(10_000)
    harness.watermark(20_000)
    stored = [entry for entry, _ in harness.snapshot().entries if b"aggregate_values" in entry]
    harness.close()
    return results, stored


@pytest.mark.slow
@examples(150)
@given(steps=STEPS, ttl=lifetimes(), most=st.integers(2, 4), backend=st.sampled_from(["hashmap", "rocksdb", "delta"]))
def test_entries_expire_as_whole_sets_do(steps, ttl, most, backend):
    with rows_of(most):
        by_entry, stored = played(steps, ttl, backend)
    with whole_sets():
        whole, _ = played(steps, ttl, "hashmap")
    assert by_entry == whole
    assert not stored or not ttl.is_active


@pytest.mark.parametrize("aggregate", [CountDistinct, Min, Max])
def test_new_row_finds_no_entry_of_expired(aggregate):
    result = msgspec.defstruct(
        "Result", [("auction", str), ("value", Annotated[int | None, aggregate("price")])], bases=(Struct,), frozen=True
    )
    function = function_of(StateTtl(TTL, update=UpdateType.ON_CREATE), result)
    old, new = ([1, 2, 3], [4, 5, 6]) if aggregate is not Max else ([6, 5, 4], [3, 2, 1])
    with rows_of(2), KeyedHarness(function, key=attrgetter("auction")) as harness:
        for price, at in zip(old, [0, 5, 5], strict=True):
            harness.process(Bid("a", at, price), timestamp=at)
        harness.watermark(10)  # the row has expired, and its timer waits until 15
        for price in new:
            harness.process(Bid("a", 11, price), timestamp=11)
        for price in old:
            harness.process(Bid("a", 11, price), timestamp=11, kind=DELETE)
        assert [bid.price for bid, _ in harness.quarantined()] == old
        harness.watermark(15)  # the row lives on
        for price in new:
            harness.process(Bid("a", 11, price), timestamp=11, kind=DELETE)
        assert len(harness.quarantined()) == len(old)


@pytest.mark.parametrize("update", UpdateType)
def test_timer_renews_no_row(update):
    function = function_of(StateTtl(TTL, update=update))
    with rows_of(2), KeyedHarness(function, key=attrgetter("auction")) as harness:
        for price in range(5):
            harness.process(Bid("a", price, price), timestamp=price)
        harness.watermark(13)  # the timer has fired: the row lives until 14
        harness.watermark(14)
        harness.process(Bid("a", 14, 7), timestamp=14)
        harness.drain()
        forgets = update in {UpdateType.ON_CREATE_AND_WRITE, UpdateType.ON_READ_AND_WRITE, UpdateType.ON_CREATE}
        assert harness.kinds()[-1][0] is (INSERT if forgets else AFTER)


@pytest.mark.parametrize(("at", "refused"), [(9, []), (10, [0, 1, 2])])
def test_longer_lifetime_finds_row_with_its_entries(at, refused):
    arguments = {"key": attrgetter("auction")}
    with rows_of(2):
        short = StateTtl(TTL, cleanup=Cleanup(entries_per_record=0))
        with KeyedHarness(function_of(short), **arguments) as harness:
            for price in range(3):
                harness.process(Bid("a", 0, price), timestamp=0)
            harness.watermark(at)
            snapshot = harness.snapshot()
        with KeyedHarness.restore(snapshot, function_of(StateTtl(TTL * 10)), **arguments) as harness:
            harness.watermark(90)
            harness.process(Bid("a", 90, 7), timestamp=90)
            assert harness.kinds()[-1][0] is (INSERT if refused else AFTER)
            for price in range(3):
                harness.process(Bid("a", 90, price), timestamp=90, kind=DELETE)
            assert [bid.price for bid, _ in harness.quarantined()] == refused


def test_many_values_with_a_lifetime_write_two_rows():
    harness = PipelineHarness(stream_of(timedelta(days=1), Distinct).sink("prices", key="auction"))
    for prices in (range(10_000), [10_000]):
        harness.feed("bids", [Bid("a", 1, price) for price in prices], kinds=[INSERT] * len(prices))
        harness.run()
    rows = harness.table("keyed_state").to_pylist()
    last = max(row["checkpoint_id"] for row in rows)
    assert sorted(row["state"] for row in rows if row["checkpoint_id"] == last) == ["aggregate", "aggregate_values"]
    assert harness.sink("prices") == [Distinct("a", 10_001)]


OLD_CLOCKS = [
    StateTtl(TTL, time=TtlTime.PROCESSING),
    StateTtl(TTL, time=TtlTime.EVENT, expiry=ExpiryClock.PROCESSING_TIME),
]


@pytest.mark.parametrize("old", OLD_CLOCKS)
def test_timer_of_another_clock_waits_for_the_watermark(old):
    arguments = {"key": attrgetter("auction")}
    with rows_of(2):
        harness = KeyedHarness(function_of(old), **arguments)
        for price in range(4):
            harness.process(Bid("a", 0, price), timestamp=0)
        snapshot = harness.snapshot()
        harness.close()
        harness = KeyedHarness.restore(snapshot, function_of(StateTtl(TTL, time=TtlTime.EVENT)), **arguments)
        harness.clock.advance(20)
        assert any(b"aggregate_values" in entry for entry, _ in harness.snapshot().entries)
        harness.watermark(10_000)
        harness.clock.advance(10_000)
        assert not any(b"aggregate_values" in entry for entry, _ in harness.snapshot().entries)
        harness.close()
