"""Early results by processing time and by number of rows, corrected later or purging their window."""

from __future__ import annotations

from collections import defaultdict
from datetime import timedelta
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Pipeline, RowKind, Struct, TimeDomain, Timestamp, Trigger
from headrace.errors import StateSchemaError
from headrace.operators import (
    Count,
    Cumulative,
    First,
    Hopping,
    Session,
    Sum,
    Tumbling,
    after_rows,
    every,
)
from headrace.testing import KeyedHarness, PipelineHarness
from tests.unit.operators.window_jobs import Bid
from tests.unit.support.changelog_table import by_fields, table_of
from tests.unit.support.fuzzing import examples
from tests.unit.support.windows_by_hand import grouped, windows_of

EVENT, PROCESSING = TimeDomain
FAR = 1000


def ms(number):
    return timedelta(milliseconds=number)


class Totals(Struct, frozen=True):
    item: str
    window_start: Timestamp
    window_end: Timestamp
    bids: Annotated[int, Count()]
    first: Annotated[str, First("bidder")]
    total: Annotated[int | None, Sum("price")]


def early(windows, trigger, *, time=EVENT, row_kind=None, lateness=0):
    bids = Pipeline("bids").source("bids", Bid, event_time="at", row_kind=row_kind).key_by("item")
    return bids.window(windows, time=time).aggregate("totals", Totals, early=trigger, allowed_lateness=ms(lateness))


def harness_of(windows, trigger, *, backend="hashmap", **options):
    function = early(windows, trigger, **options).operators[-1].function
    return KeyedHarness(function, key=lambda bid: bid.item, backend=backend)


class Model:
    """Panes of each window: its rows, by the results that were emitted; a row's time is `at`, and the window ends by `reach`."""

    def __init__(self, windows, trigger):
        self.windows, self.trigger = windows, trigger
        self.now = self.reached = 0
        self.rows, self.since = defaultdict(list), defaultdict(int)
        self.changed, self.panes = set(), []
        self.shown = {}

    def take(self, bid, at):
        for start, end in windows_of(self.windows, at):
            window = bid.item, start, end
            if end <= self.reached:
                continue
            self.rows[window].append(bid)
            self.changed.add(window)
            self.since[window] += 1
            if self.since[window] == self.trigger.rows:
                self.show(window)

    def advance(self, step):
        before, self.now = self.now, self.now + step
        width = self.trigger.step
        if width and before // width < self.now // width:
            for window in sorted(self.changed):
                self.show(window)

    def reach(self, time):
        self.reached = max(self.reached, time)
        for window in sorted(self.changed):
            if window[2] <= self.reached:
                self.show(window)

    def show(self, window):
        self.changed.discard(window)
        self.since[window] = 0
        self.shown[window] = result = Totals(*window, *totals_of(self.rows[window]))
        self.panes.append(result)
        if self.trigger.purging:
            self.rows[window] = []


def totals_of(bids):
    prices = [bid.price for bid in bids if bid.price is not None]
    return len(bids), min(bids, key=lambda bid: bid.at).bidder, sum(prices) if prices else None


BIDS = st.builds(Bid, st.sampled_from("ab"), st.integers(0, 30), st.none() | st.integers(-9, 9), st.sampled_from("xy"))
STEPS = st.lists(BIDS | st.integers(0, 9) | st.integers(1, 40).map(str), max_size=25)
ROWS = st.integers(1, 4)
TRIGGERS = st.builds(after_rows, ROWS) | st.integers(1, 9).map(lambda step: every(ms(step)))
BACKENDS = st.sampled_from(["hashmap", "rocksdb"])
PURGING = ROWS.map(lambda n: after_rows(n, purging=True)) | st.integers(1, 9).map(
    lambda step: every(ms(step), purging=True)
)


def drive(harness, model, steps):
    """Play bids, steps of the clock (numbers) and watermarks (texts)."""
    for step in steps:
        if isinstance(step, Bid):
            model.take(step, step.at)
            harness.process(step, timestamp=step.at)
        elif isinstance(step, int):
            model.advance(step)
            harness.clock.advance(step)
        else:
            model.reach(int(step))
            harness.watermark(max(model.reached, 1) - 1)
        yield


