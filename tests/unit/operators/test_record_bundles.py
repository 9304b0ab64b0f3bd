"""Windows and interval joins take records and timers of a key in bundles: state, timers and results are those of single ones."""

from __future__ import annotations

import gc
import random
from datetime import timedelta
from typing import Annotated
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import RowKind, Struct, TimeDomain, Timestamp
from headrace.api.batches import Bundle, TimerBundle
from headrace.errors import UserFunctionError
from headrace.operators import (
    Avg,
    Calendar,
    CalendarUnit,
    Count,
    CountDistinct,
    Cumulative,
    First,
    Hopping,
    Last,
    Max,
    Min,
    Session,
    Sum,
    Tumbling,
    every,
)
from headrace.operators._interval_join import IntervalJoin
from headrace.operators._sessions import SessionAggregation
from headrace.operators._sliced_windows import SlicedAggregation
from headrace.testing import PipelineHarness
from tests.unit.operators.join_jobs import Offer, Order, interval_pipeline
from tests.unit.operators.window_jobs import Bid, Summary, Totals, window_pipeline
from tests.unit.support.fuzzing import examples

TABLES = ("keyed_state", "timers", "buffered_requests")
SINGLE = {"execution": {"async-state": {"in-flight-records-limit": 1}}}


@pytest.fixture(autouse=True)
def _no_columns(monkeypatch):
    """Let windows take bundles, and not columns."""
    for windows in (SlicedAggregation, SessionAggregation):
        monkeypatch.setattr(windows, "takes_columns", False)


def ms(number):
    return timedelta(milliseconds=number)


def known_price(bid):
    if bid.price == 13:
        raise ValueError("no such price")
    return True


def is_large(bid):
    return (bid.price or 0) > 5


class Together(Struct, frozen=True):
    """A result whose aggregates all take the records of a bundle together."""

    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    priced: Annotated[int, Count("price")]
    large: Annotated[int, Count(where=is_large)]
    total: Annotated[int | None, Sum("price")]
    mean: Annotated[float | None, Avg("price")]
    lowest: Annotated[int | None, Min("price")]
    highest: Annotated[int | None, Max("price", where=is_large)]
    bidders: Annotated[int, CountDistinct("bidder")]
    prices: Annotated[int, CountDistinct("price")]
    large_bidders: Annotated[int, CountDistinct("bidder", where=is_large)]
    first: Annotated[str, First("bidder")]
    last: Annotated[int | None, Last("price")]


class Checked(Struct, frozen=True):
    item: str
    window_start: Timestamp
    bids: Annotated[int, Count(where=known_price)]


BIDS = st.lists(
    st.builds(
        Bid,
        item=st.sampled_from("ab"),
        at=st.integers(-40, 40),
        price=st.none() | st.integers(-9, 9),
        bidder=st.sampled_from("xyz"),
    ),
    min_size=2,
    max_size=40,
)
SLICED = [Tumbling(ms(10)), Hopping(ms(9), ms(4), ms(-1)), Cumulative(ms(12), ms(4))]
MIDNIGHT_AT_0 = Calendar(CalendarUnit.DAY, zone="UTC")
SESSIONS = [Session(ms(6)), Session(ms(2))]


def by_processing_time(windows, result, *, early=None):
    return window_pipeline(windows, result, early=early, time=TimeDomain.PROCESSING_TIME)


def play_all(pipeline, inputs, seed, job, *, sinks, stops=False, kinds=None):
    """Return the sinks of a job, and its tables after each run. With `stops`, runs stop at any record: tables may differ.

    `inputs` are the rows of each source, `kinds` the kinds of a single source's rows.
    """
    chance = random.Random(seed)
    harness = PipelineHarness(pipeline, bucket=chance.choice([4, 10, 100]), files_per_batch=1, job=job)
    seen = []
    for end_of_input in (False, False, True):
        for name, rows in inputs.items():
            size = len(rows) if end_of_input else len(rows) // 2
            harness.feed(name, rows[:size], kinds=None if kinds is None else kinds[:size])
            inputs = inputs | {name: rows[size:]}
            kinds = None if kinds is None else kinds[size:]
        harness.clock.advance(7)
        if stops:
            harness.run(budget_ends_at="task.half")
        harness.run(end_of_input=end_of_input)
        if not stops:
            seen.append({name: sorted(map(str, harness.table(name).to_pylist())) for name in TABLES})
    return seen, [sorted(map(str, harness.sink(sink))) for sink in sinks]


