"""Windows of processing time: a record is in the windows of its micro-batch's time, which fire with the first one after their end."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind, Struct, TimeDomain, Timestamp
from headrace.errors import StateSchemaError, UserFunctionError
from headrace.operators import Calendar, CalendarUnit, Count, Cumulative, First, Hopping, Session, Sum, Tumbling
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid, Summary
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import grouped, summaries

PROCESSING = TimeDomain.PROCESSING_TIME
NOON = 1_580_000_000_000
DAY = 86_400_000
FAR = 1000


def ms(number):
    return timedelta(milliseconds=number)


class Totals(Struct, frozen=True):
    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    first: Annotated[str, First("bidder")]


BIDS = st.builds(
    Bid, st.sampled_from("ab"), st.integers(-20, 30), st.none() | st.integers(-9, 9), st.sampled_from("xy")
)
WINDOWS = st.sampled_from([Tumbling(ms(10)), Hopping(ms(10), ms(5)), Cumulative(ms(12), ms(4)), Session(ms(7))])
MICRO_BATCHES = st.lists(st.tuples(st.integers(0, 9), st.lists(BIDS, max_size=5)), max_size=8)


def timed(windows, result=Summary, **options):
    bids = Pipeline("bids").source("bids", Bid, event_time="at", row_kind=options.pop("row_kind", None)).key_by("item")
    return bids.window(windows, time=PROCESSING).aggregate("summary", result, **options)


def function_of(stream):
    return stream.operators[-1].function


def at_their_time(micro_batches, start=0):
    """Return the bids with the time of their micro-batch as event time."""
    now, bids = start, []
    for step, batch in micro_batches:
        now += step
        bids += [msgspec.structs.replace(bid, at=now) for bid in batch]
    return bids


@pytest.mark.slow
@examples(100)
@given(windows=WINDOWS, micro_batches=MICRO_BATCHES)
def test_windows_equal_those_of_the_arrival(windows, micro_batches):
    """By event time, the same windows over the times of the micro-batches have the same records."""
    with KeyedHarness(function_of(timed(windows)), key=lambda bid: bid.item) as harness:
        for step, batch in micro_batches:
            harness.clock.advance(step)
            for bid in batch:
                harness.process(bid, timestamp=bid.at)
        harness.clock.advance(FAR)
        results = [msgspec.structs.astuple(result) for result in harness.output()]
        assert harness.snapshot().entries == ()
    expected = summaries(windows, at_their_time(micro_batches))
    by_arrival = [
        (*result[:3], result[3], result[5], result[-1]) for result in sorted(results, key=lambda row: row[:3])
    ]
    assert by_arrival == [(*row[:3], row[3], row[5], row[-1]) for row in expected]
    fired = [result[2] for result in results if result[0] == "a"]
    assert fired == sorted(fired)


def counts_of(windows, micro_batches):
    return sorted(
        (item, start, end, len(rows), rows[0][1].bidder)
        for (item, start, end), rows in grouped(windows, at_their_time(micro_batches, NOON)).items()
    )


@pytest.mark.slow
@examples(6)
@given(
    windows=WINDOWS,
    micro_batches=MICRO_BATCHES,
    parts=st.sampled_from([1, 2]),
    parallelism=st.sampled_from([1, 3]),
    crash_at=st.sampled_from([None, "task.half:1", "commit.before", "publish.half"]),
)
def test_any_split_and_retry_gives_same(windows, micro_batches, parts, parallelism, crash_at):
    """Micro-batches of one time may be any number; a crashed one is made again at its time."""
    pipeline = timed(windows, Totals).sink("totals")
    harness = PipelineHarness(pipeline, now=NOON, parallelism=parallelism, files_per_batch=1, bucket=2)
    for step, batch in micro_batches:
        harness.clock.advance(step)
        for part in range(parts):
            harness.feed("bids", batch[part::parts])
        harness.run(crash_at=crash_at)
        harness.run()
    harness.clock.advance(FAR)
    harness.run()
    in_parts = [(step, [bid for part in range(parts) for bid in batch[part::parts]]) for step, batch in micro_batches]
    assert sorted(map(msgspec.structs.astuple, harness.sink("totals"))) == counts_of(windows, in_parts)


@pytest.mark.parametrize(
    ("crash_at", "start"), [("ingest.after", 30), ("run.after", 30), ("commit.before", 30), ("commit.after", 0)]
)
def test_only_a_commit_records_the_time(crash_at, start):
    harness = PipelineHarness(timed(Tumbling(ms(10))).sink("summaries"), now=NOON)
    harness.feed("bids", [Bid("a", NOON, 1, "x")])
    assert harness.run(crash_at=crash_at) is None
    for length in (35, 1000):
        harness.clock.advance(length)
        harness.run()
    assert [row.window_start for row in harness.sink("summaries")] == [NOON + start]


def test_window_fires_without_input_at_its_end():
    """The micro-batch at the end fires the window before its own records."""
    harness = PipelineHarness(timed(Tumbling(ms(10)), Totals).sink("totals"), now=NOON)
    harness.feed("bids", [Bid("a", 1, 5, "x"), Bid("a", 900, 5, "y")])
    harness.run()
    harness.clock.advance(9)
    harness.run()
    assert harness.sink("totals") == []
    harness.clock.advance(1)
    harness.feed("bids", [Bid("a", 2, 5, "z")])
    harness.run()
    assert harness.sink("totals") == [Totals("a", NOON, NOON + 10, 2, "x")]
    harness.clock.advance(10)
    harness.run()
    assert sorted(row.window_start for row in harness.sink("totals")) == [NOON, NOON + 10]


def test_clock_set_back_opens_no_window_again():
    """Processing time never goes back: until the clock has passed it, micro-batches have the time of the last one."""
    harness = PipelineHarness(timed(Tumbling(timedelta(seconds=10)), Totals).sink("totals"), now=NOON)
    for seconds in (0, 12, -7, 4, 2.5, 20):
        harness.clock.advance(round(seconds * 1000))
        harness.feed("bids", [Bid("a", 1, 5, "x")])
        harness.run()
    assert sorted((row.window_start - NOON, row.bids) for row in harness.sink("totals")) == [(0, 1), (10_000, 4)]
    warnings = [event.message for event in harness.events if event.kind == "warning"]
    assert [re.search(r"is (\S+) behind", warning)[1] for warning in warnings] == ["0:00:07", "0:00:03"]


def test_held_rows_count_once():
    """Rows that a run has no time for have the time of the micro-batch that takes them up."""
    harness = PipelineHarness(timed(Session(ms(5)), Totals).sink("totals"), now=NOON, parallelism=1)
    for _ in range(2):
        harness.feed("bids", [Bid("ab"[number % 2], 1, 5) for number in range(2000)])
        harness.run(budget_ends_at="ingest.after")
        harness.clock.advance(7)
    harness.run()
    harness.clock.advance(FAR)
    harness.run()
    rows = harness.sink("totals")
    assert sum(row.bids for row in rows) == 4000
    assert {(row.window_start - NOON) % 7 for row in rows} == {0}
    assert len({(row.item, row.window_start) for row in rows}) == len(rows)
    assert len(rows) > 2


def test_calendar_days_follow_the_zone():
    stream = timed(Calendar(CalendarUnit.DAY, zone="Asia/Tokyo"), Totals)
    harness = PipelineHarness(stream.sink("totals"), now=NOON)
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    harness.clock.advance(DAY)
    harness.run()
    (row,) = harness.sink("totals")
    start = NOON - (NOON + 9 * DAY // 24) % DAY
    assert (row.window_start, row.window_end) == (start, start + DAY)


def test_branch_repeats_windows_of_its_job():
    """A branch takes the recorded times of its job's micro-batches, however late it runs."""
    harness = PipelineHarness(timed(Tumbling(ms(10)), Totals).sink("totals"), now=NOON)
    harness.feed("bids", [Bid("a", 1, 5, "x")])
    harness.run()
    first = harness.facts[-1].checkpoint_id
    for step in (3, 9, 25):
        harness.clock.advance(step)
        harness.feed("bids", [Bid("a", 1, 5, "y")])
        harness.run()
    harness.clock.advance(DAY)
    branch = harness.branch("again", at=first)
    branch.run()
    job, again = harness.sink("totals"), branch.sink("totals")
    assert {row for row in job if row.window_end <= NOON + 37} <= set(again)


