"""The file of `headrace run --report`: the facts of a run for a scheduler."""

from __future__ import annotations

import json

import pytest

from headrace import spark
from headrace.errors import EngineBug, IntervalError, SparkNeededError, UserFunctionError
from headrace.run.options import RunReport, SinkReport

DAY = 86_400_000
START = 1_359_590_400_000
DONE = RunReport(
    job="demo", run_id="r1", checkpoints=[6, 7], rows_in=1200, rows_out=5, seconds=1.25, stopped_because="drained",
    quarantined=2, waiting=3, checkpoint=7, watermark=START, interval_start=START, interval_end=START + DAY,
    sinks={"board": SinkReport(rows=5, version=9, checkpoint=7)},
)  # fmt: skip


@pytest.fixture
def ends_with(home, monkeypatch):
    """Return a function that lets each run return a report, or raise an error."""

    def set_end(outcome):
        def run(config, options, on_event):
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        monkeypatch.setattr(spark, "run", run)

    return set_end


def test_report_says_where_job_and_sinks_stand(headrace, ends_with, tmp_path):
    ends_with(DONE)
    result = headrace("run", "--json", "--report", str(tmp_path / "report.json"))
    report = json.loads((tmp_path / "report.json").read_text())
    assert report == json.loads(result.stdout)
    assert (report["checkpoint"], report["rows_in"], report["waiting"], report["quarantined"]) == (7, 1200, 3, 2)
    assert (report["interval_start"], report["interval_end"]) == ("2013-01-31T00:00:00Z", "2013-02-01T00:00:00Z")
    assert report["watermark"] == "2013-01-31T00:00:00Z"
    assert report["sinks"] == {"board": {"rows": 5, "version": 9, "checkpoint": 7}}


def test_reported_error_is_not_shown_as_well(headrace, ends_with, tmp_path):
    ends_with(IntervalError("there would be a gap"))
    result = headrace("run", "--report", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text()) == {
        "error": "IntervalError",
        "message": "there would be a gap",
        "exit_code": 9,
    }
    assert (result.exit_code, "gap" in result.stderr) == (9, False)


def test_wrong_option_is_reported(headrace, ends_with, tmp_path):
    ends_with(DONE)
    result = headrace("run", "--budget", "soon", "--report", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text())["error"] == "ConfigError"
    assert result.exit_code == 2


def test_bug_is_shown_with_its_traceback(headrace, ends_with, tmp_path):
    ends_with(EngineBug("two heads"))
    result = headrace("run", "--report", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 70
    assert (result.exit_code, "Traceback" in result.stderr) == (70, True)


@pytest.mark.parametrize("outcome", [DONE, UserFunctionError("watch", "a", "r", "boom")])
def test_unwritable_report_loses_nothing(headrace, ends_with, tmp_path, outcome):
    ends_with(outcome)
    result = headrace("run", "--report", str(tmp_path / "nowhere" / "report.json"))
    assert "report.json cannot be written" in result.stderr
    if outcome is DONE:
        assert (result.exit_code, "1,200" in result.stdout) == (0, True)
    else:
        assert (result.exit_code, "boom" in result.stderr) == (5, True)


def test_failed_run_leaves_no_half_file(headrace, ends_with, tmp_path):
    ends_with(IntervalError("gap"))
    headrace("run", "--report", str(tmp_path / "report.json"))
    assert [file.name for file in tmp_path.glob("report*")] == ["report.json"]


def test_interval_that_was_taken_in_is_marked(headrace, ends_with, tmp_path):
    ends_with(IntervalError.of_taken_in("has been taken in already"))
    headrace("run", "--report", str(tmp_path / "report.json"))
    assert json.loads((tmp_path / "report.json").read_text())["is_taken_in"] is True


def test_run_that_needs_spark_has_its_code(headrace, home, monkeypatch):
    asked = {}

    def run(config, options, on_event, **settings):
        asked.update(settings)
        raise SparkNeededError("Nothing was taken in")

    monkeypatch.setattr(spark, "run", run)
    result = headrace("run", "--without-spark")
    assert (result.exit_code, asked) == (14, {"may_start": False})
    assert "Nothing was taken in" in " ".join(result.stderr.split())
