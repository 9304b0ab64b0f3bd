"""`check` and `explain` of a job that reads a Delta table."""

from __future__ import annotations

import json
import re
import shutil

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from headrace.log.checkpoint import Kind
from headrace.sources.position import SourceFacts, TablePosition
from tests.unit.support.demo_job import JOB, PIPELINE


@pytest.fixture
def table_job(headrace, home):
    """Bind the source to a table with these columns; `keys` are additional keys of the source."""

    def bind(columns, keys="", pipeline=PIPELINE):
        (home / "conf/jobs/demo.yaml").write_text(
            JOB.replace("{events: {path: events}}", "{events: {format: delta, path: orders" + keys + "}}")
        )
        (home / "demo_cli_pipeline.py").write_text(pipeline)
        if columns is not None:
            write_deltalake(str(home / "orders"), pa.table(columns))
        return headrace

    return bind


COLUMNS = {"tail": ["N1"], "at": [1], "more": [True]}


def finding(result):
    (document,) = (finding for finding in json.loads(result.stdout)["findings"] if finding["check"] == "source events")
    return document["outcome"], document["detail"]


def test_check_names_the_version_of_the_table(table_job, home):
    outcome, detail = finding(table_job(COLUMNS)("check demo --json"))
    assert (outcome, detail) == ("ok", f"{home}/orders: version 0")


@pytest.mark.parametrize(
    ("columns", "detail"),
    [
        (None, "there is no Delta table"),
        ({"tail": ["N1"]}, "orders has no column at, which Event needs"),
        ({"tail": [1], "at": [1]}, "column tail of .* is int64, which is not string"),
    ],
)
def test_check_refuses_a_table_that_does_not_fit(table_job, columns, detail):
    outcome, result = finding(table_job(columns)("check demo --json"))
    assert outcome == "fail"
    assert re.search(detail, result)


def test_check_refuses_a_replaced_table(table_job, home, state):
    headrace = table_job(COLUMNS)
    own = str(DeltaTable(str(home / "orders")).metadata().id)
    for table_id, outcome in ((own, "ok"), ("another", "fail")):
        state.commit(Kind.BATCH, sources={"events": SourceFacts(position=TablePosition(table_id=table_id, version=0))})
        result = finding(headrace("check demo --json"))
        assert (result[0], "is another table than the one that was read" in result[1]) == (outcome, outcome == "fail")


def test_check_requires_the_change_feed(table_job, home):
    by_changes = PIPELINE.replace('event_time="at")', 'event_time="at", row_kind="_change_type")')
    headrace = table_job(COLUMNS, ", change_feed: true", by_changes)
    assert "ALTER TABLE" in finding(headrace("check demo --json"))[1]
    DeltaTable(str(home / "orders")).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    assert finding(headrace("check demo --json"))[0] == "ok"


def test_check_warns_of_a_start_ahead(table_job, home):
    result = table_job(COLUMNS, ", start: version 120")("check demo")
    text = " ".join(result.stdout.split())
    assert f"{home}/orders: version 0, and nothing is read before version 120" in text
    assert "wait for it, or correct" in text
    assert (result.exit_code, "sources.events.start" in text) == (0, True), result.output


def test_explain_shows_the_source_table(table_job):
    result = table_job(COLUMNS, ", start: snapshot, skip_versions: 3-4")("explain demo")
    text = " ".join(result.stdout.replace("│", "").split())
    assert "rows appended to the Delta table" in text
    assert "(start: snapshot; skip_versions: 3-4)" in text


def test_source_table_is_no_sink(table_job, home):
    headrace = table_job(COLUMNS)
    file = home / "conf/jobs/demo.yaml"
    file.write_text(file.read_text().replace("path: lake/board", "path: orders"))
    result = headrace("check demo")
    assert (result.exit_code, "source 'events' reads this folder" in result.stderr) == (2, True)


def test_damaged_log_is_listed_as_a_problem(table_job, home):
    headrace = table_job(COLUMNS)
    shutil.rmtree(home / "orders" / "_delta_log")
    assert finding(headrace("check demo --json"))[0] == "fail"


def test_status_lists_versions_that_were_passed_over(table_job, home):
    headrace = table_job(COLUMNS, ", on_change: skip")
    headrace("run demo --runner local")
    table = DeltaTable(str(home / "orders"))
    table.delete("tail = 'N1'")
    write_deltalake(str(home / "orders"), pa.table(COLUMNS), mode="append")
    result = headrace("run demo --runner local")
    assert "source 'events' passed over version 1 (DELETE, 1 file, " in result.stdout + result.stderr
    status = json.loads(headrace("status demo --json").stdout)
    (passed,) = status["jobs"][0]["sources"]["events"]["passed_over"]
    assert (passed["version"], passed["operation"], passed["files"]) == (1, "DELETE", 1)
    assert "demo: source 'events' passed over version 1 (DELETE, 1 file, " in headrace("status demo").stdout


DAYS = {"tail": ["N1", "N2"], "at": [1, 2], "more": [True, True], "day": ["2024-03-01", "2024-03-02"]}
BY_DAY = ", interval: {by: partition, column: day}"


def run_day(headrace, day, end, code=0):
    result = headrace(f"run demo --runner local --mode interval --interval-start {day} --interval-end {end}")
    assert result.exit_code == code, result.output
    return result


@pytest.mark.slow
def test_days_of_a_table_from_the_command_line(table_job, home):
    headrace = table_job(None, BY_DAY)
    write_deltalake(str(home / "orders"), pa.table(DAYS), partition_by=["day"])
    first = run_day(headrace, "2024-03-01", "2024-03-02").stdout
    assert re.search(r"interval +2024-03-01 to 2024-03-02", first)
    write_deltalake(str(home / "orders"), pa.table(DAYS).slice(0, 1), mode="append")
    assert "would leave a gap" in run_day(headrace, "2024-03-03", "2024-03-04", code=9).stderr
    assert "1 file came to intervals" in run_day(headrace, "2024-03-02", "2024-03-03").stderr
    assert "Its input has changed since" in run_day(headrace, "2024-03-01", "2024-03-02", code=9).stderr
    (named,) = json.loads(headrace("input demo --json").stdout)["input"]
    assert (named["kind"], named["file"][:24]) == ("added_file", "2024-03-01T000000.000Z/0")
    plan = headrace("backfill demo --from 2024-03-01 --to 2024-03-02 --dry-run").stdout
    assert re.search(r"files +3", plan)
    headrace("backfill demo --from 2024-03-01 --to 2024-03-02 --runner local --promote automatic")
    assert json.loads(headrace("input demo --json").stdout)["input"] == []
    assert re.search(r"ended because +done", run_day(headrace, "2024-03-01", "2024-03-02").stdout)


def test_check_requires_the_partition_column(table_job):
    outcome, detail = finding(table_job(COLUMNS, BY_DAY)("check demo --json"))
    assert outcome == "fail"
    assert "column 'day', and" in detail
    assert "is partitioned by no column at version 0" in detail
