"""Files that record the progress of a run within its micro-batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.log.progress import BatchProgress, ProgressFiles, TaskProgress, added_up
from headrace.tables.folder import JobFolder

COUNTS = st.integers(0, 10**9)
TASKS = st.lists(
    st.builds(
        TaskProgress,
        operator=st.sampled_from(["orders", "weather"]),
        rows=COUNTS,
        of=st.none() | COUNTS,
        in_flight=COUNTS,
        waiting=COUNTS,
    )
)


@given(tasks=TASKS, of=COUNTS)
def test_progress_sums_the_tasks_of_one_operator(tasks, of):
    progress = added_up(7, "reading", of, tasks)
    there = [task for task in tasks if task.operator == progress.operator]
    assert len(there) * 2 >= len(tasks)
    assert progress.rows == sum(task.rows for task in there)
    assert (progress.in_flight, progress.waiting) == (
        sum(task.in_flight for task in there),
        sum(task.waiting for task in there),
    )
    assert progress.of >= progress.rows


def test_stage_without_reports_shows_zero():
    assert added_up(7, "reading", 50, []) == BatchProgress(
        checkpoint_id=7, operator="reading", rows=0, of=50, in_flight=0, waiting=0
    )


def test_tasks_with_known_rows_count_in_total():
    tasks = [TaskProgress(operator="weather", rows=3, of=10), TaskProgress(operator="weather", rows=4, of=20)]
    assert added_up(7, "reading", 500, tasks).of == 30


def test_progress_is_one_line_for_people():
    progress = BatchProgress(checkpoint_id=12, operator="by_item", rows=4000, of=20000, in_flight=32, waiting=5)
    assert progress.described() == "micro-batch 12, by_item: 4,000 of 20,000 rows, 32 in flight, 5 waiting"


@pytest.fixture
def files(tmp_path) -> ProgressFiles:
    return ProgressFiles(JobFolder(str(tmp_path / "job")), "a1")


def test_tasks_are_read_by_stage(files):
    for stage, task, rows in [("stage1", "0", 1), ("stage1", "1", 2), ("stage10", "0", 3), ("stage1", "0", 4)]:
        files.write_task(stage, task, TaskProgress(operator="x", rows=rows))
    assert [task.rows for task in files.read_tasks("stage1")] == [4, 2]


def test_half_written_file_is_left_out(files, tmp_path):
    files.write_task("stage0", "0", TaskProgress(operator="x", rows=1))
    files.write_task("stage0", "1", TaskProgress(operator="x", rows=2))
    (tmp_path / "job/progress/a1/stage0-0").write_bytes(b'{"operator":"x","ro')
    assert [task.rows for task in files.read_tasks("stage0")] == [2]


def test_attempt_reads_only_its_own_files(files, tmp_path):
    other = ProgressFiles(JobFolder(str(tmp_path / "job")), "a2")
    other.write_task("stage0", "0", TaskProgress(operator="x", rows=1))
    other.write(added_up(3, "x", 1, []))
    assert (files.read(), files.read_tasks("stage0")) == (None, [])
    files.remove()
    assert other.read() == added_up(3, "x", 1, [])


def test_next_run_removes_old_progress_files(files, tmp_path):
    files.write_task("stage0", "0", TaskProgress(operator="x", rows=1))
    files.write(added_up(3, "x", 1, []))
    ProgressFiles(JobFolder(str(tmp_path / "job")), "a2").remove_all()
    assert not (tmp_path / "job/progress").exists()


def test_object_stores_are_written_less_often(files):
    assert files.seconds_between < ProgressFiles(JobFolder("s3://bucket/job"), "a1").seconds_between