def equal_single_records(pipeline, *arguments, **options):
    """Return whether a job does the same with bundles and without any."""
    bundled = play_all(pipeline, *arguments, {}, **options)
    with mock.patch.object(SlicedAggregation, "takes_timers", new=False):
        return bundled == play_all(pipeline, *arguments, SINGLE, **options)


@pytest.mark.slow
@pytest.mark.parametrize("stops", [False, True])
@examples(2)
@given(
    windows=st.sampled_from([*SLICED, *SESSIONS]),
    result=st.sampled_from([Summary, Together]),
    bids=BIDS,
    lateness=st.sampled_from([0, 8]),
    early=st.sampled_from([None, 3]),
    seed=st.integers(0, 1 << 30),
)
def test_bundles_equal_single_records(stops, windows, result, bids, lateness, early, seed):
    pipeline = window_pipeline(windows, result, lag=5, late=True, lateness=lateness, early=early)
    assert equal_single_records(pipeline, {"bids": bids}, seed, stops=stops, sinks=("summaries", "late"))


@pytest.mark.slow
@examples(3)
@given(
    windows=st.sampled_from([*SLICED, *SESSIONS]),
    result=st.sampled_from([Summary, Together]),
    bids=BIDS,
    early=st.none() | st.integers(2, 9).map(ms) | st.integers(2, 9).map(lambda step: every(ms(step))),
    seed=st.integers(0, 1 << 30),
)
def test_bundles_by_processing_time_equal_single_records(windows, result, bids, early, seed):
    pipeline = by_processing_time(windows, result, early=early)
    assert equal_single_records(pipeline, {"bids": bids}, seed, sinks=("summaries",))


@examples(2)
@given(bids=BIDS, lateness=st.sampled_from([0, 8]), seed=st.integers(0, 1 << 30))
def test_bundles_of_days_equal_single_records(bids, lateness, seed):
    pipeline = window_pipeline(MIDNIGHT_AT_0, lag=5, late=True, lateness=lateness, early=None)
    assert equal_single_records(pipeline, {"bids": bids}, seed, sinks=("summaries", "late"))


@pytest.mark.slow
@examples(1)
@given(
    windows=st.sampled_from(SLICED),
    changes=st.lists(st.tuples(BIDS.map(lambda bids: bids[0]), st.sampled_from(RowKind)), min_size=4, max_size=40),
    seed=st.integers(0, 1 << 30),
)
def test_bundles_with_retractions_equal_single_records(windows, changes, seed):
    pipeline = window_pipeline(windows, Totals, lag=5, row_kind="kind")
    bids, kinds = ([*column] for column in zip(*changes, strict=True))
    assert equal_single_records(pipeline, {"bids": bids}, seed, kinds=kinds, sinks=("summaries",))


@pytest.mark.slow
@examples(1)
@given(
    bounds=st.sampled_from([(0, 9), (-7, 2), (0, 0), (3, 12)]),
    orders=st.lists(st.builds(Order, st.sampled_from("ab"), st.integers(-40, 40), st.integers(1, 2)), max_size=30),
    offers=st.lists(st.builds(Offer, st.sampled_from("ab"), st.integers(-40, 40)), max_size=30),
    seed=st.integers(0, 1 << 30),
)
def test_joined_bundles_equal_single_records(bounds, orders, offers, seed):
    pipeline = interval_pipeline(*bounds, lag=5)
    sinks = ("pairs", "late_orders", "late_offers")
    assert equal_single_records(pipeline, {"orders": orders, "offers": offers}, seed, sinks=sinks)


