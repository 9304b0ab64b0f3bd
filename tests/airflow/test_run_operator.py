"""The task `run`: the words of spark-submit, the result, and the exit codes that Airflow must not retry."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from zoneinfo import ZoneInfo

import pytest
from airflow.sdk import DAG, BaseHook, CronDataIntervalTimetable
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSkipException,
)

import headrace
from headrace.airflow import HeadraceRunOperator
from headrace.airflow import _results as results

REPORT = {
    "job": "flights", "run_id": "r1", "checkpoints": [6, 7], "rows_in": 1200, "rows_out": 5, "seconds": 1.25,
    "stopped_because": "drained", "quarantined": 0, "waiting": 0, "checkpoint": 7, "watermark": "2013-01-31T00:00:00Z",
    "interval_start": "2013-01-31T00:00:00Z", "interval_end": "2013-02-01T00:00:00Z",
    "sinks": {
        "flight_board": {"rows": 5, "version": 9, "checkpoint": 7},
        "overdue_alerts": {"rows": 0, "version": 2, "checkpoint": 3},
        "hourly_departures": {"rows": 0, "version": 0, "checkpoint": None},
    },
}  # fmt: skip
GAP = {"error": "IntervalError", "message": "there would be a gap", "exit_code": 9}


class FakeLog:
    """Keeps the lines that are logged, by level."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, line: str, *arguments: object) -> None:
        self.lines.append(line % arguments if arguments else line)


class FakeHook:
    """Stands in for SparkSubmitHook: the driver writes `report`, prints `lines`, and ends with `exit_code`."""

    _should_track_driver_status = False
    _is_yarn_cluster_mode = False

    def __init__(self, run, exit_code, report, lines) -> None:
        self.run, self.exit_code, self.report, self.lines = run, exit_code, report, lines
        self.shown = self._log = FakeLog()
        self._submit_sp = None
        self.applications: list[str] = []
        self.report_file: Path | None = None

    @property
    def log(self):
        return self._log

    def _should_track_driver_via_k8s_api(self) -> bool:
        return False

    def submit(self, application: str) -> None:
        self.applications.append(application)
        for line in self.lines:
            self.log.info(line)
        (word,) = [word for word in self.run.application_args if word.startswith("--report=")]
        self.report_file = Path(word.removeprefix("--report="))
        if self.report is not None:
            self.report_file.write_text(json.dumps(self.report))
        self._submit_sp = SimpleNamespace(returncode=self.exit_code)
        if self.exit_code:
            raise AirflowException(f"Cannot execute: spark-submit. Error code is: {self.exit_code}.")


class FakeInstance(SimpleNamespace):
    """Stands in for the task instance: knows states of the task in other runs, and keeps XComs."""

    def __init__(self, states=None, max_tries=2, try_number=1, start_date=None) -> None:
        super().__init__(dag_id="flights", task_id="run", run_id="this", map_index=-1, max_tries=max_tries, xcoms={})
        self.try_number, self.start_date = try_number, start_date
        self.states = {"this": {"run": "running"}, **(states or {})}

    def xcom_push(self, key, value) -> None:
        self.xcoms[key] = value

    def get_first_reschedule_date(self, context):
        return context["first_reschedule"]

    def get_ti_count(self, *, dag_id, task_ids, states):
        return sum(of_run.get(task) in states for of_run in self.states.values() for task in task_ids)

    def get_task_states(self, *, dag_id, task_ids):
        return self.states


@pytest.fixture
def run(dag_bag):
    """Return the task `run`, executed in the test's process instead of Airflow's task runner."""
    task = dag_bag().dags["flights"].get_task("run")
    task.allow_nested_operators = True
    return task


@pytest.fixture(autouse=True)
def last_published(monkeypatch):
    """Return the sink reports in the last asset events, by sink."""
    events = {}
    monkeypatch.setattr(results, "_last_told", lambda _, sink: events.get(sink))
    return events


DAY = datetime(2013, 1, 31, tzinfo=UTC)


