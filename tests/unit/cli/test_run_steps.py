"""`headrace run --check --verify`: the steps around a run, in its own process."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

RUN = "run --runner local --check --verify --json"


@pytest.fixture
def change(home):
    """Return a function that changes keys of the job's file."""
    file = home / "conf/jobs/demo.yaml"

    def write(**keys):
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **keys}))

    return write


def steps_of(result):
    return {step["step"]: step for step in json.loads(result.stdout)["steps"]}


def test_steps_of_run_are_in_its_report(headrace):
    result = headrace(RUN)
    steps = steps_of(result)
    assert (result.exit_code, list(steps)) == (0, ["check", "run", "verify", "compaction"])
    assert {step["outcome"] for step in steps.values()} == {"ok"}
    assert all(step["seconds"] >= 0 and step["findings"] == [] for step in steps.values())


def test_plain_run_takes_one_step(headrace):
    result = headrace("run --runner local --json")
    assert (list(steps_of(result)), json.loads(result.stdout)["compaction_due"]) == (["run"], None)


def test_warning_of_the_check_stops_nothing(headrace, change):
    change(services={"weather": {"url": "http://127.0.0.1:9", "health": "/health"}})
    result = headrace(RUN)
    (finding,) = steps_of(result)["check"]["findings"]
    assert (result.exit_code, finding["check"], finding["outcome"]) == (0, "service weather", "warn")
    assert "check (warn): service weather: http://127.0.0.1:9/health" in result.stderr


def test_run_refuses_by_its_own_code(headrace, home):
    for file in (home / "events").iterdir():
        file.write_bytes(b"no parquet")
    result = headrace(RUN)
    assert result.exit_code == 7


def test_wrong_file_ends_before_the_run(headrace, change):
    change(parallelism="many")
    result = headrace(RUN)
    assert (result.exit_code, "parallelism" in str(result.exception) + result.output) == (2, True)


@pytest.mark.slow
def test_failed_verification_keeps_the_checkpoints(headrace, home):
    code = home / "demo_cli_pipeline.py"
    code.write_text(code.read_text().replace("        ...", "        ctx.collect(record)"))
    pq.write_table(pa.table({"tail": ["N1"], "at": [1_359_590_400_000]}), home / "events/2013-01-31.parquet")
    assert headrace(RUN).exit_code == 0
    (first, *_) = sorted((home / "lake").rglob("*.parquet"))
    first.write_bytes(first.read_bytes()[:-9])
    result = headrace(RUN)
    assert result.exit_code == 1
    assert "the run has ended, its checkpoints stay, and 1 check of 'headrace verify demo' failed" in " ".join(
        result.output.split()
    )
    assert first.name in result.output
    assert headrace("checkpoints --json").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(("every", "is_due"), [(1, True), (2, False), (None, False)])
def test_compaction_is_due_by_the_jobs_file(headrace, change, every, is_due):
    change(compaction={"every": every})
    assert json.loads(headrace(RUN).stdout)["compaction_due"] is is_due
    headrace("maintain demo --state")
    assert json.loads(headrace(RUN).stdout)["compaction_due"] is False