class Sums(Struct, frozen=True):
    item: str
    total: Annotated[int, Sum("bids")]


def test_results_have_event_times_of_their_windows():
    """A window of event time behind one of processing time has results by the ends of their windows."""
    counts = timed(Tumbling(ms(10)), Totals).key_by("item").window(Tumbling(ms(20))).aggregate("sums", Sums)
    harness = PipelineHarness(counts.sink("sums"), now=NOON)
    for _ in range(4):
        harness.feed("bids", [Bid("a", 1, 5)])
        harness.run()
        harness.clock.advance(10)
    harness.run(end_of_input=True)
    assert harness.sink("sums") == [Sums("a", 2), Sums("a", 2)]


class Pair(Struct, frozen=True):
    left: str
    right: str | None


def joined(how="join", **options):
    pipeline = Pipeline("pairs")
    sides = [
        pipeline.source(name, Bid, event_time="at").key_by("item").window(Tumbling(ms(10)), time=PROCESSING)
        for name in ("left", "right")
    ]
    return getattr(sides[0], how)("pairs", sides[1], **options).sink("pairs")


@pytest.mark.parametrize(("how", "bidders"), [("semi_join", ["one"]), ("anti_join", ["late", "other"])])
def test_window_joins_match_by_processing_time(how, bidders):
    """Sources that meet wait for each other by event time: what is taken in later is in a later window."""
    harness = PipelineHarness(joined(how), now=NOON)
    for step, left, right in (
        (0, [Bid("a", 1, 5, "one")], []),
        (9, [Bid("b", 600, 5, "other")], [Bid("a", 500, 5, "two")]),
        (1, [Bid("a", 601, 5, "late")], [Bid("c", 800, 5, "three")]),
        (10, [], []),
    ):
        harness.clock.advance(step)
        harness.feed("left", left)
        harness.feed("right", right)
        harness.run()
    assert sorted(bid.bidder for bid in harness.sink("pairs")) == bidders


