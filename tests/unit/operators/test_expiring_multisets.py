"""Values by entry of rows that expire: a key forgets all of them at once, as if they were in its row."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from datetime import timedelta
from operator import attrgetter
from typing import Annotated, Any
from unittest import mock

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


BIDS = st.builds(Bid, st.sampled_from("ab"), st.integers(0, 60), st.none() | st.integers(0, 6))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("bid"), BIDS, st.sampled_from([INSERT, INSERT, *RowKind])),
        st.tuples(st.just("bid"), BIDS, st.just(INSERT)),
        st.tuples(st.sampled_from(["watermark", "pause", "clock"]), st.integers(1, 12)),
        st.tuples(st.just("restart")),
    ),
    max_size=40,
)


def stream_of(ttl):
    source = Pipeline("auctions").source("bids", Bid, event_time="at", row_kind="kind").key_by("auction")
    return source.aggregate("prices", Prices, state_ttl=ttl)


def function_of(ttl):
    return stream_of(ttl).operators[-1].function


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
            patches.enter_context(mock.patch.object(aggregate, "multiset", lambda *_, **__: None))
        yield


def played(steps, ttl, backend):
    """Yield what a function emits and refuses in each step; at last the entries that it stores when all rows have expired."""
    arguments = {"key": attrgetter("auction"), "backend": backend}
    harness = KeyedHarness(function_of(ttl), **arguments)
    watermark = 0
    for name, *values in [*steps, ("pause", 1000), ("watermark", 1000), ("pause", 1000)]:
        if name == "bid":
            bid, kind = values
            harness.process(bid, timestamp=bid.at, kind=kind)
        elif name == "watermark":
            watermark += values[0]
            harness.watermark(watermark)
        elif name == "clock":
            harness.clock.advance(values[0])
        elif name == "pause":
            harness.pause(values[0])
        else:
            snapshot = harness.snapshot()
            harness.close()
            harness = KeyedHarness.restore(snapshot, function_of(ttl), **arguments)
        yield name, values, harness.kinds(), harness.quarantined()
    stored = [entry for entry, _ in harness.snapshot().entries if b"aggregate_values" in entry]
    harness.close()
    yield stored


@examples(200)
@given(
    steps=STEPS, ttl=lifetimes(), most=st.integers(2, 4), backend=st.sampled_from(["hashmap", "rocksdb", "delta"])
)
def test_entries_expire_as_whole_sets_do(steps, ttl, most, backend):
    with rows_of(most):
        *by_entry, stored = played(steps, ttl, backend)
    with whole_sets():
        *whole, _ = played(steps, ttl, "hashmap")
    assert by_entry == whole
    assert not stored or not ttl.is_active
