"""`headrace backfill`, with runs that need no Spark."""

from __future__ import annotations

import json
import shutil

import pytest
import yaml

from headrace.errors import ConfigError
from headrace.local.tasks import LocalTasks
from headrace.run.job_run import run_on
from tests.unit.support.backfilled_job import BackfilledJob

ASKED = "backfill shop --from 2019-12-02 --to 2019-12-03"
NAME = "backfill_20191202_20191203"


@pytest.fixture
def job(headrace, monkeypatch):
    result = BackfilledJob()
    for number in range(3):
        result.write(number, ("ann", 1 + number), ("bob", 2))
    result.run()
    result.write(1, ("ann", 9), ("bob", 2))
    monkeypatch.setenv("HEADRACE_HOME", str(result.harness.folder))

    def run(config, options, on_event):
        with result.harness.on_its_clock():
            return run_on(LocalTasks(), config, options, on_event)

    monkeypatch.setattr("headrace.spark.run", run)
    return result


@pytest.mark.slow
def test_dry_run_changes_nothing(headrace, job):
    answer = headrace(f"{ASKED} --dry-run")
    assert answer.exit_code == 0
    assert "forks at" in answer.stdout
    assert "checkpoint 1, which stands at 2019-12-02" in answer.stdout
    assert "file 2019-12-02.parquet of source 'orders' has changed since checkpoint 2 took it in" in answer.stdout
    assert "job 'shop' has no branches" in headrace("branch list shop").stdout


@pytest.mark.slow
def test_plan_is_one_document(headrace, job):
    plan = json.loads(headrace(f"{ASKED} --dry-run --json").stdout)
    assert (plan["name"], plan["fork_id"], plan["files"], plan["rows"]) == (NAME, 1, 2, 4)
    assert plan["steps"] == ["2019-12-02 to 2019-12-03", "2019-12-03 to 2019-12-04"]
    assert (plan["promote"], plan["goes_on"], plan["from"]) == ("approval", False, "2019-12-02T00:00:00Z")


def test_shown_plan_has_the_changed_input(headrace, job):
    lines = json.loads(headrace(f"{ASKED} --dry-run --json").stdout)["plan"]
    changed = "file 2019-12-02.parquet of source 'orders' has changed since checkpoint 2 took it in"
    assert lines[-1] == {"label": "changed input", "text": changed}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "seconds 0.5 at"), (29.9, "seconds 59.8 at"), (30, "minutes 1.0 at"), (3600, "minutes 120.0 at")],
)
def test_plan_says_seconds_below_a_minute(headrace, job, monkeypatch, seconds, text):
    take_each(monkeypatch, seconds)
    assert text in " ".join(headrace(f"{ASKED} --dry-run").stdout.split())


@pytest.mark.slow
def test_plan_names_the_jobs_downstream(headrace, job):
    assert json.loads(headrace(f"{ASKED} --dry-run --json").stdout)["downstream"] == []
    other = {"job": "report", "pipeline": "tests.jobs.follower:appends", "state": {"root": "state", "local": "local"}}
    source = {"format": "delta", "path": job.config.sinks["totals"].path, "interval": {"by": "committed"}}
    file = job.harness.folder / "conf" / "jobs" / "report.yaml"
    file.write_text(
        yaml.safe_dump(
            other | {"sources": {"lines": source}, "sinks": {"seen": {"path": "lake/seen", "mode": "append"}}}
        )
    )
    plan = headrace(f"{ASKED} --dry-run")
    assert ("job 'report'" in plan.stdout, plan.exit_code) == (True, 0)


def take_each(monkeypatch, seconds):
    """Let each micro-batch have taken so many seconds."""
    monkeypatch.setattr(
        "headrace.run.backfill_plan._seconds_by_checkpoint",
        lambda lineage: {checkpoint.checkpoint_id: seconds for checkpoint in lineage},
    )


@pytest.mark.slow
def test_plan_beyond_a_limit_needs_a_person(headrace, job, monkeypatch):
    take_each(monkeypatch, 70)
    job.change(job=job.harness.job | {"replay": {"max_minutes": 2}})
    plan = json.loads(headrace(f"{ASKED} --dry-run --json").stdout)
    assert plan["beyond_limits"] == ["3 minutes expected, and replay.max_minutes is 2"]
    refused = headrace(ASKED)
    assert (refused.exit_code, "--beyond-limits" in refused.output) == (15, True)
    assert "job 'shop' has no branches" in headrace("branch list shop").stdout
    assert headrace(f"{ASKED} --beyond-limits").exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("limits", ["max_minutes: 0", "max_minutes: 1.5", "max_calls: -1", "max_calls: many"])