def test_ranks_are_those_of_the_arrival():
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item")
    top = bids.window(Tumbling(ms(10)), time=PROCESSING).top("top", 1, by="price")
    with KeyedHarness(function_of(top), key=lambda bid: bid.item) as harness:
        for step, price in ((0, 3), (5, 4), (5, 1)):
            harness.clock.advance(step)
            harness.process(Bid("a", 1, price), timestamp=1)
        harness.clock.advance(10)
        assert [bid.price for bid in harness.output()] == [4, 1]


def test_early_steps_count_processing_time():
    stream = timed(Tumbling(ms(10)), Totals, early=ms(4))
    with KeyedHarness(function_of(stream), key=lambda bid: bid.item) as harness:
        for step in (0, 3, 2, 4, 1):
            harness.clock.advance(step)
            harness.process(Bid("a", 1, 1), timestamp=1)
        seen = [(kind.symbol, row.bids) for kind, row in harness.kinds()]
    #  0, 3 | 5, then 8: nothing ran | 9 | 10
    assert seen == [("+I", 2), ("-U", 2), ("+U", 3), ("-U", 3), ("+U", 4)]


REFUSED = [
    ({"allowed_lateness": ms(1)}, "no record is late in windows of processing time: leave allowed_lateness out"),
    ({"row_kind": "op"}, "processing time needs a stream that takes nothing back"),
]


@pytest.mark.parametrize("windows", [Tumbling(ms(10)), Hopping(ms(10), ms(5))])
@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_plan_refuses_late_and_retracted_records(windows, options, message):
    with pytest.raises(ValueError, match=f"aggregate 'summary': {message}"):
        timed(windows, Totals, **options)


def test_join_of_two_clocks_is_refused():
    pipeline = Pipeline("pairs")
    left, right = (pipeline.source(name, Bid, event_time="at").key_by("item") for name in ("left", "right"))
    other = right.window(Tumbling(ms(10)))
    with pytest.raises(ValueError, match="tumbling, 10ms of processing time and tumbling, 10ms: both sides"):
        left.window(Tumbling(ms(10)), time=PROCESSING).semi_join("pairs", other)
    changes = pipeline.source("changes", Bid, event_time="at", row_kind="op").key_by("item")
    with pytest.raises(ValueError, match="semi_join 'pairs': processing time needs a stream that takes nothing back"):
        left.window(Tumbling(ms(10)), time=PROCESSING).semi_join(
            "pairs", changes.window(Tumbling(ms(10)), time=PROCESSING)
        )


def test_unknown_clock_is_refused():
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item")
    with pytest.raises(
        TypeError, match=r"window\(\): time must be TimeDomain.EVENT_TIME or TimeDomain.PROCESSING_TIME"
    ):
        bids.window(Tumbling(ms(10)), time="processing")


def test_undeclared_retraction_fails_by_name():
    function, message = function_of(timed(Tumbling(ms(10)), Totals)), "cannot take a record back, and this one is -D"
    with KeyedHarness(function, key=lambda bid: bid.item) as harness, pytest.raises(UserFunctionError, match=message):
        harness.process(Bid("a", 1, 1), timestamp=1, kind=RowKind.DELETE)


@pytest.mark.parametrize("windows", [Tumbling(ms(10)), Session(ms(10))])
def test_clock_of_stored_windows_cannot_change(windows):
    harness = PipelineHarness(timed(windows, Totals).sink("totals"), now=NOON)
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item")
    harness.change(pipeline=bids.window(windows).aggregate("summary", Totals).sink("totals"))
    with pytest.raises(StateSchemaError, match="by_processing_time.*: has stored state and is not declared"):
        harness.run()


def test_late_side_output_does_not_exist():
    with pytest.raises(ValueError, match="aggregate 'summary' has no side output 'late': it has none"):
        timed(Tumbling(ms(10)), Totals).side("late", Bid)


def test_explain_names_the_clock():
    shown = function_of(timed(Tumbling(ms(10)), Totals)).described()
    assert shown["time"] == "processing time of the micro-batch"
    assert "when the processing time of a micro-batch passes" in shown["state_freed"]
    assert not {"late_records", "allowed_lateness"} & {*shown}
