"""The datasets that a run reports to OpenLineage: what its job reads and writes."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from msgspec.structs import replace

from headrace.airflow import HeadraceRunOperator
from headrace.cli.lineage_events import datasets_of_run
from headrace.config import SourceConfig, datasets_of, load_job
from tests.airflow.test_local_run import headrace, task_of
from tests.airflow.test_run_operator import REPORT, context_of

__all__ = ["headrace"]


def test_datasets_are_named_by_their_places(home):
    job = load_job("flights", home)
    job = replace(
        job,
        sources={
            "files": SourceConfig(path="/data/events"),
            "messages": SourceConfig(format="kafka", servers="one:9092, two:9092", topic="orders"),
        },
        sinks={"board": replace(job.sinks["flight_board"], path="s3://lake/tables/board")},
    )
    assert datasets_of(job) == (
        {"files": ("file", "/data/events"), "messages": ("kafka://one:9092", "orders")},
        {"board": ("s3://lake", "tables/board")},
    )


@pytest.fixture
def provider(monkeypatch):
    """Put as much of Airflow's OpenLineage provider in place as operators see."""
    package = ModuleType("airflow.providers.openlineage")
    package.__spec__ = ModuleSpec(package.__name__, None)
    extractors: Any = ModuleType(f"{package.__name__}.extractors")
    extractors.OperatorLineage = SimpleNamespace
    for module in (package, extractors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    pytest.importorskip("openlineage.client")


def test_operator_without_provider_reports_nothing(home):
    with DAG("mine", schedule=None):
        run = HeadraceRunOperator(task_id="run", job="flights", home=home)
    assert run.get_openlineage_facets_on_start() is None
    assert run.get_openlineage_facets_on_complete(None) is None


def test_operator_reports_its_datasets_to_openlineage(home, provider):
    with DAG("mine", schedule=None):
        run = HeadraceRunOperator(task_id="run", job="flights", home=home)
    lineage = run.get_openlineage_facets_on_start()
    assert [dataset.name for dataset in lineage.inputs] == [load_job("flights", home).sources["flight_events"].path]
    assert len(lineage.outputs) == 3


def test_operator_reports_the_columns_of_its_run(home, headrace, provider):
    described = datasets_of_run(load_job("flights", home))
    headrace({**REPORT, "lineage": dict(zip(("inputs", "outputs"), described, strict=True))})
    task = task_of(home, runner="local")
    result = task.execute(context_of(task))
    lineage = task.get_openlineage_facets_on_complete(None)
    assert "--lineage" in task.application_args
    assert "lineage" not in result
    assert all({"schema", "columnLineage"} <= {*dataset.facets} for dataset in lineage.outputs)