@examples(60)
@given(
    windows=st.sampled_from([Tumbling(ms(10)), Hopping(ms(10), ms(5)), Cumulative(ms(12), ms(4))]),
    trigger=TRIGGERS,
    steps=STEPS,
)
def test_early_results_show_the_current_rows(windows, trigger, steps):
    model = Model(windows, trigger)
    with harness_of(windows, trigger) as harness:
        for _ in drive(harness, model, [*steps, str(FAR)]):
            assert table_of(harness.kinds(), Totals) == by_fields(model.shown.values())
        harness.clock.advance(FAR)
        assert harness.snapshot().entries == ()


@examples(60)
@given(trigger=PURGING, steps=STEPS)
def test_purging_results_have_each_row_once(trigger, steps):
    """Each result is an insert, with the rows since the one before it."""
    model = Model(Tumbling(ms(10)), trigger)
    with harness_of(Tumbling(ms(10)), trigger) as harness:
        for _ in drive(harness, model, [*steps, str(FAR)]):
            pass
        harness.clock.advance(FAR)
        kinds = harness.kinds()
        assert {kind for kind, _ in kinds} <= {RowKind.INSERT}
        assert sorted(map(repr, (row for _, row in kinds))) == sorted(map(repr, model.panes))
        assert harness.snapshot().entries == ()


@examples(60)
@given(
    trigger=TRIGGERS | PURGING, batches=st.lists(st.tuples(st.integers(0, 9), st.lists(BIDS, max_size=4)), max_size=8)
)
def test_windows_of_processing_time_take_triggers(trigger, batches):
    model, windows = Model(Tumbling(ms(20)), trigger), Tumbling(ms(20))
    with harness_of(windows, trigger, time=PROCESSING) as harness:
        for step, bids in [*batches, (FAR, [])]:
            harness.clock.advance(step)
            ended = (model.now + step) // 20 * 20
            model.advance(min(step, max(ended - 1 - model.now, 0)))
            model.reach(ended)
            model.advance(harness.clock.now() - model.now)
            for bid in bids:
                model.take(bid, model.now)
                harness.process(bid, timestamp=bid.at)
        changes = harness.kinds()
        if trigger.purging:
            bids = [(row.window_start, row.bids) for _, row in changes]
            assert sum(number for _, number in bids) == sum(len(bids) for _, bids in batches)
        else:
            assert {(row.item, row.window_start): row.bids for row in table_of(changes, Totals)} == {
                (item, start): row.bids for (item, start, _), row in model.shown.items()
            }
        assert harness.snapshot().entries == ()


# ------------------------------------------------------------------------------------------------------- sessions


def sessions_of(bids, gap):
    """Return the rows of each session: (item, start, end) and bids; none is late."""
    return grouped(Session(ms(gap)), bids)


@pytest.mark.slow
@examples(60)
@given(trigger=TRIGGERS | PURGING, steps=st.lists(BIDS | st.integers(0, 9), max_size=25), backend=BACKENDS)
def test_early_sessions_end_with_whole_ones(trigger, steps, backend):
    """Results are retracted as they were emitted; purging ones have each row once, whatever sessions merge."""
    with harness_of(Session(ms(5)), trigger, backend=backend) as harness:
        for step in steps:
            if isinstance(step, Bid):
                harness.process(step, timestamp=step.at)
            else:
                harness.clock.advance(step)
        harness.watermark(FAR)
        harness.clock.advance(FAR)
        changes = harness.kinds()
        assert harness.snapshot().entries == ()
    bids = [step for step in steps if isinstance(step, Bid)]
    if trigger.purging:
        assert {kind for kind, _ in changes} <= {RowKind.INSERT}
        assert sum(row.bids for _, row in changes) == len(bids)
        return
    expected = [
        Totals(*session, *totals_of([bid for _, bid in rows])) for session, rows in sessions_of(bids, 5).items()
    ]
    assert table_of(changes, Totals) == by_fields(expected)


def test_merged_sessions_add_up_their_rows():
    """As Flink's `CountTrigger.onMerge`: two sessions of two and one rows, and the row that merges them, make four."""
    with harness_of(Session(ms(5)), after_rows(4)) as harness:
        for at in (0, 2, 10):
            harness.process(Bid("a", at, 1), timestamp=at)
        assert harness.kinds() == []
        harness.process(Bid("a", 6, 1, "x"), timestamp=6)
        assert harness.kinds() == [(RowKind.INSERT, Totals("a", 0, 15, 4, "", 4))]
        harness.process(Bid("a", 12, 1), timestamp=12)
        harness.watermark(16)
        assert [(kind.symbol, row.window_end, row.bids) for kind, row in harness.kinds()] == [
            ("+I", 15, 4),
            ("-D", 15, 4),
            ("+I", 17, 5),
        ]