def context_of(
    run,
    *,
    conf=None,
    run_type="scheduled",
    logical_date=DAY,
    start=DAY,
    run_started=None,
    waits_since=None,
    **instance,
):
    end = None if start is None else start + timedelta(days=1)
    return {
        "ti": FakeInstance(**instance),
        "task": run,
        "dag": run.dag,
        "first_reschedule": waits_since,
        "run_id": "this",
        "dag_run": SimpleNamespace(
            conf=conf,
            run_type=run_type,
            logical_date=logical_date,
            data_interval_start=start,
            data_interval_end=end,
            start_date=run_started,
        ),
        "outlet_events": {outlet: SimpleNamespace(extra={}) for outlet in run.outlets},
    }


def execute(run, exit_code=0, report=REPORT, budget="", lines=(), context=None):
    run.application_args = [
        "run",
        "flights",
        f"--budget={budget}",
        "--max-batches=",
        "--end-of-input=False",
        "--finish=True",
    ]
    run._hook = FakeHook(run, exit_code, report, lines)
    return run.execute(context or context_of(run))


def test_packages_own_driver_is_submitted(run):
    execute(run)

    driver = Path(headrace.__file__).parent / "cli" / "submit" / "driver.py"
    assert run._hook.applications == [str(driver)]
    assert driver.is_file()


def test_options_without_a_value_are_left_out(run):
    execute(run)

    assert run.application_args[:-1] == ["run", "flights", "--finish"]


@pytest.mark.parametrize("exit_code", [5, 6, 7, 9, 10, 12])
def test_final_exit_codes_are_not_retried(run, exit_code):
    with pytest.raises(AirflowFailException, match=f"exit code {exit_code}: not retried"):
        execute(run, exit_code, report=None)


@pytest.mark.parametrize("exit_code", [1, 2, 4, 8, 11, 13, 70, -9])
def test_other_exit_codes_are_retried(run, exit_code):
    with pytest.raises(AirflowException) as error:
        execute(run, exit_code, report=None)
    assert not isinstance(error.value, AirflowFailException)


HELD = {"error": "FencedError", "message": "run 5 holds the job", "exit_code": 3}


def test_held_job_uses_up_no_retry(run):
    with pytest.raises(AirflowRescheduleException):
        execute(run, 3, HELD)
    waits = context_of(run, waits_since=datetime.now(UTC) - timedelta(minutes=34))
    with pytest.raises(AirflowRescheduleException) as error:
        execute(run, 3, HELD, context=waits)

    assert timedelta(0) < error.value.reschedule_date - datetime.now(UTC) <= timedelta(minutes=1)


def test_held_job_fails_after_the_longest_run(run):
    waited = context_of(run, waits_since=datetime.now(UTC) - timedelta(minutes=36))
    with pytest.raises(AirflowException, match="run 5 holds the job"):
        execute(run, 3, HELD, context=waited)


def test_run_that_takes_jobs_over_does_not_wait(run):
    run.application_args = ["run", "flights", "--finish=True", "--force-fail-over=True"]
    run._hook = FakeHook(run, 3, HELD, ())
    with pytest.raises(AirflowException, match="run 5 holds the job"):
        run.execute(context_of(run))


NO_INTERVAL = {"error": "ConfigError", "message": "this DAG run has no data interval", "exit_code": 2}


@pytest.mark.parametrize("run_type", ["manual", "asset_triggered", "operator_triggered", "asset_materialization"])
@pytest.mark.parametrize("report", [GAP, NO_INTERVAL])
def test_refused_trigger_is_skipped_and_holds_up_nobody(run, run_type, report):
    context = context_of(run, run_type=run_type, logical_date=None)
    with pytest.raises(AirflowSkipException, match=report["message"]):
        execute(run, report["exit_code"], report, context=context)

    reason = context["ti"].xcoms["refused"]
    with pytest.raises(AirflowFailException, match=report["message"]):
        run.dag.get_task("refused").execute({"ti": SimpleNamespace(xcom_pull=lambda **_: [None, reason])})


