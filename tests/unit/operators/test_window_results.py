"""Windows equal a plain loop for any order, micro-batches, tasks and backend."""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import StateSchemaError
from headrace.operators import Cumulative, Hopping, Session, Tumbling
from headrace.testing import PipelineHarness
from tests.unit.operators.window_jobs import Bid, Summary, Totals, window_pipeline
from tests.unit.support.windows_by_hand import summaries


def ms(number):
    return timedelta(milliseconds=number)


WINDOWS = st.sampled_from(
    [
        Tumbling(ms(10)),
        Tumbling(ms(10), ms(3)),
        Hopping(ms(10), ms(5)),
        Hopping(ms(9), ms(4), ms(-1)),
        Cumulative(ms(12), ms(4)),
        Session(ms(6)),
        Session(ms(1)),
    ]
)
BIDS = st.builds(
    Bid,
    item=st.sampled_from(["", "a", "é"]),
    at=st.integers(-40, 40),
    price=st.none() | st.integers(-9, 9),
    bidder=st.sampled_from("xyz"),
)
CRASHES = [None, None, None, "task.half:1", "commit.before", "commit.after"]
STOPS = [None, None, "ingest.after", "task.half"]
FEW = settings(max_examples=5)


def within(bids, lag, chance):
    """Sort by time, then let records overtake each other by at most `lag` ms."""
    return sorted(bids, key=lambda bid: bid.at + chance.uniform(0, lag))


def run(harness, bids, chance):
    rest = list(bids)
    while rest:
        size = chance.randint(1, 6)
        harness.feed("bids", rest[:size])
        rest = rest[size:]
        if chance.random() < 0.5:
            harness.run(crash_at=chance.choice(CRASHES), budget_ends_at=chance.choice(STOPS))
            harness.change(parallelism=chance.choice([1, 2, 3]))
    harness.run()
    harness.run(end_of_input=True)


def rows(records):
    return sorted(msgspec.structs.astuple(record) for record in records)


def options(chance):
    return {
        "bucket": chance.choice([1, 2, 5]),
        "parallelism": chance.choice([1, 2]),
        "files_per_batch": chance.choice([1, 2, 16]),
        "job": {"execution": {"async-state": {"buffer-size": chance.choice([1, 2, 100])}}},
    }


def check(windows, bids, seed, backend):
    chance = random.Random(seed)
    lag = chance.choice([0, 7, 30])
    harness = PipelineHarness(window_pipeline(windows, lag=lag), backend=backend, **options(chance))
    arrived = within(bids, lag, chance)
    run(harness, arrived, chance)
    assert rows(harness.sink("summaries")) == summaries(windows, arrived)
    assert_nothing_left(harness)


def live(harness, table):
    """The last rows of a state table's entries that were not removed."""
    last = {}
    for row in harness.table(table).to_pylist():
        entry = tuple(
            row.get(name) for name in ("operator", "state", "domain", "timestamp", "key", "namespace", "user_key")
        )
        last[entry] = max(last.get(entry, (-1, None)), (row["checkpoint_id"], not row["deleted"]))
    return [entry for entry, (_, is_live) in last.items() if is_live]


def assert_nothing_left(harness):
    assert live(harness, "keyed_state") == live(harness, "timers") == []


@pytest.mark.slow
@FEW
@given(windows=WINDOWS, bids=st.lists(BIDS, min_size=1, max_size=30), seed=st.integers(0, 1 << 30))
def test_windows_equal_a_plain_loop(windows, bids, seed):
    check(windows, bids, seed, "hashmap")


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["rocksdb", "delta"])
@settings(max_examples=4)
@given(windows=WINDOWS, bids=st.lists(BIDS, min_size=1, max_size=20), seed=st.integers(0, 1 << 30))
def test_every_backend_equals_a_plain_loop(backend, windows, bids, seed):
    check(windows, bids, seed, backend)


def test_changed_windows_refuse_stored_state():
    harness = PipelineHarness(window_pipeline(Tumbling(ms(10))))
    harness.feed("bids", [Bid("a", 1, 1)])
    harness.run()
    harness.change(pipeline=window_pipeline(Tumbling(ms(5))))
    harness.feed("bids", [Bid("a", 2, 1)])
    with pytest.raises(StateSchemaError, match="'tumbling_10ms': has stored state .* 'tumbling_5ms' is new"):
        harness.run()


def test_new_aggregate_needs_a_new_operator():
    harness = PipelineHarness(window_pipeline(Tumbling(ms(10)), Totals))
    harness.feed("bids", [Bid("a", 1, 1)])
    harness.run()
    harness.change(pipeline=window_pipeline(Tumbling(ms(10)), Summary, sink="others"))
    harness.feed("bids", [Bid("a", 2, 1)])
    with pytest.raises(StateSchemaError, match="field 'aggregates.priced' is new"):
        harness.run()