def test_sessions_of_processing_time_take_triggers():
    with harness_of(Session(ms(5)), every(ms(4)), time=PROCESSING) as harness:
        for step in (0, 3, 2, 4, 20):
            harness.clock.advance(step)
            harness.process(Bid("a", 1, 1), timestamp=1)
        seen = [(kind.symbol, row.window_start, row.window_end, row.bids) for kind, row in harness.kinds()]
    #  rows at 0, 3, 5, 9 and 29; steps end at 4 and 8, and fire with the clock's moves to 5 and 9
    assert seen == [("+I", 0, 8, 2), ("-D", 0, 8, 2), ("+I", 0, 10, 3), ("-D", 0, 10, 3), ("+I", 0, 14, 4)]


# ------------------------------------------------------------------------------------------------------ whole jobs


@pytest.mark.slow
@examples(6)
@given(
    trigger=TRIGGERS | PURGING,
    batches=st.lists(st.tuples(st.integers(0, 9), st.lists(BIDS, max_size=5)), max_size=5),
    parallelism=st.sampled_from([1, 3]),
    crash_at=st.sampled_from([None, "task.half:1", "commit.after", "publish.half"]),
)
def test_crash_and_parallelism_change_no_result(trigger, batches, parallelism, crash_at):
    def emitted(parallelism, crash_at):
        harness = PipelineHarness(early(Tumbling(ms(10)), trigger).sink("totals"), now=100, parallelism=parallelism)
        for step, bids in batches:
            harness.clock.advance(step)
            harness.feed("bids", bids)
            harness.run(crash_at=crash_at)
            harness.run()
        harness.run(end_of_input=True)
        return sorted(map(repr, harness.sink("totals")))

    assert emitted(parallelism, crash_at) == emitted(1, None)


def test_flink_purging_count_trigger_example():
    """`PurgingTrigger.of(CountTrigger.of(2))`: each second row of a window makes a result of two rows; the end adds the rest."""
    with harness_of(Tumbling(ms(10)), after_rows(2, purging=True)) as harness:
        for bidder in "vwxyz":
            harness.process(Bid("a", 1, 1, bidder), timestamp=1)
        harness.watermark(9)
        seen = [(kind.symbol, row.bids, row.first) for kind, row in harness.kinds()]
    assert seen == [("+I", 2, "v"), ("+I", 2, "x"), ("+I", 1, "z")]


def test_late_row_corrects_a_triggered_window():
    with harness_of(Tumbling(ms(10)), after_rows(2), lateness=5) as harness:
        for at, watermark in ((1, 0), (2, 9), (3, 30)):
            harness.process(Bid("a", at, 1), timestamp=at)
            harness.watermark(watermark)
        assert [kind.symbol for kind, _ in harness.kinds()] == ["+I", "-U", "+U"]


def test_early_result_follows_its_retraction():
    """A row that takes all others back deletes the early result."""
    with harness_of(Tumbling(ms(10)), after_rows(1), row_kind="op") as harness:
        for kind in (RowKind.INSERT, RowKind.DELETE):
            harness.process(Bid("a", 1, 1), timestamp=1, kind=kind)
        harness.watermark(9)
        assert [kind.symbol for kind, _ in harness.kinds()] == ["+I", "-D"]
        assert harness.snapshot().entries == ()


REFUSED = [
    (Hopping(ms(10), ms(5)), {}, "windows that overlap share their records"),
    (Cumulative(ms(10), ms(5)), {}, "windows that overlap share their records"),
    (Tumbling(ms(10)), {"lateness": 1}, "purging=True keeps nothing that a late record could correct"),
    (Session(ms(10)), {"lateness": 1}, "purging=True keeps nothing that a late record could correct"),
    (Tumbling(ms(10)), {"row_kind": "op"}, "purging=True keeps nothing that -U and -D could take back"),
]