@pytest.mark.parametrize("run_type", ["scheduled", "backfill"])
def test_refused_run_of_the_schedule_fails(run, run_type):
    with pytest.raises(AirflowFailException, match="there would be a gap"):
        execute(run, 9, GAP, context=context_of(run, run_type=run_type))


def test_tasks_skipped_by_hand_are_no_failure(run):
    with pytest.raises(AirflowSkipException):
        run.dag.get_task("refused").execute({"ti": SimpleNamespace(xcom_pull=lambda **_: [])})


def test_run_of_a_cancelled_backfill_is_skipped(run, monkeypatch):
    monkeypatch.setattr("headrace.airflow._run_operator.is_cancelled", lambda *_: True)
    with pytest.raises(AirflowSkipException, match="the backfill of this run was cancelled"):
        execute(run, context=context_of(run, run_type="backfill"))

    assert run._hook.applications == []
    assert execute(run, context=context_of(run, run_type="backfill", max_tries=3)) is not None


def test_exception_carries_headraces_error_message_once(run):
    with pytest.raises(AirflowFailException) as error:
        execute(run, 9, GAP)

    assert str(error.value).count("there would be a gap") == 1
    assert str(error.value).startswith("IntervalError: there would be a gap")
    assert "spark-submit" not in str(error.value)
    assert error.value.__suppress_context__


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_killed_driver_is_reported_as_killed(run, exit_code):
    with pytest.raises(AirflowException, match="signal 9 ended the command: most often memory ran out"):
        execute(run, exit_code, report=None)


def test_failure_before_submission_is_retried(run, monkeypatch):
    def refuse(hook, application):
        raise AirflowException("no connection")

    monkeypatch.setattr(FakeHook, "submit", refuse)
    with pytest.raises(AirflowException, match="no connection") as error:
        execute(run)
    assert not isinstance(error.value, AirflowFailException)


@pytest.mark.parametrize("shows_all", [False, True])
def test_sparks_chatter_is_off_unless_asked_for(run, shows_all):
    run._spark_info = shows_all
    chatter = "26/01/31 05:00:00 INFO SparkContext: Running Spark version 4.2.0"
    lines = [chatter, "26/01/31 05:00:01 WARN Utils: your hostname", "2026-01-31T05:00:02Z committed: checkpoint 7"]
    execute(run, lines=lines)

    assert run._hook.shown.lines == (lines if shows_all else lines[1:])


def test_result_names_checkpoint_rows_and_interval(run):
    result = execute(run)

    assert (result["checkpoint"], result["rows_in"], result["rows_out"]) == (7, 1200, 5)
    assert result["interval"] == ["2013-01-31T00:00:00Z", "2013-02-01T00:00:00Z"]
    assert result["sinks"]["flight_board"]["version"] == 9
    assert not run._hook.report_file.parent.exists()


def test_asset_event_has_the_result(run):
    context = context_of(run)
    execute(run, context=context)

    (event,) = [event for asset, event in context["outlet_events"].items() if asset.name == "flights.flight_board"]
    assert (event.extra["sink"], event.extra["version"], event.extra["rows"]) == ("flight_board", 9, 5)
    assert (event.extra["checkpoint"], event.extra["watermark"]) == (7, "2013-01-31T00:00:00Z")


@pytest.mark.parametrize(
    ("last", "updated"),
    [
        ({}, {"flights.flight_board", "flights.overdue_alerts"}),
        ({"overdue_alerts": {"checkpoint": 3, "version": 2}}, {"flights.flight_board"}),
        ({"flight_board": {"checkpoint": 7, "version": 9}}, {"flights.overdue_alerts"}),
        ({"overdue_alerts": {"checkpoint": 3, "version": 40}}, {"flights.flight_board", "flights.overdue_alerts"}),
    ],
)
def test_sink_without_news_fires_no_event(run, last_published, last, updated):
    last_published.update(last)
    execute(run)

    assert {asset.name for asset in run.outlets} == updated