def test_limits_are_whole_numbers(headrace, job, limits):
    key = limits.partition(":")[0]
    with pytest.raises(ConfigError, match=rf"replay\.{key}: "):
        job.change(job=job.harness.job | {"replay": yaml.safe_load(limits)})


@pytest.mark.slow
def test_backfill_ends_with_the_next_commands(headrace, job):
    answer = headrace(ASKED)
    assert answer.exit_code == 0
    assert answer.stdout.index("totals (sink)") < answer.stdout.index("customer=ann")
    assert "waits for approval. The live tables are as before." in answer.stdout
    assert f"headrace branch promote shop {NAME}" in answer.stdout
    assert "none: the branch has taken in all input of the job" in headrace(f"{ASKED} --dry-run").stdout


@pytest.mark.slow
def test_equal_result_waits_for_no_approval(headrace, job):
    job.write(1, ("ann", 2), ("bob", 2))
    answer = headrace(ASKED)
    assert answer.exit_code == 0
    assert "has the result. Nothing differs, so it needs no approval." in " ".join(answer.stdout.split())
    assert "job 'shop' has no branches" in headrace("branch list shop").stdout


@pytest.mark.slow
def test_result_is_one_document(headrace, job):
    result = json.loads(headrace(f"{ASKED} --json --run-id again").stdout)
    assert (result["outcome"], result["name"], result["run_id"]) == ("needs_approval", NAME, "again")
    assert {table["table"] for table in result["differences"]["tables"]} >= {"keyed_state", "totals"}


@pytest.mark.slow
def test_unfinished_backfill_prints_the_resume_command(headrace, job):
    answer = headrace(f"{ASKED} --budget 0")
    assert f"branch '{NAME}' is not complete yet (budget)" in answer.stdout
    assert f"headrace backfill shop --from 2019-12-02 --to 2019-12-03 --name {NAME}" in answer.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("policy", "message"), [("refuse", "is not promoted, as replay.promote says")])
def test_promotion_policy_decides_about_the_result(headrace, job, policy, message):
    job.change(job=job.harness.job | {"replay": {"promote": policy}})
    assert message in headrace(ASKED).stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("backfill shop --from 2019-12-05 --to 2019-12-06", 9, "takes in what comes next"),
        ("backfill shop --from 2019-12-02 --to 2019-12-02", 2, "is empty"),
        ("backfill shop --from yesterday --to 2019-12-02", 2, "'yesterday' is not a timestamp"),
        ("backfill shop --from 2019-12-02 --to 2019-12-03 --name Again", 2, "branch name"),
        ("backfill shop --from 2019-12-02", 2, "--to"),
        ("backfill shop --from 2018-12-02 --to 2018-12-03", 9, "no file of job 'shop' lies in 2018-12-02"),
        ("backfill shop --from 2009-12-02 --to 2019-12-03", 9, "--from 2019-12-01 --to 2019-12-03"),
    ],
)
def test_bad_requests_are_refused(headrace, job, command, code, message):
    answer = headrace(command)
    assert (answer.exit_code, message in answer.output) == (code, True)


@pytest.mark.slow
def test_corrected_folder_takes_the_place_of_a_day(headrace, job, tmp_path):
    shutil.copy(job.path(1), tmp_path)
    straight = job.straight()
    job.write(1, ("ann", 2), ("bob", 2))  # as the job took it in
    plan = headrace(f"{ASKED} --source orders={tmp_path} --dry-run --json")
    settings = {"replay.sources.orders": f'{{"format":"parquet","path":"{tmp_path}"}}'}
    assert json.loads(plan.stdout)["settings"] == settings
    assert "reads" in headrace(f"{ASKED} --source orders={tmp_path} --dry-run").stdout
    answer = headrace(f"{ASKED} --source orders={tmp_path} --promote automatic")
    assert (answer.exit_code, answer.output.count("is promoted")) == (0, 1)
    assert job.content() == straight


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("orders", "is not SOURCE=PLACE, SOURCE=FORMAT:PLACE or SOURCE={...} (sources: orders)"),
        ("nobody=x", "is not SOURCE=PLACE"),
        ("orders=kafka:a/b", "source 'orders' is a topic, and this is none"),
        ("orders=kafka:fixed", "replay.sources.orders: the key 'servers' is missing"),
        ("orders=delta:fixed", "replay.sources.orders.interval: this key is missing"),
        ('orders={"path":"x","colour":"red"}', "unknown key"),
    ],
)
def test_unclear_sources_are_refused(headrace, job, source, message):
    answer = headrace(f"{ASKED} --source {source}")
    assert (answer.exit_code, " ".join(answer.output.split()).count(message)) == (2, 1)
