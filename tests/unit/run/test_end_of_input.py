"""The end of the input is a separate micro-batch, and later input is refused (no JVM)."""

from __future__ import annotations

import pytest

from headrace.commit.verify import verify
from headrace.edits.restore import restore
from headrace.errors import ConfigError, SourceError
from headrace.execution.process_context import END_OF_INPUT
from headrace.readers.query import ask, connect
from tests.jobs.outcome import assert_well_formed, checkpoints
from tests.jobs.purchase_files import day_name, purchases_of, write_rows
from tests.unit.run.noted_job import noted_job


@pytest.fixture
def job(tmp_path, monkeypatch):
    return noted_job(tmp_path, monkeypatch)


def last(job):
    return checkpoints(job.home.config())[-1]


def test_end_moves_the_watermark_past_all(job):
    report = job.run(end_of_input=True)
    assert report.stopped_because == "ended"
    assert last(job).watermark == END_OF_INPUT
    assert last(job).sources["purchases"].ended
    assert_well_formed(job.home.config())
    assert all(finding.ok for finding in verify(job.home.config()))


def test_sql_shows_the_watermark_of_the_end():
    (((end, usual),),) = (ask(connect(), f"select make_timestamp({END_OF_INPUT * 1000}), make_timestamp(0)").rows,)
    assert (end.year, usual.year) == (9999, 1970)


def test_input_end_is_declared_once(job):
    job.run(end_of_input=True)
    report = job.run(end_of_input=True)
    assert (report.stopped_because, report.checkpoints) == ("ended", [])


def test_run_after_the_input_end_is_drained(job):
    job.run(end_of_input=True)
    report = job.run()
    assert (report.stopped_because, report.checkpoints) == ("drained", [])


def test_input_after_the_declared_end_is_refused(job):
    job.run(end_of_input=True)
    job.write(4)
    with pytest.raises(SourceError, match=f"end of input was declared .* now there is {day_name(4)}"):
        job.run()
    restore(job.home.config(), 1, "more came", "somebody")
    assert job.run().stopped_because == "drained"
    assert job.contents[-1] == [day_name(4)]


@pytest.mark.slow
def test_limit_leaves_end_to_next_run(job):
    job.home.configure({"sources": {"purchases": {"max_files_per_batch": 1}}})
    assert job.run(end_of_input=True, max_batches=2).stopped_because == "max_batches"
    assert not last(job).sources["purchases"].ended
    assert job.run(end_of_input=True).stopped_because == "ended"


def test_interval_run_cannot_end_the_input(job):
    with pytest.raises(ConfigError, match="--end-of-input takes in all there is: it needs --mode caught-up"):
        job.days(0, end_of_input=True)


def test_complete_days_end_with_their_files(job):
    for day in range(2):
        write_rows(job.home.input, day_name(day), purchases_of(day, rows=3))
    for day in (2, 3):
        (job.home.input / day_name(day)).unlink()
    job.home.configure({"sources": {"purchases": {"complete_intervals": True}}})
    job.run()
    assert last(job).timelines["purchases"].bucket.next_ordinal == 8  # a punctuation takes an ordinal
    assert last(job).watermark == last(job).sources["purchases"].punctuated - 1