@pytest.mark.parametrize(
    ("report", "message"),
    [
        ({**REPORT, "waiting": 3}, "3 elements wait for services (headrace waiting flights --calls)"),
        ({**REPORT, "quarantined": 2}, "2 rows of this run are in the quarantine (headrace quarantine flights)"),
        ({**REPORT, "warnings": [{"kind": "late", "message": "5 rows were late", "fields": {}}]}, "5 rows were late"),
        (REPORT, None),
    ],
)
def test_degraded_run_warns_and_gets_a_note(run, monkeypatch, report, message):
    notes = []
    monkeypatch.setattr("headrace.airflow._run_operator.write_note", lambda _, text, __: notes.append(text))
    execute(run, report=report)

    ((_, *sentences),) = [note.split("; ") for note in notes]
    assert sentences == ([] if message is None else [message])


def test_task_keeps_checkpoint_and_watermark(run):
    kept = {}
    context = {**context_of(run), "task_state_store": SimpleNamespace(set=kept.__setitem__)}
    execute(run, context=context)

    assert kept == {"headrace": {"checkpoint": 7, "watermark": "2013-01-31T00:00:00Z"}}


def test_broken_state_store_fails_no_run(run):
    def broken(*_):
        raise RuntimeError("the store is down")

    context = {**context_of(run), "task_state_store": SimpleNamespace(set=broken)}
    assert execute(run, context=context)["checkpoint"] == 7


def test_links_lead_to_checkpoint_and_spark(run):
    context = context_of(run)
    execute(run, lines=["2026-01-31T05:00:02Z spark_ui: Spark UI at http://node:4040"], context=context)
    links = {link.name: link.get_link(run, ti_key=None) for link in run.operator_extra_links}

    assert links["Spark UI"] == "http://node:4040"
    assert context["ti"].xcoms == {"_link_SparkUiLink": "http://node:4040"}
    assert links["Headrace checkpoint"].endswith("/dags/flights/runs/this/tasks/run/xcom")


def test_checkpoint_link_can_lead_elsewhere(run):
    run._checkpoint_url = "https://viewer/{job}/{checkpoint}"
    execute(run)

    assert run.checkpoint_link == "https://viewer/flights/7"


def test_secrets_are_expanded_by_the_task(dag_bag, edit_profile, monkeypatch):
    edit_profile("local", {"spark.hadoop.fs.s3a.secret.key": "${STORE_SECRET}"})
    run = dag_bag().dags["flights"].get_task("run")
    run.allow_nested_operators = True

    monkeypatch.delenv("STORE_SECRET", raising=False)
    with pytest.raises(AirflowFailException, match="spark.hadoop.fs.s3a.secret.key: environment variable STORE_SECRET"):
        execute(run)

    monkeypatch.setenv("STORE_SECRET", "hush")
    execute(run)
    assert run.conf["spark.hadoop.fs.s3a.secret.key"] == "hush"


def test_master_of_the_profile_is_a_connection(run, monkeypatch):
    monkeypatch.delenv("AIRFLOW_CONN_HEADRACE_LOCAL", raising=False)
    execute(run)

    assert BaseHook.get_connection("headrace_local").host == "local[2,4]"


def test_budget_above_the_jobs_own_is_refused(run):
    with pytest.raises(AirflowFailException, match="budget: 31m is longer than the job's own budget of 1800 s"):
        execute(run, budget="31m")
    execute(run, budget="30m")


def test_unknown_param_is_refused(run):
    with pytest.raises(AirflowSkipException, match="unknown param 'max_batch'; did you mean 'max_batches'"):
        execute(run, context=context_of(run, conf={"max_batch": 1}))


FAILED = {"before": {"run": "failed"}}


