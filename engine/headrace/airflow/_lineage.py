"""Datasets of a run for OpenLineage, if Airflow's OpenLineage provider is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from headrace.config import JobConfig, SourceConfig


def datasets_of(job: JobConfig) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return OpenLineage's namespace and name of each dataset that a job reads, and of each that it writes."""
    return (
        [_source(source) for source in job.sources.values()],
        [_place(sink.path) for sink in job.sinks.values()],
    )


def operator_lineage(job: JobConfig) -> Any:
    """Return the provider's `OperatorLineage` for a run of a job; None if the provider is not installed.

    Raises `ModuleNotFoundError` when the provider is installed without its own dependencies.
    """
    try:
        lineage = import_module("airflow.providers.openlineage.extractors").OperatorLineage
        dataset = import_module("openlineage.client.event_v2").Dataset
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("airflow.providers.openlineage", "openlineage")):
            return None
        raise
    inputs, outputs = (
        [dataset(namespace=namespace, name=name) for namespace, name in datasets] for datasets in datasets_of(job)
    )
    return lineage(inputs=inputs, outputs=outputs)


def _source(source: SourceConfig) -> tuple[str, str]:
    """Return the dataset of a source: a topic by its first broker, others by their place."""
    if source.topic is not None and source.servers is not None:
        return f"kafka://{source.servers.partition(',')[0].strip()}", source.topic
    return _place(source.path)


def _place(path: str) -> tuple[str, str]:
    """Return the dataset of a folder: on a disk `file` and the path; on a store the bucket and the rest of the URI."""
    place = urlsplit(path)
    if place.scheme and place.netloc:
        return f"{place.scheme}://{place.netloc}", place.path.strip("/") or "/"
    return "file", path
