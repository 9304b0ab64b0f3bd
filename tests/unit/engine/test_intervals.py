"""Which interval follows which: go on, replay, or refuse. Days are numbered from 1970-01-01."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.errors import ConfigError, IntervalError
from engine.spark.interval import Interval, Place, place_of, why_restored

DAY = 86_400_000
CONTINUE = Place()


class Line:
    """A job's checkpoints, as runs commit them."""

    def __init__(self):
        self.checkpoints = []
        self.add(Kind.INITIAL)

    def add(self, kind, start=None, end=None, restored_from=None, note=None):
        last = self.checkpoints[-1].checkpoint_id if self.checkpoints else None
        checkpoint = Checkpoint(
            checkpoint_id=0 if last is None else last + 1,
            kind=kind,
            run_id="r",
            attempt_id="a",
            max_parallelism=128,
            versions={},
            committed_at=0,
            parent_id=last,
            interval_start=start,
            interval_end=end,
            restored_from=restored_from,
            note=note,
        )
        self.checkpoints.append(checkpoint)
        return self

    def days(self, *days):
        for day in days:
            self.add(Kind.BATCH, day * DAY, (day + 1) * DAY)
        return self

    def again(self, kind):
        """A checkpoint that leaves the interval as it is: compaction, savepoint."""
        last = self.checkpoints[-1]
        return self.add(kind, last.interval_start, last.interval_end)

    def restore(self, target, note=None):
        found = self.checkpoints[target]
        return self.add(Kind.RESTORE, found.interval_start, found.interval_end, restored_from=target, note=note)

    def place(self, start, end=None):
        return place_of(Interval(int(start * DAY), int((end or start + 1) * DAY)), self.checkpoints)


@pytest.fixture
def line():
    return Line()


def test_the_first_interval_may_start_anywhere(line):
    assert line.place(7) == CONTINUE
    assert place_of(Interval(0, 1), []) == CONTINUE


def test_the_interval_that_starts_where_the_job_stands_goes_on(line):
    line.days(1, 2)
    assert line.place(3) == CONTINUE


def test_a_gap_is_refused_and_the_missing_start_is_named(line):
    line.days(1, 2)
    with pytest.raises(IntervalError, match=r"1970-01-05 to 1970-01-06 would leave a gap: .* up to 1970-01-04"):
        Line().days(1, 2).place(4)


@pytest.mark.parametrize(("day", "checkpoint"), [(3, 2), (2, 1)])
def test_an_interval_that_was_run_is_replayed_on_the_checkpoint_before_it(line, day, checkpoint):
    line.days(1, 2, 3)
    assert line.place(day) == Place(checkpoint)


def test_the_very_first_interval_is_replayed_on_the_state_before_it(line):
    line.days(1, 2)
    assert line.place(1) == Place(0)


def test_a_longer_interval_may_replace_several(line):
    line.days(1, 2, 3)
    assert line.place(2, 4) == Place(1)


#    committed  |-- 1 --|------ 2 ------|        wanted starts within 2: 1 is restored, the days between are replayed


@pytest.mark.parametrize(
    ("start", "restored", "replayed"),
    [(3, 1, Interval(2 * DAY, 3 * DAY)), (2, 1, None), (1.5, 0, Interval(DAY, 3 * DAY // 2))],
)
def test_an_interval_within_a_slice_replays_the_slice_up_to_it(line, start, restored, replayed):
    line.days(1).add(Kind.BATCH, 2 * DAY, 5 * DAY)
    assert line.place(start) == Place(restored, replayed)


def test_an_interval_before_the_first_one_starts_anew(line):
    line.days(5, 6)
    assert line.place(2) == Place(0)


def test_compactions_and_savepoints_belong_to_the_interval_before_them(line):
    line.days(1).again(Kind.COMPACTION).again(Kind.SAVEPOINT).days(2)
    assert line.place(3) == CONTINUE
    assert line.place(2) == Place(3)  # with the compaction, and the savepoint
    assert line.place(1) == Place(0)


#    0 - 1: day 1 - 2: day 2 - 3: day 3 - 4: restored to 1 - 5: day 2 again


def test_what_was_restored_away_does_not_count(line):
    line.days(1, 2, 3).restore(1)
    assert line.place(2) == CONTINUE
    with pytest.raises(IntervalError, match="gap"):
        line.place(3)
    line.days(2)
    assert line.place(3) == CONTINUE
    assert line.place(2) == Place(4)
    with pytest.raises(IntervalError, match="gap"):
        line.place(4)


def test_a_restore_to_the_beginning_goes_on_where_the_first_interval_began_or_earlier(line):
    line.days(1, 2).restore(0)
    with pytest.raises(IntervalError, match="gap"):
        line.place(5)
    assert line.place(1) == CONTINUE
    assert line.place(0) == CONTINUE
    line.days(1)
    assert line.place(1) == Place(3)


@pytest.mark.parametrize(("restored", "replayed"), [(0, Interval(DAY, 3 * DAY)), (1, Interval(2 * DAY, 3 * DAY))])
def test_a_replay_that_broke_off_is_taken_up_by_the_same_interval_alone(line, restored, replayed):
    line.days(1, 2, 3).restore(restored, why_restored(Interval(3 * DAY, 4 * DAY)))
    assert line.place(3) == Place(replay=replayed)
    with pytest.raises(IntervalError, match="gap"):
        line.place(4)


def test_a_restore_of_a_restore_leads_to_where_that_led(line):
    line.days(1, 2).restore(1).days(2, 3).restore(3).days(2)
    assert line.place(3) == CONTINUE
    assert line.place(1) == Place(0)


wishes = st.tuples(st.integers(0, 9), st.integers(1, 3), st.sampled_from(["run", "run", "compact", "savepoint"]))


@given(wishes=st.lists(wishes, max_size=15))
def test_in_any_order_of_runs_what_was_taken_in_has_no_gap_and_no_overlap(wishes):
    line, taken = Line(), [[]]  # the intervals that each checkpoint has taken in
    for start, length, wish in wishes:
        if wish != "run":
            line.again(Kind.COMPACTION if wish == "compact" else Kind.SAVEPOINT)
            taken.append(taken[-1])
            continue
        try:
            place = line.place(start, start + length)
        except IntervalError:
            assert start * DAY > taken[-1][-1].end
            continue
        if place.restore_to is not None:
            line.restore(place.restore_to)
            taken.append(taken[place.restore_to])
        for interval in filter(None, [place.replay, Interval(start * DAY, (start + length) * DAY)]):
            line.add(Kind.BATCH, interval.start, interval.end)
            taken.append([*taken[-1], interval])
        assert all(one.end == following.start for one, following in itertools.pairwise(taken[-1]))


def test_an_interval_needs_both_ends_and_a_length():
    assert Interval.of(0, DAY) == Interval(0, DAY)
    for start, end in ((None, 1), (1, None)):
        with pytest.raises(ConfigError, match="needs --interval-start and --interval-end"):
            Interval.of(start, end)
    for end in (DAY, DAY - 1):
        with pytest.raises(ConfigError, match="is empty"):
            Interval.of(DAY, end)


def test_an_interval_is_written_with_times_of_day_only_where_they_matter():
    assert str(Interval(0, DAY)) == "1970-01-01 to 1970-01-02"
    assert str(Interval(3_600_000, DAY)) == "1970-01-01T01:00Z to 1970-01-02"
