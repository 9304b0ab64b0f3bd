"""The steps of a replay, and how a later run recognizes it. Days are numbered from 1970-01-01."""

from __future__ import annotations

import pytest

from headrace.commit.cause import Requeued
from headrace.commit.checkpoint import Kind
from headrace.sinks.sink import OutputFile
from headrace.sources.interval import Interval
from headrace.sources.offset import SourceOffset
from headrace.sources.requeued import RequeuedRows
from headrace.spark.replay import Step, open_replay, outage
from tests.unit.support.checkpoint_lines import DAY, Line, days


def steps(line):
    replay = open_replay(line.checkpoints)
    return [] if replay is None else [step.interval or step.offsets["source"].last_file for step in replay.steps]


@pytest.fixture
def line():
    return Line()


def test_replay_takes_all_later_intervals_in(line):
    line.days(1, 2, 3, 4).replay(1, days(2))
    assert steps(line) == [days(2), days(3), days(4)]


def test_replay_of_last_interval_has_one_step(line):
    line.days(1, 2).replay(1, days(2))
    assert steps(line) == [days(2)]


#    committed  |-- 1 --|---------- 2 - 4 ----------|-- 5 --|        asked: 3


def test_replay_within_a_slice_cuts_the_slice(line):
    line.days(1).take_in(days(2, 5)).days(5).replay(1, days(3))
    assert steps(line) == [days(2), days(3), days(4), days(5)]


def test_longer_interval_takes_the_place_of_several(line):
    line.days(1, 2, 3, 4).replay(1, days(2, 4))
    assert steps(line) == [days(2, 4), days(4)]


def test_replay_may_end_after_the_former_line(line):
    line.days(1, 2).replay(1, days(2, 6))
    assert steps(line) == [days(2, 6)]


def test_replay_before_the_first_interval_leaves_no_gap(line):
    line.days(5, 6).replay(0, days(2))
    assert steps(line) == [days(2), days(3, 5), days(5), days(6)]


def test_micro_batches_without_input_are_no_steps(line):
    line.days(1).again(Kind.BATCH).days(2).again(Kind.BATCH).again(Kind.COMPACTION).days(3)
    assert steps(line.replay(0, days(1))) == [days(1), days(2), days(3)]


def test_slices_without_interval_are_taken_by_files(line):
    line.days(1).files("b", "c").again(Kind.BATCH).days(5).replay(0, days(1))
    assert steps(line) == [days(1), "b", "c", days(5)]


def test_steps_that_were_taken_are_left_out(line):
    line.days(1, 2, 3).replay(0, days(1)).days(1)
    assert steps(line) == [days(2), days(3)]
    assert steps(line.days(2, 3)) == []


def test_files_that_were_taken_are_left_out(line):
    line.days(1).files("b", "c").replay(0, days(1)).days(1).files("b")
    assert steps(line) == ["c"]
    assert steps(line.files("c")) == []


def test_finished_replay_stays_finished(line):
    line.days(1, 2).replay(1, days(2)).days(2, 3, 4)
    assert steps(line) == []


def requeued(line, repeats=None):
    rows = (RequeuedRows("a", ((0, 1),), 5),)
    last = line.checkpoints[-1]
    interval = {"start": last.interval_start, "end": last.interval_end}
    return line.add(
        Kind.REQUEUE, **interval, offsets={"source": SourceOffset("b", requeued=rows)}, cause=Requeued(repeats)
    )


def test_requeue_remains_a_replay_step_until_repeated(line):
    requeued(line.days(1, 2)).days(3).replay(1, days(2))
    steps = open_replay(line.checkpoints).steps
    assert [step.interval or step.requeue.checkpoint_id for step in steps] == [days(2), 3, days(3)]
    assert str(steps[1]) == "what checkpoint 3 requeued from the quarantine"
    requeued(line.days(2), repeats=3)
    assert [step.interval for step in open_replay(line.checkpoints).steps] == [days(3)]
    assert open_replay(line.days(3).checkpoints) is None


def test_requeue_of_elements_is_a_step(line):
    line.days(1, 2).add(Kind.REQUEUE, DAY, 3 * DAY, cause=Requeued(operators=("ask",))).replay(1, days(2))
    assert [step.requeue and step.requeue.checkpoint_id for step in open_replay(line.checkpoints).steps] == [None, 3]


def test_requeue_of_nothing_is_no_step(line):
    line.days(1, 2).again(Kind.REQUEUE).replay(1, days(2))
    assert steps(line) == [days(2)]


def test_restore_by_hand_is_no_replay(line):
    line.days(1, 2, 3)
    for note in (None, "it was wrong", "interval 1970-01-03 to 1970-01-04 is run again"):
        assert steps(line.restore(1, note)) == []


def test_restore_by_hand_ends_a_replay(line):
    line.days(1, 2, 3).replay(1, days(2)).days(2).restore(1, "that was a mistake")
    assert steps(line) == []


@pytest.mark.parametrize(("target", "left"), [(6, [3, 4]), (5, [2, 3, 4]), (1, [])])
def test_reconciliation_within_a_replay_continues_it(line, target, left):
    """0 - 1 2 3 4 - 5: replay, restored to 1 - 6: day 2."""
    line.days(1, 2, 3, 4).replay(1, days(2)).days(2)
    line.restore(target, "the lake came from a backup", incarnation=7)
    assert steps(line) == [days(number) for number in left]


#    0 - 1 2 3 4 - 5: restored to 2 - 6: day 3 - 7: restored to 1, before 3 and 4 came back


def test_replay_finishes_an_interrupted_earlier_replay(line):
    line.days(1, 2, 3, 4).replay(2, days(3)).days(3).replay(1, days(2))
    assert steps(line) == [days(2), days(3), days(4)]
    assert steps(line.days(2, 3)) == [days(4)]


@pytest.mark.parametrize("wanted", [days(1), Interval(3_600_000, DAY + 60_000), Interval(1_001, 90_002)])
def test_restore_keeps_the_interval(line, wanted):
    line.take_in(wanted).replay(0, wanted)
    replay = open_replay(line.checkpoints)
    assert (replay.asked, replay.begun_by, replay.steps) == (wanted, line.checkpoints[-1], (Step(wanted),))


def test_missing_input_files_are_named(line):
    line.days(1, 2, 3).replay(1, days(2))
    assert open_replay(line.checkpoints).missing == "1970-01-03 to 1970-01-05"
    line.files("b", "c").replay(1, days(2)).days(2, 3)
    assert open_replay(line.checkpoints).missing == "files up to b and what follows, up to files up to c"


def test_outage_warning_names_checkpoints_rows_and_sinks(line):
    board = {"board": [OutputFile("x", 1, 1)]}
    line.days(1, outputs=board, metrics={"rows_in": 5}).days(2, outputs=board, metrics={"rows_in": 1_200})
    line.days(3, outputs={"alerts": board["board"]}, metrics={"rows_in": 40})
    message = outage(days(2), line.checkpoints, 1, ["board", "alerts", "other"])
    assert "checkpoints 2 to 3 (1970-01-03 to 1970-01-05, 1,240 rows in)" in message
    assert "alerts to its beginning, board to checkpoint 1." in message
    assert message.endswith("has come to 1970-01-05.")
