"""The DAG files: what they make of conf/jobs/, and what a slip in one of those does."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from types import SimpleNamespace

import pytest
from airflow.sdk.exceptions import ParamValidationError


def test_every_dag_file_imports_without_error(dag_bag):
    bag = dag_bag()

    assert bag.import_errors == {}
    assert {"flights", "headrace_maintenance", "headrace_restore"} <= set(bag.dags)


def test_a_job_is_checked_run_verified_and_compacted(dag_bag):
    dag = dag_bag().dags["flights"]

    assert [task.task_id for task in dag.topological_sort()] == ["check", "run", "verify", "compact"]
    assert dag.get_task("check").bash_command == "headrace check flights"
    assert dag.get_task("compact").bash_command == "headrace compact flights --every 7"


def test_a_job_that_is_never_compacted_has_no_such_task(dag_bag, edit_job):
    edit_job("flights", compaction={"every": None})

    assert not dag_bag().dags["flights"].has_task("compact")


def test_runs_of_a_job_never_overlap_nor_leave_a_gap(dag_bag):
    dag = dag_bag().dags["flights"]
    run = dag.get_task("run")

    assert dag.max_active_runs == 1
    assert dag.catchup is False
    assert run.max_active_tis_per_dag == 1
    assert run.depends_on_past is True


def test_a_run_may_take_its_budget_and_grace(dag_bag, edit_job):
    edit_job("flights", run={"budget": "1h30m", "grace": "90", "retries": 4, "retry_delay": "10s"})

    run = dag_bag().dags["flights"].get_task("run")

    assert run.execution_timeout == timedelta(hours=1, minutes=31, seconds=30)
    assert run.retries == 4
    assert run.retry_delay == timedelta(seconds=10)


def test_sinks_are_assets(dag_bag, home):
    outlets = dag_bag().dags["flights"].get_task("run").outlets

    assert {asset.name for asset in outlets} == {"flights.flight_board", "flights.overdue_alerts"}
    assert all(asset.uri.startswith(f"file://{home}/var/lake/") for asset in outlets)


def test_a_data_interval_has_length(dag_bag):
    dag = dag_bag().dags["flights"]

    assert type(dag.timetable).__name__ == "CronDataIntervalTimetable"


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
        {"replay": 1},
    ],
)
def test_a_bad_param_is_refused(dag_bag, given):
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
        {"replay": True},
    ],
)
def test_a_good_param_is_taken(dag_bag, given):
    _validated(dag_bag().dags["flights"], given)


@pytest.mark.parametrize("switch", ["replay", "finish"])
def test_a_switch_is_passed_on_only_when_asked_for(dag_bag, switch):
    run = dag_bag().dags["flights"].get_task("run")

    for params in ({"replay": False, "finish": False}, {"replay": False, "finish": False, switch: True}):
        words = run.render_template(["run", "--budget=", *run.application_args[-2:]], {"params": params})
        assert sys.modules["submit_job"].without_empty(words) == ["run", *([f"--{switch}"] if params[switch] else [])]


def test_going_back_is_off_by_default(dag_bag):
    assert dag_bag().dags["flights"].params["replay"] is False


@pytest.mark.parametrize(
    ("max_tries", "run_id"),
    [
        pytest.param(2, "scheduled__2013-01-16", id="first round, retries included"),
        pytest.param(3, "scheduled__2013-01-16.1", id="cleared after one try"),
        pytest.param(5, "scheduled__2013-01-16.3", id="cleared after three tries"),
    ],
)
def test_a_cleared_task_is_another_run(dag_bag, edit_job, max_tries, run_id):
    edit_job("flights", run={"retries": 2})
    run = dag_bag().dags["flights"].get_task("run")
    context = {"run_id": "scheduled__2013-01-16", "ti": SimpleNamespace(max_tries=max_tries), "task": run}
    words = [word for word in run.application_args if word.startswith("--run-id=")]

    assert run.render_template(words, context) == [f"--run-id={run_id}"]


def _validated(dag, given):
    dag.params.update(given)
    return dag.params.validate()


def test_one_bad_job_file_leaves_the_other_jobs_alone(dag_bag, home):
    (home / "conf" / "jobs" / "broken.yaml").write_text("job: broken\nschedule: [")

    bag = dag_bag()

    assert "flights" in bag.dags
    assert list(bag.import_errors) == ["job_file_errors.py"]
    assert "conf/jobs/broken.yaml" in bag.import_errors["job_file_errors.py"]


@pytest.mark.parametrize(
    ("slip", "said"),
    [
        ({"job": "other"}, "must be the file's name"),
        ({"cluster": "nowhere"}, "no profile 'nowhere' in conf/clusters/; there are: "),
        ({"mode": "sometimes"}, "must be caught_up or interval"),
        ({"run": {"budget": "soon"}}, "'soon' is no duration"),
        ({"schedule": {"cron": "0 5 * * *", "start": "2013-01-01", "timezone": "Mars/Olympus"}}, "Mars/Olympus"),
        ({"sinks": {"board": {}}}, "key 'path' is missing"),
    ],
)
def test_a_slip_in_a_job_file_is_named(dag_bag, edit_job, slip, said):
    edit_job("flights", **slip)

    errors = dag_bag().import_errors["job_file_errors.py"]

    assert "conf/jobs/flights.yaml" in errors
    assert said in errors


def test_dag_files_import_neither_spark_nor_the_engine():
    code = (
        "import sys, airflow.sdk; sys.path.insert(0, 'dags'); import jobs, maintenance, restore; "
        "print(sorted({m.partition('.')[0] for m in sys.modules} & {'pyspark', 'delta', 'deltalake', 'engine', 'pipelines'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_the_time_that_dag_files_take_to_parse_is_shown(record_property):
    code = (
        "import sys, time, airflow.sdk; sys.path.insert(0, 'dags'); started = time.perf_counter(); "
        "import jobs, maintenance, restore; print(time.perf_counter() - started)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    seconds = float(done.stdout.split()[-1])
    record_property("seconds_beyond_airflow", seconds)
    print(f"\nDAG files: {seconds:.2f} s beyond Airflow's own import")
