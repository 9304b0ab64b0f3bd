"""The DAG files: the DAGs made from conf/jobs/, and the effect of a mistake in a job file."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pendulum
import pytest
import yaml
from airflow.sdk.exceptions import ParamValidationError
from airflow.serialization.serialized_objects import DagSerialization

from headrace.airflow import _dags, headrace_dags
from headrace.airflow._words import plain_words
from headrace.config import load_job

PROJECT = Path(__file__).resolve().parents[2]
MINIMAL = {
    "job": "minimal",
    "pipeline": "pipelines.flights:pipeline",
    "sources": {"flight_events": {"path": "var/data"}},
    "sinks": {"flight_board": {"path": "s3://lake/board", "mode": "merge"}},
}

OTHERS = {"logbook", "logbook_replay", "headrace_maintenance", "headrace_restore"}
"""The DAGs that are there besides those of the job under test."""


def test_every_dag_file_imports_without_error(dag_bag):
    bag = dag_bag()

    assert bag.import_errors == {}
    assert {"flights", "headrace_maintenance", "headrace_restore"} <= set(bag.dags)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("dag_id", ["flights", "flights_replay", "logbook"])
def test_task_makes_only_its_own_dag(monkeypatch, dag_id):
    loaded = []

    def load(name, *arguments, **options):
        loaded.append(name)
        return load_job(name, *arguments, **options)

    monkeypatch.setattr(_dags, "load_job", load)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", dag_id)

    dags = headrace_dags("conf/jobs")

    assert (list(dags), loaded) == ([dag_id], [dag_id.removesuffix("_replay")])


def test_task_of_maintenance_has_all_jobs(dag_bag, monkeypatch):
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "headrace_maintenance")

    assert {"compact", "vacuum"} <= {task.label for task in dag_bag().dags["headrace_maintenance"].tasks}
    assert {"flights", "logbook"} <= set(dag_bag().dags["headrace_maintenance"].task_group.children)


def test_job_is_run_and_compacted(dag_bag):
    dag = dag_bag().dags["flights"]

    assert [task.task_id for task in dag.topological_sort()] == ["run", "compact", "refused", "end"]
    assert {"--check=True", "--verify=True"} <= {*dag.get_task("run").application_args}
    assert dag.get_task("compact").words == ["maintain", "flights", "--state", "--every=7"]


def test_job_without_compaction_has_no_compact_task(dag_bag, edit_job):
    edit_job("flights", compaction={"every": None})

    dag = dag_bag().dags["flights"]

    assert not dag.has_task("compact")
    assert {task.task_id for task in dag.leaves} == {"refused", "end"}


def test_refused_task_hides_no_failure(dag_bag, edit_job):
    with_compaction = dag_bag().dags["flights"]
    edit_job("flights", compaction={"every": None})
    without = dag_bag().dags["flights"]

    for dag in with_compaction, without:
        (last,) = [task for task in dag.leaves if task.task_id != "refused"]
        assert last.trigger_rule == "none_failed"
        assert last.upstream_task_ids == {task.task_id for task in dag.tasks} - {"refused", "end"}
        assert dag.get_task("refused").trigger_rule == "all_skipped"
        assert "refused" not in dag.get_task("run").downstream_task_ids


def test_minimal_job_gets_the_documented_defaults(dag_bag, home):
    (home / "conf" / "jobs" / "minimal.yaml").write_text(yaml.safe_dump(MINIMAL))

    dag = dag_bag().dags["minimal"]

    assert dag.get_task("compact").words == ["maintain", "minimal", "--state", "--every=7"]
    assert dag.get_task("run").execution_timeout == timedelta(minutes=35)
    assert dag.schedule is None
    assert [asset.uri for asset in dag.get_task("run").outlets] == ["s3://lake/board"]


def test_runs_neither_overlap_nor_leave_gaps(dag_bag):
    dag = dag_bag().dags["flights"]
    run = dag.get_task("run")

    assert dag.catchup is False
    assert run.max_active_tis_per_dag == 1
    assert run.depends_on_past is True
    assert run.wait_for_downstream is True
    assert run.downstream_task_ids == {"compact", "end"}


def test_waiting_runs_leave_room_for_failed_run(dag_bag):
    assert dag_bag().dags["flights"].max_active_runs == 100


def test_run_may_take_its_budget_and_grace(dag_bag, edit_job):
    edit_job("flights", run={"budget": "1h30m", "grace": "90", "retries": 4, "retry_delay": "10s"})

    run = dag_bag().dags["flights"].get_task("run")

    assert run.execution_timeout == timedelta(hours=1, minutes=31, seconds=30)
    assert run.retries == 4
    assert run.retry_delay == timedelta(seconds=10)


def test_sinks_are_assets(dag_bag, home):
    outlets = dag_bag().dags["flights"].get_task("run").outlets

    assert {asset.name for asset in outlets} == {
        "flights.flight_board",
        "flights.overdue_alerts",
        "flights.hourly_departures",
        "flights_replay",
    }
    sinks = [asset for asset in outlets if asset.name != "flights_replay"]
    assert all(asset.uri.startswith(f"file://{home}/var/lake/") for asset in sinks)


def test_dag_uses_cron_data_intervals(dag_bag, edit_job):
    edit_job("flights", schedule={"cron": "0 0 * * *", "start": "2013-01-01"})

    assert type(dag_bag().dags["flights"].timetable).__name__ == "CronDataIntervalTimetable"


def test_job_that_is_not_automatic_runs_backfills_alone(dag_bag):
    stored = DagSerialization.from_dict(DagSerialization.to_dict(dag_bag().dags["flights"]))
    first, last = datetime(2013, 1, 11, tzinfo=UTC), datetime(2013, 1, 17, tzinfo=UTC)

    assert stored.next_dagrun_info(last_automated_run_info=None) is None
    days = [info.data_interval for info in stored.iter_dagrun_infos_between(first, last)]
    assert [day.start for day in days] == [first + timedelta(days=n) for n in range(7)]
    assert [day.end for day in days] == [day.start + timedelta(days=1) for day in days]
    assert stored.timetable.periodic
    manual = stored.timetable.infer_manual_data_interval(run_after=pendulum.datetime(2013, 1, 17, 5))
    assert (manual.start.day, manual.end.day) == (16, 17)


def test_spark_settings_come_from_the_cluster_profile(dag_bag):
    run = dag_bag().dags["flights"].get_task("run")

    assert run.conf["spark.databricks.delta.snapshotPartitions"] == "1"
    assert run.conf["spark.ui.enabled"] == "false"
    assert run.jars.count("var/jars/delta-") == 2


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "sideways"},
        {"max_batches": 0},
        {"max_batches": "ten"},
        {"parallelism": 1.5},
        {"budget": "half an hour"},
        {"budget": 30},
        {"finish": "yes"},
    ],
)
def test_bad_param_is_refused(dag_bag, given):
    dag = dag_bag().dags["flights"]

    with pytest.raises(ParamValidationError):
        _validated(dag, given)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"mode": "interval"},
        {"max_batches": 3},
        {"parallelism": 8},
        {"budget": "10m"},
        {"budget": None},
        {"finish": True},
        {"end_of_input": True},
    ],
)
def test_good_param_is_taken(dag_bag, given):
    _validated(dag_bag().dags["flights"], given)


@pytest.mark.parametrize("switch", ["finish", "end_of_input"])
@pytest.mark.parametrize("value", [True, False])
def test_switch_option_is_passed_only_when_on(dag_bag, switch, value):
    run = dag_bag().dags["flights"].get_task("run")
    params = {"finish": False, "end_of_input": False, switch: value}
    switches = [word for word in run.application_args if word.startswith(("--finish=", "--end-of-input="))]
    words = run.render_template(["run", "--budget=", *switches], {"params": params})

    assert plain_words(words) == (["run", f"--{switch.replace('_', '-')}"] if value else ["run"])


def test_switches_are_off_by_default(dag_bag):
    params = dag_bag().dags["flights"].params

    assert (params["finish"], params["end_of_input"]) == (False, False)


@pytest.mark.parametrize(
    ("max_tries", "run_id"),
    [
        pytest.param(2, "scheduled__2013-01-16", id="first round, retries included"),
        pytest.param(3, "scheduled__2013-01-16.1", id="cleared after one try"),
        pytest.param(5, "scheduled__2013-01-16.3", id="cleared after three tries"),
    ],
)
def test_cleared_task_is_another_run(dag_bag, edit_job, max_tries, run_id):
    edit_job("flights", run={"retries": 2})
    run = dag_bag().dags["flights"].get_task("run")
    context = {"run_id": "scheduled__2013-01-16", "ti": SimpleNamespace(max_tries=max_tries), "task": run}
    words = [word for word in run.application_args if word.startswith("--run-id=")]

    assert run.render_template(words, context) == [f"--run-id={run_id}"]


def test_many_tasks_of_a_job_are_accepted(dag_bag, edit_job):
    edit_job("flights", max_parallelism=4096, parallelism=2000)

    bag = dag_bag()

    assert bag.dags["flights"].params["parallelism"] == 2000
    assert bag.import_errors == {}


def _validated(dag, given):
    dag.params.update(given)
    return dag.params.validate()


def test_bad_job_file_does_not_affect_other_jobs(dag_bag, home, caplog):
    (home / "conf" / "jobs" / "broken.yaml").write_text("job: broken\nschedule: [")
    (home / "conf" / "jobs" / "empty.yaml").write_text("")

    bag = dag_bag()

    assert set(bag.dags) == {"flights", "flights_replay", *OTHERS}
    assert list(bag.import_errors) == ["headrace_errors.py"]
    for name in ("broken", "empty"):
        assert f"conf/jobs/{name}.yaml makes no DAG: " in bag.import_errors["headrace_errors.py"]
        assert any(f"conf/jobs/{name}.yaml" in record.message for record in caplog.records)


@pytest.mark.parametrize(
    ("slip", "message"),
    [
        ({"job": "other"}, "'other' must be the file's own name, 'flights'"),
        ({"cluster": "nowhere"}, "unknown cluster 'nowhere' (known: compose, local, standalone)"),
        ({"mode": "sometimes"}, "'sometimes' is not allowed (allowed: caught_up, interval)"),
        ({"run": {"budget": "soon"}}, "run.budget: expected a duration such as 30m"),
        ({"schedule": {"cron": "0 5 * * *", "start": "2013-01-01", "timezone": "Mars/Olympus"}}, "Mars/Olympus"),
        ({"schedule": {"cron": "61 * * * *", "start": "2013-01-01"}}, "schedule.cron: '61 * * * *' is not a cron"),
        ({"sinks": {"board": {"mode": "merge"}}}, "sinks.board.path: this key is missing"),
        ({"tags": ["x" * 101]}, "ValueError: tag cannot be longer than 100 characters"),
    ],
)
def test_mistake_in_a_job_file_is_named(dag_bag, edit_job, slip, message):
    edit_job("flights", **slip)

    bag = dag_bag()

    assert set(bag.dags) == OTHERS
    assert list(bag.import_errors) == ["headrace_errors.py"]
    assert "conf/jobs/flights.yaml" in bag.import_errors["headrace_errors.py"]
    assert message in bag.import_errors["headrace_errors.py"]


def test_mistake_in_profile_names_the_job(dag_bag, home):
    (home / "conf" / "clusters" / "local.yaml").write_text("parallelism: 2\n")

    error = dag_bag().import_errors["headrace_errors.py"]

    assert "conf/jobs/flights.yaml makes no DAG: " in error
    assert "local.yaml:1: master: this key is missing" in error


def test_job_cannot_take_a_housekeeping_name(dag_bag, home):
    taken = home / "conf" / "jobs" / "headrace_restore.yaml"
    taken.write_text(yaml.safe_dump({**MINIMAL, "job": "headrace_restore"}))

    bag = dag_bag()

    assert bag.dags["headrace_restore"].has_task("restore")
    assert "'headrace_restore' is the name of a DAG that is always there" in bag.import_errors["headrace_errors.py"]


def test_only_yaml_files_are_jobs(dag_bag, home):
    (home / "conf" / "jobs" / "minimal.yml").write_text(yaml.safe_dump(MINIMAL))

    bag = dag_bag()

    assert "minimal" not in bag.dags
    assert bag.import_errors == {}


def test_secrets_stay_out_of_the_serialised_dag(dag_bag, edit_profile, monkeypatch):
    edit_profile("local", {"spark.hadoop.fs.s3a.secret.key": "${STORE_SECRET}"})
    monkeypatch.setenv("STORE_SECRET", "hush-hush")

    serialised = DagSerialization.to_json(dag_bag().dags["flights"])

    assert "${STORE_SECRET}" in serialised
    assert "hush-hush" not in serialised


def test_dag_files_import_neither_spark_nor_pipelines():
    heavy = {"pyspark", "delta", "deltalake", "duckdb", "pyarrow", "rocksdict", "pipelines"}

    assert not heavy & set(_parse_apart("print(*{m.partition('.')[0] for m in sys.modules})").split())


def test_parse_time_of_dag_files_is_shown(record_property):
    seconds = float(_parse_apart("print(time.process_time() - started)"))

    record_property("seconds_beyond_airflow", seconds)
    print(f"\nheadrace_jobs.py: {seconds:.2f} s of CPU beyond Airflow's and its providers' own import")


def _parse_apart(then: str) -> str:
    """Return the output of `then` in a new process that has parsed the DAG file of the jobs."""
    code = (
        "import runpy, sys, time, airflow.sdk\n"
        "import airflow.providers.standard.operators.bash, airflow.providers.apache.spark.operators.spark_submit\n"
        "started = time.process_time()\n"
        f"runpy.run_path({str(PROJECT / 'dags' / 'headrace_jobs.py')!r})\n{then}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]
