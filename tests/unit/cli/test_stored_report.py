"""`headrace run-report`: the report of a run whose driver was elsewhere, from its checkpoints."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

NOT_STORED = {"seconds", "stopped_because", "steps", "compaction_due", "alerts", "sinks"}


@pytest.fixture
def two_days(home):
    for day in (1, 2):
        at = 1_359_590_400_000 + (day - 1) * 86_400_000
        pq.write_table(pa.table({"tail": [f"N{day}"] * day, "at": [at] * day}), home / f"events/2013-02-0{day}.parquet")
    code = home / "demo_cli_pipeline.py"
    code.write_text(code.read_text().replace("        ...", "        ctx.collect(record)"))


def of(result):
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_stored_report_equals_that_of_the_run(headrace, two_days):
    printed = of(headrace("run --runner local --run-id r1 --json"))
    stored = of(headrace("run-report --run-id r1 --json"))
    names = printed.keys() - NOT_STORED
    assert {name: stored[name] for name in names} == {name: printed[name] for name in names}
    assert (stored["stopped_because"], stored["is_whole"], stored["failed"]) == (None, False, None)
    assert {name: own["rows"] for name, own in stored["sinks"].items()} == {
        name: own["rows"] for name, own in printed["sinks"].items()
    }


def test_other_runs_do_not_count(headrace, two_days, home):
    headrace("run --runner local --run-id r1 --max-batches 1")
    pq.write_table(pa.table({"tail": ["N3"], "at": [1_359_763_200_000]}), home / "events/2013-02-03.parquet")
    second = of(headrace("run --runner local --run-id r2 --json"))
    stored = of(headrace("run-report --run-id r2 --json"))
    assert (stored["checkpoints"], stored["rows_in"]) == (second["checkpoints"], second["rows_in"])


def test_run_without_checkpoints_has_an_empty_report(headrace):
    assert of(headrace("run-report --run-id r1 --json"))["checkpoint"] is None
    of(headrace("run --runner local --run-id r0 --json"))
    stored = of(headrace("run-report --run-id r1 --json"))
    assert (stored["checkpoints"], stored["rows_in"], stored["intervals"], stored["checkpoint"]) == ([], 0, [], 1)


@pytest.fixture
def by_day(home, two_days):
    file = home / "conf/jobs/demo.yaml"
    source = {"path": "events", "interval": "%Y-%m-%d.parquet", "timezone": "UTC"}
    (home / "events/2013-01-31.parquet").unlink()
    file.write_text(
        yaml.safe_dump({**yaml.safe_load(file.read_text()), "mode": "interval", "sources": {"events": source}})
    )


DAY = "--interval-start 2013-02-01 --interval-end 2013-02-02"


def test_interval_is_whole_once_its_run_took_it(headrace, by_day):
    assert not of(headrace(f"run-report --run-id r1 {DAY} --json"))["is_whole"]
    printed = of(headrace(f"run --runner local --run-id r1 {DAY} --json"))
    stored = of(headrace(f"run-report --run-id r1 {DAY} --verify --json"))
    assert stored["is_whole"]
    names = ("intervals", "interval_start", "interval_end", "checkpoints", "watermark")
    assert [stored[name] for name in names] == [printed[name] for name in names]
    assert [step["step"] for step in stored["steps"]] == ["verify", "compaction"]
    assert not of(headrace(f"run-report --run-id r2 {DAY} --json"))["is_whole"]


def test_verification_of_a_stored_run_can_fail(headrace, by_day, home):
    headrace(f"run --runner local --run-id r1 {DAY}")
    (first, *_) = sorted((home / "lake").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-9])
    stored = of(headrace(f"run-report --run-id r1 {DAY} --verify --json"))
    assert first.name in stored["failed"]
