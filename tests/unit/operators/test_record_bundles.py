"""Windows take the records of a key in bundles: state, timers and results are those of single records."""

from __future__ import annotations

import random
from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import Struct, Timestamp
from headrace.errors import UserFunctionError
from headrace.operators import Count, Cumulative, Hopping, Session, Tumbling
from headrace.operators._session_aggregation import SessionAggregation
from headrace.operators._sliced_aggregation import SlicedAggregation
from headrace.testing import PipelineHarness
from tests.unit.support.window_jobs import Bid, window_pipeline

TABLES = ("keyed_state", "timers", "buffered_requests")
SINGLE = {"execution": {"async-state": {"in-flight-records-limit": 1}}}


def ms(number):
    return timedelta(milliseconds=number)


def known_price(bid):
    if bid.price == 13:
        raise ValueError("no such price")
    return True


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
SESSIONS = [Session(ms(6)), Session(ms(2))]


def play(pipeline, bids, seed, job, *, stops):
    """Return the sinks of a job, and its tables after each run. With `stops`, runs stop at any record: tables may differ."""
    chance = random.Random(seed)
    harness = PipelineHarness(pipeline, bucket=chance.choice([4, 10, 100]), files_per_batch=1, job=job)
    seen = []
    for end_of_input in (False, False, True):
        size = len(bids) // 2
        harness.feed("bids", bids[:size] if not end_of_input else bids)
        bids = bids[size:]
        if stops:
            harness.run(budget_ends_at="task.half")
        harness.run(end_of_input=end_of_input)
        if not stops:
            seen.append({name: sorted(map(str, harness.table(name).to_pylist())) for name in TABLES})
    return seen, sorted(map(str, harness.sink("summaries"))), sorted(map(str, harness.sink("late")))


@pytest.mark.parametrize("stops", [False, True])
@settings(max_examples=4)
@given(
    windows=st.sampled_from([*SLICED, *SESSIONS]),
    bids=BIDS,
    lateness=st.sampled_from([0, 8]),
    early=st.sampled_from([None, 3]),
    seed=st.integers(0, 1 << 30),
)
def test_bundles_equal_single_records(stops, windows, bids, lateness, early, seed):
    pipeline = window_pipeline(windows, lag=5, late=True, lateness=lateness, early=early)
    assert play(pipeline, bids, seed, {}, stops=stops) == play(pipeline, bids, seed, SINGLE, stops=stops)


@pytest.mark.parametrize(("windows", "function"), [(SLICED[1], SlicedAggregation), (SESSIONS[0], SessionAggregation)])
def test_one_call_takes_several_records(windows, function, monkeypatch):
    sizes = []
    process_bundle = function.process_bundle

    async def counted(self, bundle, ctx, /):
        sizes.append(len(bundle.records))
        await process_bundle(self, bundle, ctx)

    monkeypatch.setattr(function, "process_bundle", counted)
    harness = PipelineHarness(window_pipeline(windows), bucket=8)
    harness.feed("bids", [Bid(item, at, 1) for at in range(8) for item in "ab"])
    harness.run(end_of_input=True)
    assert max(sizes) == 4  # of one key, between two watermarks


@pytest.mark.parametrize("windows", [SLICED[0], SESSIONS[0]])
def test_error_names_its_record_of_bundle(windows):
    harness = PipelineHarness(window_pipeline(windows, Checked))
    harness.feed("bids", [Bid("a", at, price) for at, price in enumerate([1, 2, 13, 4])])
    with pytest.raises(UserFunctionError, match='"price":13') as caught:
        harness.run()
    assert "no such price" in str(caught.value)
