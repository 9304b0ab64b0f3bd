"""Watermarks of a line in one micro-batch: planned or from reports, repeated, and seen by all operators."""

from __future__ import annotations

from datetime import timedelta

import pytest

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.records.order import record_order
from headrace.records.watermarks import Bucket, Timeline
from headrace.run.messages import TaskReport
from headrace.run.result import TimelineResult, timeline_after
from headrace.sources.slices import TimelineSlice

BEFORE = Bucket(8, open_max=70)


def parent(**timelines):
    return Checkpoint(
        checkpoint_id=1,
        kind=Kind.BATCH,
        run_id="run",
        attempt_id="attempt",
        max_parallelism=128,
        versions={},
        committed_at=0,
        incarnation=1,
        timelines=timelines,
    )


def after(checkpoint, part, *reports):
    tasks = [TaskReport(buckets=buckets) for buckets in reports]
    return timeline_after(
        checkpoint, ("legs", "gates"), part, tasks, size=10, out_of_orderness=timedelta(milliseconds=4)
    )


def test_reports_of_tasks_move_a_line():
    line = after(
        parent(legs=Timeline(("legs",), BEFORE)),
        TimelineSlice(("legs",), BEFORE, 18),
        {0: 50, 1: 190},
        {1: 180, 2: 250},
    )
    assert line == TimelineResult(Bucket(26, open_max=250, closed_max=190), [(10, 65), (20, 185)], 185, None)


def test_planned_watermarks_are_kept():
    part = TimelineSlice(("legs", "gates"), BEFORE, 2, Bucket(10, closed_max=99), [(10, 90)])
    line = after(parent(legs=Timeline(("legs",), watermark=60, seen=50)), part, {0: 1000})
    assert line == TimelineResult(Bucket(10, closed_max=99), [(10, 90)], 90, 50)


def test_line_without_input_stands_still():
    line = after(parent(legs=Timeline(("legs",), BEFORE, 60, 60)), None)
    assert line == TimelineResult(BEFORE, [], 60, 60)


def test_joined_lines_repeat_the_last_watermark():
    legs = Timeline(("legs",), BEFORE, 60, 50, repeated=((5, 60),))
    line = after(parent(legs=legs, gates=Timeline(("gates",), watermark=40, seen=40)), None)
    assert line.watermarks == [(5, 60), (8, 60)]
    assert (line.watermark, line.seen) == (60, 50)


@pytest.mark.parametrize(
    ("cut", "seen", "repeated"),
    [
        (None, 2, ()),
        (record_order(20), 2, ()),
        (record_order(19), 1, ((20, 2),)),
        (record_order(9), 0, ((10, 1), (20, 2))),
    ],
)
def test_operators_have_seen_watermarks_up_to_the_cut(cut, seen, repeated):
    line = TimelineResult(Bucket(), [(10, 1), (20, 2)], 2, 0)
    line.settle(cut)
    assert (line.seen, line.repeated) == (seen, repeated)
