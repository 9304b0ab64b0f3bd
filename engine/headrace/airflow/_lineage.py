"""Datasets of a run for OpenLineage, where Airflow's OpenLineage provider is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from headrace.config import JobConfig, SourceConfig


def datasets_of(job: JobConfig) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return namespace and name of what a job reads, and of what it writes, as OpenLineage names them."""
    return (
        [_source(source) for source in job.sources.values()],
        [_place(sink.path) for sink in job.sinks.values()],
    )


def operator_lineage(job: JobConfig) -> Any:
    """Return the provider's `OperatorLineage` for a run of a job; None where the provider is not installed.

    Raises `ModuleNotFoundError` when it is installed and lacks what it needs itself.
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
    """Name a topic by its first broker, and anything else by its place."""
    if source.topic is not None and source.servers is not None:
        return f"kafka://{source.servers.partition(',')[0].strip()}", source.topic
    return _place(source.path)


def _place(path: str) -> tuple[str, str]:
    """Name a folder on a disk by `file` and its path, one on a store by the bucket and what follows it."""
    place = urlsplit(path)
    if place.scheme and place.netloc:
        return f"{place.scheme}://{place.netloc}", place.path.strip("/") or "/"
    return "file", path