def sizes_of_bundles(function, monkeypatch):
    """Return a list that gets the size of each bundle that a function takes."""
    sizes = []
    process_bundle = function.process_bundle

    async def counted(self, bundle, ctx, /):
        sizes.append(len(bundle.records))
        await process_bundle(self, bundle, ctx)

    monkeypatch.setattr(function, "process_bundle", counted)
    return sizes


def test_join_takes_several_records_with_one_call(monkeypatch):
    sizes = sizes_of_bundles(IntervalJoin, monkeypatch)
    harness = PipelineHarness(interval_pipeline(0, 3), bucket=8)
    harness.feed("orders", [Order("a", at, 1) for at in range(8)])
    harness.feed("offers", [Offer("a", at) for at in range(8)])
    harness.run(end_of_input=True)
    assert max(sizes) == 8  # of both sides, between two watermarks
    assert len(harness.sink("pairs")) == 4 * 8 - 6


def test_windows_of_a_watermark_fire_with_one_call():
    harness = PipelineHarness(window_pipeline(SLICED[1]), bucket=8)
    harness.feed("bids", [Bid("a", at, 1) for at in range(16)])
    with mock.patch.object(SlicedAggregation, "on_timer", side_effect=AssertionError):
        harness.run(end_of_input=True)
    assert sum(row.bids for row in harness.sink("summaries")) == 9 * 16 // 4


@pytest.mark.parametrize("windows", [SLICED[1], SESSIONS[0]])
def test_one_call_takes_a_whole_micro_batch(windows, monkeypatch):
    """By processing time no watermark matters."""
    function = SlicedAggregation if windows in SLICED else SessionAggregation
    sizes = sizes_of_bundles(function, monkeypatch)
    harness = PipelineHarness(by_processing_time(windows, Totals), bucket=8)
    for count in (1, 40):
        harness.feed("bids", [Bid(item, at, 1) for at in range(40, 40 + count) for item in "ab"])
        harness.run()
    assert sizes == [40, 40]


@pytest.mark.parametrize(("windows", "function"), [(SLICED[1], SlicedAggregation), (SESSIONS[0], SessionAggregation)])
def test_one_call_takes_several_records(windows, function, monkeypatch):
    sizes = sizes_of_bundles(function, monkeypatch)
    harness = PipelineHarness(window_pipeline(windows), bucket=8)
    harness.feed("bids", [Bid(item, at, 1) for at in range(8) for item in "ab"])
    harness.run(end_of_input=True)
    assert max(sizes) == 8  # of one key, up to a watermark that fires a timer of it


@pytest.mark.parametrize("time", TimeDomain)
@pytest.mark.parametrize("windows", [SLICED[0], SESSIONS[0]])
def test_error_names_its_record_of_bundle(windows, time):
    harness = PipelineHarness(window_pipeline(windows, Checked, time=time))
    harness.feed("bids", [Bid("a", at, price) for at, price in enumerate([1, 2, 13, 4])])
    with pytest.raises(UserFunctionError, match='"price":13') as caught:
        harness.run()
    assert "no such price" in str(caught.value)


@pytest.mark.parametrize("time", TimeDomain)
def test_bundles_are_freed_when_their_code_has_ended(time):
    """Cycles would keep all records of a task until the collection at its end."""
    bids = [Bid("lamp", at=1000 * n, price=n) for n in range(40)]
    harness = PipelineHarness(window_pipeline(Tumbling(ms(4000)), time=time), parallelism=1, bucket=10)
    harness.feed("bids", bids)
    gc.collect()
    before = bundles_in_memory()
    gc.disable()
    try:
        with mock.patch("gc.collect"), mock.patch("gc.enable"):
            harness.run(end_of_input=True)
        alive = bundles_in_memory() - before
    finally:
        gc.enable()
    assert len(harness.sink("summaries")) == (10 if time is TimeDomain.EVENT_TIME else 0)
    assert alive <= 2, "more than the last one of each task's controller"


def bundles_in_memory():
    return sum(isinstance(thing, Bundle | TimerBundle) for thing in gc.get_objects())
