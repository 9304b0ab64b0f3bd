"""The datasets that a run reports to OpenLineage: what its job reads and writes."""

from __future__ import annotations

import importlib.util

from airflow.sdk import DAG
from msgspec.structs import replace

from headrace.airflow import HeadraceRunOperator
from headrace.config import SourceConfig, datasets_of, load_job


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


def test_operator_reports_its_datasets_to_openlineage(home):
    with DAG("mine", schedule=None):
        run = HeadraceRunOperator(task_id="run", job="flights", home=home)
    lineage = run.get_openlineage_facets_on_complete(None)
    if importlib.util.find_spec("openlineage") is None:
        assert lineage is None
        return
    assert [dataset.name for dataset in lineage.inputs] == [load_job("flights", home).sources["flight_events"].path]
    assert len(lineage.outputs) == 3