@pytest.mark.parametrize(("windows", "options", "message"), REFUSED)
def test_purging_is_refused_where_rows_are_needed(windows, options, message):
    for trigger in (every(ms(5), purging=True), after_rows(3, purging=True)):
        with pytest.raises(ValueError, match=f"aggregate 'totals': {message}"):
            early(windows, trigger, **options)


@pytest.mark.parametrize("step", [ms(0), ms(-1), timedelta(microseconds=1500), timedelta(days=40_000)])
def test_step_must_be_whole_milliseconds(step):
    with pytest.raises(ValueError, match=r"every\(\) takes whole milliseconds, from 1 ms to 36,500 days"):
        every(step)


@pytest.mark.parametrize("n", [0, -3, True, 2.0, "7"])
def test_number_of_rows_must_be_whole(n):
    with pytest.raises(ValueError, match=r"after_rows\(\) takes a whole number of at least 1"):
        after_rows(n)


@pytest.mark.parametrize("given_early", [5, "5m", every])
def test_early_takes_lengths_and_triggers(given_early):
    with pytest.raises(
        TypeError, match=r"aggregate 'totals': early must be a timedelta, every\(...\) or after_rows\(...\), not"
    ):
        early(Tumbling(ms(10)), given_early)
    with pytest.raises(TypeError, match=r"every\(\) takes a timedelta, not 5"):
        every(5)


@pytest.mark.parametrize("windows", [Tumbling(ms(10)), Session(ms(10))])
@pytest.mark.parametrize(
    ("before", "after"), [(every(ms(5)), every(ms(5), purging=True)), (after_rows(2, purging=True), None)]
)
def test_purging_cannot_be_switched_later(windows, before, after):
    harness = PipelineHarness(early(windows, before).sink("totals"))
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    harness.change(pipeline=early(windows, after).sink("totals"))
    with pytest.raises(StateSchemaError, match="has stored state and is not declared"):
        harness.run()


def test_other_step_applies_to_open_windows():
    harness = PipelineHarness(early(Tumbling(ms(1000)), every(ms(50))).sink("totals"), now=100)
    harness.feed("bids", [Bid("a", 1, 5)])
    harness.run()
    harness.change(pipeline=early(Tumbling(ms(1000)), every(ms(7))).sink("totals"))
    for step in (50, 7, 0):
        harness.clock.advance(step)
        harness.feed("bids", [Bid("a", 1, 5)])
        harness.run()
    assert [row.bids for row in harness.sink("totals")] == [1, 1, 2]


@pytest.mark.parametrize(
    ("trigger", "shown"),
    [
        (every(timedelta(minutes=5)), "every 5m of processing time"),
        (after_rows(1000), "after 1,000 rows"),
        (after_rows(1, purging=True), "after 1 row, of the records since the last one"),
    ],
)
@pytest.mark.parametrize("windows", [Tumbling(ms(10)), Session(ms(10))])
def test_explain_shows_the_trigger(windows, trigger, shown):
    assert early(windows, trigger).operators[-1].function.described()["early_results"] == shown


def test_purging_stream_is_of_inserts():
    """No key is unique: a window has several results, and none is taken back."""
    changes = {
        purging: early(Tumbling(ms(10)), after_rows(3, purging=purging))._use().node.changes
        for purging in (True, False)
    }
    assert (changes[True].mode.is_insert, changes[True].unique) == (True, ())
    assert changes[False].may_retract
    assert ("item", "window_start") in changes[False].unique


@pytest.mark.parametrize("wrong", [{}, {"step": 0}, {"step": 2.5}, {"rows": 0}, {"rows": True}, {"step": 5, "rows": 2}])
def test_trigger_is_a_step_or_a_number(wrong):
    with pytest.raises(ValueError, match="either a step .ms. or a number of rows"):
        Trigger(**wrong)


def test_parts_of_windows_reach_no_keyed_table():
    bids = Pipeline("bids").source("bids", Bid, event_time="at").key_by("item").window(Tumbling(timedelta(seconds=1)))
    parts = bids.aggregate("parts", n=Count(), early=after_rows(2, purging=True))
    for stream in (parts, parts.filter(lambda row: row.n > 0)):
        with pytest.raises(ValueError, match="'parts' has purging=True"):
            stream.sink("totals", key=("item", "window_start"))
    parts.sink("parts")
    whole = bids.aggregate("whole", n=Count(), early=after_rows(2))
    whole.sink("totals", key=("item", "window_start"))
