"""The order of intervals: continue, go back, or refuse. Days are numbered from 1970-01-01."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import ConfigError, IntervalError
from headrace.log.checkpoint import Kind
from headrace.log.intervals import IntervalPlace, place_of, position_of
from headrace.log.lineage import Lineage
from headrace.sources.interval import Interval
from tests.unit.support.checkpoint_lines import DAY, Line, days

CONTINUE = IntervalPlace()


@pytest.fixture(name="line")
def new_line():
    return Line()


def test_place_lies_before_promoted_checkpoints():
    line = Line().days(1)
    for day in (2, 3):
        line.take_in(days(day), has_state=False)
    line.add(Kind.PROMOTION, days(3).start, days(3).end, restored_from=1)
    assert line.place(3) == IntervalPlace(1)
    assert line.place(4) == IntervalPlace()


def test_first_interval_may_start_anywhere(line):
    assert line.place(7) == CONTINUE
    assert place_of(Interval(0, 1), []) == CONTINUE


def test_interval_at_position_of_job_continues(line):
    line.days(1, 2)
    assert line.place(3) == CONTINUE


def test_gap_is_refused_with_missing_start(line):
    line.days(1, 2)
    with pytest.raises(IntervalError, match=r"1970-01-05 to 1970-01-06 would leave a gap: .* up to 1970-01-04"):
        Line().days(1, 2).place(4)


@pytest.mark.parametrize(("day", "checkpoint"), [(3, 2), (2, 1)])
def test_earlier_interval_follows_checkpoint_before_it(line, day, checkpoint):
    line.days(1, 2, 3)
    assert line.place(day) == IntervalPlace(checkpoint)


def test_first_interval_follows_the_initial_state(line):
    line.days(1, 2)
    assert line.place(1) == IntervalPlace(0)


def test_longer_interval_may_replace_several(line):
    line.days(1, 2, 3)
    assert line.place(2, 4) == IntervalPlace(1)


#    committed  |-- 1 --|------ 2 ------|        wanted starts within 2: 1 is restored


@pytest.mark.parametrize(("start", "restored"), [(3, 1), (2, 1), (1.5, 0)])
def test_interval_within_a_slice_restores_its_predecessor(line, start, restored):
    line.days(1).add(Kind.BATCH, 2 * DAY, 5 * DAY)
    assert line.place(start) == IntervalPlace(restored)


def test_interval_before_the_first_one_starts_anew(line):
    line.days(5, 6)
    assert line.place(2) == IntervalPlace(0)


def test_compactions_and_savepoints_belong_to_former_interval(line):
    line.days(1).again(Kind.COMPACTION).again(Kind.SAVEPOINT).days(2)
    assert line.place(3) == CONTINUE
    assert line.place(2) == IntervalPlace(3)  # with the compaction, and the savepoint
    assert line.place(1) == IntervalPlace(0)


#    0 - 1: day 1 - 2: day 2 - 3: day 3 - 4: restored to 1 - 5: day 2 again


def test_intervals_undone_by_restore_do_not_count(line):
    line.days(1, 2, 3).restore(1)
    assert line.place(2) == CONTINUE
    with pytest.raises(IntervalError, match="gap"):
        line.place(3)
    line.days(2)
    assert line.place(3) == CONTINUE
    assert line.place(2) == IntervalPlace(4)
    with pytest.raises(IntervalError, match="gap"):
        line.place(4)


def test_restore_to_beginning_continues_at_first_interval(line):
    line.days(1, 2).restore(0)
    with pytest.raises(IntervalError, match="gap"):
        line.place(5)
    assert line.place(1) == CONTINUE
    assert line.place(0) == CONTINUE
    line.days(1)
    assert line.place(1) == IntervalPlace(3)


def test_restore_of_restore_follows_its_target(line):
    line.days(1, 2).restore(1).days(2, 3).restore(3).days(2)
    assert line.place(3) == CONTINUE
    assert line.place(1) == IntervalPlace(0)


def test_gap_behind_a_restore_names_the_restore(line):
    line.days(1, 2, 3).restore(1, "by hand")
    with pytest.raises(
        IntervalError,
        match=r"up to 1970-01-03 \(checkpoint 4 restored it to checkpoint 1\)\. Nothing was taken in\. Run",
    ):
        line.place(4)


wishes = st.tuples(
    st.integers(0, 9),
    st.integers(1, 3),
    st.sampled_from(["run", "run", "run", "compact", "savepoint"]),
)


@given(wishes=st.lists(wishes, max_size=15))
def test_any_order_of_runs_leaves_no_gap(wishes):
    """An interval continues the line, or an earlier checkpoint is restored for it: then the line is without gaps, too."""
    log = Line()
    for start, length, wish in wishes:
        if wish != "run":
            log.again(Kind.COMPACTION if wish == "compact" else Kind.SAVEPOINT)
            continue
        wanted = Interval(start * DAY, (start + length) * DAY)
        try:
            place = place_of(wanted, log.checkpoints)
        except IntervalError:
            position = position_of(Lineage(log.checkpoints).checkpoints)
            assert position is None or wanted.start > position
            continue
        if place.restore_to is not None:
            log.restore(place.restore_to)
            back_at = position_of(Lineage(log.checkpoints).checkpoints)
            wanted = Interval(wanted.start if back_at is None else back_at, wanted.end)
        log.take_in(wanted)
        taken_in = [c for c in Lineage(log.checkpoints).checkpoints if c.kind is Kind.BATCH]
        assert all(
            checkpoint.interval_end == following.interval_start
            for checkpoint, following in itertools.pairwise(taken_in)
        )
        assert taken_in[-1].interval_end == wanted.end


def test_interval_needs_both_ends_and_a_length():
    assert Interval.of(0, DAY) == Interval(0, DAY)
    for start, end in ((None, 1), (1, None)):
        with pytest.raises(ConfigError, match="needs --interval-start and --interval-end"):
            Interval.of(start, end)
    for end in (DAY, DAY - 1):
        with pytest.raises(ConfigError, match="is empty"):
            Interval.of(DAY, end)


def test_interval_text_has_times_only_if_needed():
    assert str(Interval(0, DAY)) == "1970-01-01 to 1970-01-02"
    assert str(Interval(3_600_000, DAY)) == "1970-01-01T01:00Z to 1970-01-02"
    assert str(Interval(1_500, 60_000)) == "1970-01-01T00:00:01.500Z to 1970-01-01T00:01Z"
