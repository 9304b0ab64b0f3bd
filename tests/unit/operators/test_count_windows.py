"""Windows of a number of rows: results with each slide-th row of a key, over the last rows."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Lifetime, Pipeline, RowKind, Struct, TimeDomain, Timestamp
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.operators import Avg, Count, CountDistinct, CountWindow, Last, Max, Rank, Sum
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid
from tests.unit.support.fuzzing import examples

FOREVER = Lifetime.FOREVER


class Totals(Struct, frozen=True):
    item: str
    bids: Annotated[int, Count()]
    total: Annotated[int | None, Sum("price")]
    highest: Annotated[int | None, Max("price")]
    bidders: Annotated[int, CountDistinct("bidder")]
    latest: Annotated[Timestamp, Max("at")]


def counted(windows, result=Totals, *, row_kind=None, time=TimeDomain.EVENT_TIME, **options):
    bids = Pipeline("bids").source("bids", Bid, event_time="at", row_kind=row_kind).key_by("item")
    return bids.window(windows, time=time).aggregate("totals", result, **options)


def harness_of(windows, **options):
    return KeyedHarness(counted(windows).operators[-1].function, key=lambda bid: bid.item, **options)


def by_hand(bids, size, slide):
    """Return the results of all rows, in arrival order, by a list of the rows of each key."""
    rows, results = defaultdict(list), []
    for bid in bids:
        rows[bid.item].append(bid)
        if len(rows[bid.item]) % slide == 0:
            last = rows[bid.item][-size:]
            prices = [row.price for row in last if row.price is not None]
            total, highest = (sum(prices), max(prices)) if prices else (None, None)
            bidders = len({row.bidder for row in last})
            results.append(Totals(bid.item, len(last), total, highest, bidders, max(row.at for row in last)))
    return results


BIDS = st.builds(Bid, st.sampled_from("ab"), st.integers(0, 30), st.none() | st.integers(-9, 9), st.sampled_from("xyz"))
SIZES = st.integers(1, 7).flatmap(lambda size: st.tuples(st.just(size), st.none() | st.integers(1, size)))


@pytest.mark.slow
@examples(150)
@given(sizes=SIZES, bids=st.lists(BIDS, max_size=30))
def test_results_equal_those_of_the_last_rows(sizes, bids):
    size, slide = sizes
    with harness_of(CountWindow(size, slide, state_ttl=FOREVER)) as harness:
        for bid in bids:
            harness.process(bid, timestamp=bid.at)
        assert harness.output() == by_hand(bids, size, slide or size)


@examples(8)
@given(
    sizes=SIZES,
    batches=st.lists(st.lists(BIDS, max_size=6), max_size=4),
    parallelism=st.sampled_from([1, 3]),
    crash_at=st.sampled_from([None, "task.half:1", "commit.after"]),
)
def test_micro_batches_and_crashes_change_nothing(sizes, batches, parallelism, crash_at):
    size, slide = sizes
    pipeline = counted(CountWindow(size, slide, state_ttl=FOREVER)).sink("totals")
    harness = PipelineHarness(pipeline, parallelism=parallelism, bucket=2)
    for batch in batches:
        harness.feed("bids", batch)
        harness.run(crash_at=crash_at)
        harness.run()
    expected = by_hand([bid for batch in batches for bid in batch], size, slide or size)
    shown = lambda rows: sorted(map(repr, rows))  # noqa: E731
    assert shown(harness.sink("totals")) == shown(expected)


def test_flink_count_window_example():
    """`WindowOperatorTest.testCountTrigger`, `countWindow(3)`: results with the third row of a key, and no state behind them."""
    with harness_of(CountWindow(3, state_ttl=FOREVER)) as harness:
        for key, at in (("b", 3), ("b", 4), ("a", 20), ("a", 0), ("a", 999)):
            harness.process(Bid(key, at, 1), timestamp=at)
        assert [(row.item, row.total) for row in harness.output()] == [("a", 3)]
        harness.process(Bid("b", 1999, 1), timestamp=1999)
        assert [(row.item, row.total) for row in harness.output()] == [("b", 3)]
        assert harness.snapshot().entries == ()


def test_flink_sliding_count_window_example():
    """`EvictingWindowOperatorTest.testCountEvictor`: the last four rows with each second one; the first window has two."""
    with harness_of(CountWindow(4, 2, state_ttl=FOREVER)) as harness:
        for key in ("b", "b", "a", "a", "b", "a", "b", "b", "a", "b", "b"):
            harness.process(Bid(key, 1, 1), timestamp=1)
        assert [(row.item, row.total) for row in harness.output()] == [
            ("b", 2),
            ("a", 2),
            ("b", 4),
            ("a", 4),
            ("b", 4),
        ]


def test_result_has_event_time_of_last_row():
    with harness_of(CountWindow(2, state_ttl=FOREVER)) as harness:
        for at in (9, 4):
            harness.process(Bid("a", at, 1), timestamp=at)
        assert [emitted_record.timestamp for emitted_record in harness._process.emitted] == [4]


def test_old_rows_are_counted_by_arrival():
    """A duration counts processing time: the event time of a row ends no window."""
    job = PipelineHarness(counted(CountWindow(3, state_ttl=timedelta(seconds=1))).sink("totals"), bucket=1)
    for at in (100_000, 5, 100_001, 6, 7, 8):
        job.feed("bids", [Bid("a", 1, at)])
        job.run()
    assert len(job.sink("totals")) == 2


def test_expired_rows_leave_the_window():
    with harness_of(CountWindow(2, state_ttl=timedelta(milliseconds=10))) as harness:
        for at in (0, 30, 31):
            harness.clock.advance(at - harness.clock.now())
            harness.process(Bid("a", at + 1, 1), timestamp=at + 1)
        assert [row.latest for _, row in harness.kinds()] == [32]


def test_inferred_result_has_no_bounds():
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item")
    stream = bids.window(CountWindow(2, state_ttl=FOREVER)).aggregate("totals", bids=Count(), mean=Avg("price"))
    assert stream.record_type().__struct_fields__ == ("item", "bids", "mean")


class Best(Struct, frozen=True):
    bidder: str
    rank: Annotated[int, Rank()]


def test_ranks_of_each_window():
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item")
    top = bids.window(CountWindow(3, state_ttl=FOREVER)).top("top", 2, by="price", result=Best)
    with KeyedHarness(top.operators[-1].function, key=lambda bid: bid.item) as harness:
        for bidder, price in (("x", 1), ("y", 5), ("z", 3), ("v", 9)):
            harness.process(Bid("a", 1, price, bidder), timestamp=1)
        assert harness.output() == [Best("y", 1), Best("z", 2)]


def test_undeclared_retraction_fails_by_name():
    message = "CountWindow cannot take a record back, and this one is -D"
    with (
        harness_of(CountWindow(2, state_ttl=FOREVER)) as harness,
        pytest.raises(UserFunctionError, match=message),
    ):
        harness.process(Bid("a", 1, 1), timestamp=1, kind=RowKind.DELETE)


class Bounded(Struct, frozen=True):
    window_end: Timestamp
    last: Annotated[int, Last("price")]


REFUSED = [
    ({"row_kind": "op"}, ValueError, "CountWindow needs a stream that takes nothing back"),
    ({"time": TimeDomain.PROCESSING_TIME}, ValueError, "CountWindow counts rows, and knows no time: leave time out"),
    ({"early": timedelta(seconds=1)}, ValueError, "leave allowed_lateness and early out, and give a smaller slide"),
    ({"allowed_lateness": timedelta(seconds=1)}, ValueError, "no row is late: leave allowed_lateness and early out"),
    ({"result": Bounded}, TypeError, "field 'window_end' of Bounded does not say how it is made"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED)
def test_options_without_meaning_are_refused(options, error, message):
    with pytest.raises(error, match=f"aggregate 'totals': .*{message}"):
        counted(CountWindow(2, state_ttl=FOREVER), **options)


def test_windows_of_rows_cannot_be_joined():
    pipeline = Pipeline("pairs")
    left, right = (
        pipeline.source(name, Bid, event_time="at").key_by("item").window(CountWindow(2, state_ttl=FOREVER))
        for name in ("left", "right")
    )
    with pytest.raises(ValueError, match="semi_join 'pairs': two streams have no common windows of a number of rows"):
        left.semi_join("pairs", right)


@pytest.mark.parametrize("size", [0, -1, True, 2.5, "3"])
def test_size_must_be_a_whole_number(size):
    with pytest.raises(ValueError, match="size must be a whole number of rows of at least 1"):
        CountWindow(size, state_ttl=FOREVER)


@pytest.mark.parametrize("slide", [0, 4, False, 1.0])
def test_slide_must_be_within_the_size(slide):
    with pytest.raises(ValueError, match=r"slide must be a whole number of rows from 1 to size \(3\)"):
        CountWindow(3, slide, state_ttl=FOREVER)


def test_missing_lifetime_is_refused():
    with pytest.raises(ValueError, match="windows that never become full would be kept for good: give state_ttl"):
        CountWindow(3)


def test_stored_rows_bind_the_numbers():
    harness = PipelineHarness(counted(CountWindow(3, state_ttl=FOREVER)).sink("totals"))
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    harness.change(pipeline=counted(CountWindow(4, state_ttl=FOREVER)).sink("totals"))
    with pytest.raises(StateSchemaError, match="'count_3_by_3': has stored state and is not declared"):
        harness.run()


def test_explain_shows_size_and_lifetime():
    shown = counted(CountWindow(1000, 100, state_ttl=timedelta(days=1))).operators[-1].function.described()
    assert shown["windows"] == "1,000 rows, at each 100"
    assert shown["state_freed"] == "when its state_ttl of 1d is over"
    assert msgspec.json.encode(shown)
