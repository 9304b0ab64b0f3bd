"""Rows that a source has refused are taken in after a requeue, before new rows and exactly once (no JVM).

Names of rows that the first code refuses end in `?`.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.edits.compact import compact
from headrace.edits.restore import savepoint
from headrace.errors import ConfigError, SourceError
from headrace.log.checkpoint import Kind
from tests.unit.support.refused_rows import Mended, RefusedJob, pipeline, table

DAY = 86_400_000
START = 1_577_836_800_000


@pytest.fixture
def job():
    result = RefusedJob(bucket=2)
    result.feed("p", "q?", "r", "s?")
    result.run()
    assert result.arrived() == ["p", "r"]
    assert result.quarantine() == [("000001.parquet:1", "size is null"), ("000001.parquet:3", "size is null")]
    return result


def test_next_run_takes_requeued_rows_in(job):
    result = job.mend().requeue(why="mended")
    assert (result.kind, result.note, result.metrics["requeued_rows"]) == (Kind.REQUEUE, "mended", 2)
    assert (job.quarantine(), job.waiting()) == ([], [("000001.parquet", ((1, 2), (3, 4)))])
    report = job.run()
    assert (report.rows_in, report.stopped_because) == (2, "drained")
    assert job.arrived() == ["p", "r", "q?", "s?"]
    assert (job.quarantine(), job.waiting()) == ([], [])


def test_requeued_rows_precede_new_rows_once(job):
    job.mend().requeue()
    job.feed("t", at=9000)
    job.run()
    job.run()
    assert job.arrived() == ["p", "r", "q?", "s?", "t"]
    assert job.requeue() is None


def test_row_that_is_still_bad_returns_to_quarantine(job):
    for _ in range(2):
        assert job.requeue().metrics["requeued"] == 2
        job.run()
        assert job.waiting() == []
        assert job.quarantine() == [("000001.parquet:1", "size is null"), ("000001.parquet:3", "size is null")]
    assert job.mend().requeue().metrics["requeued"] == 2
    job.run()
    assert job.arrived() == ["p", "r", "q?", "s?"]


def test_selected_files_and_sources_alone_move(job):
    job.feed("t?", at=9000)
    job.run()
    job.mend()
    with pytest.raises(ConfigError, match=r"no async operator or source 'arrivals' \(it has: rows\)"):
        job.requeue(operator="arrivals")
    assert job.requeue(files=["unknown.parquet"]) is None
    assert job.requeue(operator="rows", files=["000002.parquet"]).metrics["requeued"] == 1
    job.run()
    assert job.arrived() == ["p", "r", "t?"]
    assert [position for position, _ in job.quarantine()] == ["000001.parquet:1", "000001.parquet:3"]


def test_two_requeues_before_a_run_add_up(job):
    job.feed("t?", at=9000)
    job.run()
    job.mend().requeue(files=["000002.parquet"])
    job.requeue()
    assert [file for file, _ in job.waiting()] == ["000001.parquet", "000002.parquet"]
    job.run()
    assert job.arrived() == ["p", "r", "q?", "s?", "t?"]


@pytest.mark.parametrize("name", ["a:3.parquet", "a.parquet:1-2.parquet", "a\nb.parquet", "é %20.parquet"])
def test_requeue_accepts_any_file_name(name):
    job = RefusedJob()
    job.feed("p", "q?", file=name)
    job.run()
    assert job.mend().requeue().metrics["requeued_rows"] == 1
    job.run()
    assert job.arrived() == ["p", "q?"]


def file_of(job, name="000001.parquet"):
    return job.harness.folder / "input" / "rows" / name


def test_requeue_of_a_deleted_file_changes_nothing(job):
    content = file_of(job).read_bytes()
    file_of(job).unlink()
    before = job.last.checkpoint_id
    with pytest.raises(SourceError, match=r"000001\.parquet of .* is gone.*Nothing was requeued\. Put the file back"):
        job.requeue()
    assert (job.last.checkpoint_id, len(job.quarantine())) == (before, 2)
    file_of(job).write_bytes(content)
    assert job.requeue()


@pytest.mark.parametrize("names", [("p", "r", "q?", "s?"), ("p", "q?"), ("p", "q", "r", "s?")])
def test_file_with_other_rows_changes_nothing(job, names):
    pq.write_table(table(*names), file_of(job))
    with pytest.raises(SourceError, match=r"row \d of .* is not the row that was refused.*Nothing was requeued"):
        job.requeue()
    assert len(job.quarantine()) == 2


def test_unreadable_file_changes_nothing(job):
    file_of(job).write_bytes(b"PAR1")
    with pytest.raises(SourceError, match=r"cannot read .*Nothing was requeued"):
        job.requeue()


def test_run_never_skips_requeued_rows(job):
    job.mend().requeue()
    content = file_of(job).read_bytes()
    file_of(job).unlink()
    job.feed("t", at=9000)
    with pytest.raises(SourceError, match=r"000001\.parquet of .* is gone, and rows of it that were requeued"):
        job.run()
    pq.write_table(table("p"), file_of(job))
    with pytest.raises(SourceError, match="has changed .it had 4 rows, and now 1 can be read"):
        job.run()
    file_of(job).write_bytes(content)
    job.run()
    assert job.arrived() == ["p", "r", "q?", "s?", "t"]


def test_run_refuses_to_lose_requeued_rows(job):
    job.mend().requeue()
    job.harness.change(pipeline=pipeline(Mended, first="others"), job={})
    with pytest.raises(ConfigError, match="no source 'rows' any more, and rows of it that were requeued"):
        job.run()
    job.mend().run()
    assert job.arrived() == ["p", "r", "q?", "s?"]


def without_size(*names, at):
    return table(*names, at=at).drop(["size"])


@pytest.fixture
def refused_file():
    result = RefusedJob(source={"on_bad_file": "quarantine"})
    result.feed("p")
    result.harness.feed_table("rows", without_size("q", "r", at=5000))
    result.feed("s", at=9000)
    result.run()
    ((position, error),) = result.quarantine()
    assert position == "000002.parquet"
    assert "no column size" in error
    return result


def test_refused_file_is_taken_in_whole(refused_file):
    job = refused_file
    assert job.mend().requeue().metrics["requeued_files"] == 1
    assert job.waiting() == [("000002.parquet", None)]
    job.run()
    assert job.arrived() == ["p", "s", "q", "r"]
    assert (job.waiting(), job.quarantine()) == ([], [])


def test_refused_file_can_be_repaired(refused_file):
    job = refused_file
    pq.write_table(table("q", "r", "t", at=5000), file_of(job, "000002.parquet"))
    job.requeue()
    job.run()
    assert job.arrived() == ["p", "s", "q", "r", "t"]


def test_file_that_is_still_bad_returns_to_quarantine(refused_file):
    job = refused_file
    job.requeue()
    job.run()
    assert [position for position, _ in job.quarantine()] == ["000002.parquet"]
    file_of(job, "000002.parquet").write_bytes(b"nothing")
    job.requeue()
    job.run()
    ((position, error),) = job.quarantine()
    assert (position, "cannot read" in error) == ("000002.parquet", True)
    assert job.arrived() == ["p", "s"]


def test_waiting_rows_of_refused_file_return_alone(job):
    job.requeue()
    job.harness.change(job={"sources": {"rows": {"on_bad_file": "quarantine"}}})
    both = table("p", "q?", "r", "s?")
    pq.write_table(
        both.append_column("SIZE", both["size"]).rename_columns(["shop", "at", "name", "size", "size"]), file_of(job)
    )
    job.run()
    assert [position for position, _ in job.quarantine()] == ["000001.parquet:1", "000001.parquet:3"]
    assert "more than one column size" in job.quarantine()[0][1]


@pytest.mark.parametrize("limits", [{"max_files_per_batch": 1}, {"max_rows_per_batch": 2}, {"max_rows_per_batch": 1}])
def test_limits_split_requeued_rows_by_files(limits):
    job = RefusedJob(source=limits)
    for number in range(3):
        job.feed(f"a{number}?", f"b{number}?", at=1000 + 10_000 * number)
    job.run()
    job.mend().requeue()
    job.feed("last", at=99_000)
    job.run(max_batches=1)
    assert job.arrived() == ["a0?", "b0?"]
    assert [file for file, _ in job.waiting()] == ["000002.parquet", "000003.parquet"]
    job.run()
    assert job.arrived() == ["a0?", "b0?", "a1?", "b1?", "a2?", "b2?", "last"]


def test_order_by_sorts_rows_of_a_file():
    job = RefusedJob(options={"order_by": ("name",)})
    job.feed("c?", "d", "b?", "a?")
    job.run()
    assert [position for position, _ in job.quarantine()] == [f"000001.parquet:{row}" for row in (0, 2, 3)]
    job.requeue()
    job.run()
    assert [position for position, _ in job.quarantine()] == [f"000001.parquet:{row}" for row in (0, 2, 3)]
    job.mend().requeue()
    job.run()
    assert job.arrived() == ["d", "a?", "b?", "c?"]


def test_ended_job_takes_in_requeued_rows(job):
    job.run(end_of_input=True)
    job.mend().requeue()
    job.run(end_of_input=True)
    assert job.arrived() == ["p", "r", "q?", "s?"]
    assert job.last.sources["rows"].ended
    job.feed("t", at=9000)
    with pytest.raises(SourceError, match="the end of input was declared"):
        job.run()


def test_restores_undo_and_redo_requeues(job):
    before = job.last.checkpoint_id
    requeued = job.mend().requeue().checkpoint_id
    job.run()
    for _ in range(2):
        job.restore(requeued)
        assert (len(job.waiting()), job.arrived()) == (1, ["p", "r"])
        job.run()
        assert job.arrived() == ["p", "r", "q?", "s?"]
    job.restore(before)
    assert (job.waiting(), len(job.quarantine())) == ([], 2)
    job.run()
    assert job.arrived() == ["p", "r"]


def test_savepoints_and_compactions_keep_requeued_rows(job):
    job.mend().requeue()
    job._called(savepoint, "here", "why", "by-hand")
    job._called(compact, "by-hand")
    assert len(job.waiting()) == 1
    job.run()
    job.restore("here")
    job.run()
    assert job.arrived() == ["p", "r", "q?", "s?"]


def test_records_without_a_key_stay():
    job = RefusedJob(record=Mended)
    job.harness.feed_table("rows", pa.concat_tables([table("p", "q"), table("r", shop="")]))
    job.run()
    assert [error for _, error in job.quarantine()] == ["the key (shop_of) is null"]
    assert job.requeue() is None
    assert len(job.quarantine()) == 1


@pytest.mark.slow
def test_requeued_bad_rows_fail_run_if_configured(job):
    job.harness.change(job={"sources": {"rows": {"on_bad_row": "fail"}}})
    job.requeue()
    with pytest.raises(SourceError, match="row 1 of .*: size is null"):
        job.run()
    job.mend().run()
    assert job.arrived() == ["p", "r", "q?", "s?"]


def interval(day):
    return {"mode": "interval", "interval_start": START + day * DAY, "interval_end": START + (day + 1) * DAY}


@pytest.fixture
def daily():
    """Three days, each with a refused row."""
    result = RefusedJob(source={"interval": "%Y-%m-%d"})
    for day in range(3):
        result.feed(f"p{day}", f"q{day}?", file=f"2020-01-0{day + 1}.parquet", at=START + day * DAY)
    for day in range(2):
        result.run(**interval(day))
    return result


def test_interval_runs_take_in_requeued_rows_first(daily):
    daily.mend().requeue()
    daily.run(**interval(2))
    assert daily.arrived() == ["p0", "p1", "q0?", "q1?", "p2", "q2?"]


def test_retry_of_interval_takes_in_requeued_rows(daily):
    daily.run(**interval(2))
    daily.mend().requeue()
    daily.harness._runs -= 1  # the scheduler runs the same run again
    daily.run(**interval(2))
    assert daily.arrived() == ["p0", "p1", "p2", "q0?", "q1?", "q2?"]


@pytest.mark.slow
def test_part_of_file_is_named_and_requeued():
    """With sources that meet, a file may be read in parts; here its second part is refused because a column is missing."""

    def without_shop(*names):
        return table(*names).drop(["shop"])

    job = RefusedJob("others", source={"on_bad_file": "quarantine"}, record=Mended)
    job.feed("p", "q", "r", at=1000)
    job.feed("x", source="others", at=1500)
    job.run()
    assert job.arrived() == ["p", "x"]
    pq.write_table(without_shop("p", "q", "r"), file_of(job))
    job.feed("y", source="others", at=9000)
    job.run()
    assert [position for position, _ in job.quarantine()] == ["000001.parquet:1-3"]
    pq.write_table(table("p", "q", "r"), file_of(job))
    assert job.requeue().metrics["requeued_rows"] == 2
    job.run()
    assert job.arrived() == ["p", "x", "q", "r"]


def test_sources_that_meet_do_not_overtake_each_other():
    job = RefusedJob("others", bucket=1)
    job.feed("p", "q?", "r", at=1000)
    job.feed("x", "y?", "z", source="others", at=1500)
    job.run()
    assert job.arrived() == ["p", "x", "r"]
    before = job.last
    job.mend().requeue()
    job.run()
    assert job.arrived() == ["p", "x", "r", "q?", "y?"]
    after = job.last
    assert after.watermark == before.watermark
    assert [after.sources[name].begun for name in ("rows", "others")] == [(), ("000002.parquet",)]
    job.feed("s", at=9000)
    job.run()
    assert job.arrived() == ["p", "x", "r", "q?", "y?", "z"]
