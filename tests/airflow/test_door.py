"""The public names of `headrace.airflow`: provider metadata, and the DAG settings of a job file."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from airflow.serialization.serialized_objects import DagSerialization

import headrace.airflow
from headrace.airflow import headrace_dag
from headrace.airflow._provider import provider_info
from headrace.errors import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
CALLS = []


def page(context):
    CALLS.append(context)


async def page_late(**context):
    CALLS.append(context)


def test_every_exported_name_exists():
    for name in headrace.airflow.__all__:
        assert getattr(headrace.airflow, name).__name__ == name


def test_provider_metadata_fits_airflows_schema():
    import json

    import airflow

    schema = json.loads(Path(airflow.__file__).with_name("provider_info.schema.json").read_text())
    jsonschema.validate(provider_info(), schema)
    entry_points = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]
    assert entry_points["apache_airflow_provider"] == {"provider_info": "headrace.airflow._provider:provider_info"}


def test_provider_links_can_be_imported():
    from airflow.sdk._shared.module_loading import import_string

    assert [import_string(link)().name for link in provider_info()["extra-links"]] == [
        "Headrace checkpoint",
        "Spark UI",
    ]


def test_metadata_costs_no_import_of_airflow():
    code = "import sys; from headrace.airflow._provider import provider_info; provider_info(); print('airflow' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_door_needs_spark_or_arrow():
    heavy = {"pyspark", "delta", "deltalake", "duckdb", "pyarrow", "rocksdict"}
    code = (
        "import sys, headrace.airflow as door; [getattr(door, name) for name in door.__all__]; "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.splitlines()[-1].split())


def test_one_job_has_a_dag_of_its_own(home):
    dag = headrace_dag("flights")

    assert (dag.dag_id, len(dag.tasks)) == ("flights", 4)


def test_unknown_job_makes_no_dag(home):
    with pytest.raises(ConfigError, match="unknown job 'fligts'; did you mean 'flights'"):
        headrace_dag("fligts", home=home)


def test_job_file_sets_pool_queue_and_priority(home, edit_job):
    edit_job("flights", airflow={"pool": "spark", "pool_slots": 2, "queue": "large", "priority": 5})
    dag = headrace_dag("flights")

    assert {(task.pool, task.queue, task.priority_weight) for task in dag.tasks} == {("spark", "large", 5)}
    assert [task.pool_slots for task in dag.tasks if task.task_id == "run"] == [2]
    DagSerialization.to_json(dag)


def test_job_file_sets_notification_callbacks(home, edit_job):
    edit_job("flights", airflow={"on_failure": f"{__name__}:page", "on_success": f"{__name__}:page"})
    dag = headrace_dag("flights")
    sys.modules[__name__].CALLS.clear()
    for callback in dag.get_task("run").on_failure_callback, dag.get_task("run").on_success_callback:
        (callback[0] if isinstance(callback, list | tuple) else callback)("context")

    assert sys.modules[__name__].CALLS == ["context", "context"]
    assert not dag.get_task("compact").on_success_callback


@pytest.mark.parametrize(
    ("on_deadline", "kind"),
    [(None, "AsyncCallback"), (f"{__name__}:page", "SyncCallback"), (f"{__name__}:page_late", "AsyncCallback")],
)
def test_job_file_sets_a_deadline(home, edit_job, on_deadline, kind):
    edit_job("flights", airflow={"deadline": "2h", "on_deadline": on_deadline})
    dag = headrace_dag("flights")

    (alert,) = dag.deadline
    assert (alert.interval, type(alert.callback).__name__) == (timedelta(hours=2), kind)
    DagSerialization.to_json(dag)


def test_deadline_function_without_deadline_is_refused(home, edit_job):
    edit_job("flights", airflow={"on_deadline": "company.alerts:page"})

    with pytest.raises(ConfigError, match="never called without `airflow.deadline`"):
        headrace_dag("flights")


def test_callback_that_is_no_function_is_refused(home, edit_job):
    edit_job("flights", airflow={"on_failure": "page me"})

    with pytest.raises(ConfigError, match="'page me' is not package.module:function"):
        headrace_dag("flights")


def test_dag_in_docs_page_can_be_parsed(home):
    block = (PROJECT / "docs" / "own-dag.md").read_text().split("```python\n")[1].split("```")[0]
    file = home / "conf" / "jobs" / "flights.yaml"
    (home / "conf" / "jobs" / "shop.yaml").write_text(file.read_text().replace("job: flights", "job: shop"))
    names: dict[str, Any] = {"__file__": str(home / "morning.py"), "__name__": "morning"}
    exec(compile(block, str(home / "morning.py"), "exec"), names)  # noqa: S102  the page's own code

    assert {task.task_id for task in names["take_in"].dag.tasks} == {"take_in", "arrived", "keep", "tell"}
    DagSerialization.to_json(names["take_in"].dag)