@pytest.mark.parametrize("task", ["run", "compact", "end"])
@pytest.mark.parametrize("state", ["failed", "upstream_failed"])
@pytest.mark.parametrize(
    ("run_type", "logical_date"), [("asset_triggered", None), ("manual", None), ("scheduled", DAY)]
)
def test_failed_run_blocks_later_runs(run, task, state, run_type, logical_date):
    states = {"before": {task: state}}
    context = context_of(run, run_type=run_type, logical_date=logical_date, states=states)

    with pytest.raises(AirflowRescheduleException):
        execute(run, context=context)
    assert run._hook.applications == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"run_type": "backfill"}, id="backfill"),
        pytest.param({"run_type": "manual"}, id="manual, for a logical date"),
        pytest.param({"max_tries": 3}, id="cleared task"),
        pytest.param({"states": {"before": {"run": None}}}, id="the failed one was cleared"),
        pytest.param({"states": {"before": {"run": "success"}}}, id="the failed one was mended"),
        pytest.param({"states": {"this": {"run": "failed"}}}, id="its own earlier try"),
    ],
)
def test_repair_run_is_not_blocked(run, changes):
    assert execute(run, context=context_of(run, **{"states": FAILED, **changes})) is not None


def test_own_dag_waits_for_the_run_alone(home):
    with DAG("mine", schedule=None):
        mine = HeadraceRunOperator(task_id="run", job="flights", home=home, hold_after_failure=True)
    mine.allow_nested_operators = True

    execute(mine, context=context_of(mine, states={"before": {"run": "success", "compact": "failed"}}))
    with pytest.raises(AirflowRescheduleException):
        execute(mine, context=context_of(mine, states={"before": {"run": "failed"}}))


def test_backfill_of_a_run_by_hand_is_refused(run):
    context = context_of(run, run_type="backfill", start=DAY - timedelta(days=1))

    with pytest.raises(AirflowFailException, match="interval 2013-01-30 00:00 to 2013-01-31 00:00") as error:
        execute(run, context=context)
    assert "Delete that DAG run" in str(error.value)
    assert run._hook.applications == []


@pytest.mark.parametrize(("run_type", "start"), [("manual", DAY - timedelta(days=1)), ("backfill", DAY)])
def test_run_keeps_the_interval_of_its_kind(run, run_type, start):
    assert execute(run, context=context_of(run, run_type=run_type, start=start)) is not None


@pytest.mark.parametrize("schedule", ["@daily", CronDataIntervalTimetable("@daily", timezone="America/New_York")])
@pytest.mark.parametrize("mode", ["interval", "caught-up"])
def test_own_dag_names_the_zone_of_its_files(home, schedule, mode):
    zone = ZoneInfo("UTC" if isinstance(schedule, CronDataIntervalTimetable) else "America/New_York")
    with DAG("mine", schedule=schedule, start_date=datetime(2026, 1, 1, tzinfo=zone)):
        mine = HeadraceRunOperator(task_id="run", job="flights", home=home)
    mine.allow_nested_operators = True
    mine._hook = FakeHook(mine, 0, REPORT, ())
    mine.application_args = ["run", "flights", f"--mode={mode}"]

    if mode == "caught-up":
        assert mine.execute(context_of(mine)) is not None
        return
    with pytest.raises(
        AirflowFailException, match=r"the DAG is in America/New_York.*flight_events.*write timezone: America/New_York"
    ):
        mine.execute(context_of(mine))
    assert mine._hook.applications == []


def test_own_dag_needs_no_params(home):
    with DAG("mine", schedule=None):
        mine = HeadraceRunOperator(task_id="flights", job="flights", home=home, max_batches="{{ 2 + 1 }}", finish=True)
    mine.allow_nested_operators = True

    assert "--max-batches={{ 2 + 1 }}" in mine.application_args
    assert {asset.name for asset in mine.outlets} >= {"flights.flight_board"}
    assert execute(mine, context=context_of(mine, conf={"anything": 1}))["checkpoint"] == 7


def test_explicit_settings_override_the_defaults(home):
    with DAG("mine", schedule=None):
        mine = HeadraceRunOperator(
            task_id="flights", job="flights", home=home, retries=9, outlets=[], conf={"spark.ui.enabled": "true"}
        )

    assert (mine.retries, mine.outlets) == (9, [])
    assert mine.conf["spark.ui.enabled"] == "true"
    assert mine.conf["spark.databricks.delta.snapshotPartitions"] == "1"
