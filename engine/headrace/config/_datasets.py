"""Names of a job's sources and sinks as OpenLineage's datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from headrace.config._job import JobConfig


class Dataset(NamedTuple):
    """Dataset of OpenLineage: `namespace` is its store, or its broker, `name` the place there."""

    namespace: str
    name: str


def dataset_of(path: str) -> Dataset:
    """Return the dataset of a place: on a disk `file` and the path; else the store, or the broker, and the rest of the URI, without a password."""
    place = urlsplit(path)
    if place.scheme and place.netloc:
        user, _, host = place.netloc.rpartition(
            "@"
        )  # a user without a password may be a container: abfss://name@account
        return Dataset(f"{place.scheme}://{host if ':' in user else place.netloc}", place.path.strip("/") or "/")
    return Dataset("file", path)


def datasets_of(job: JobConfig) -> tuple[dict[str, Dataset], dict[str, Dataset]]:
    """Return the datasets of a job's sources, and those of its sinks, by name."""
    return (
        {name: dataset_of(source.kind.address(source)) for name, source in job.sources.items()},
        {name: dataset_of(sink.path) for name, sink in job.sinks.items()},
    )


def sends_lineage(environment: Mapping[str, str]) -> bool:
    """Return whether the environment says where OpenLineage's events go, by the variables of OpenLineage itself."""
    if environment.get("OPENLINEAGE_DISABLED", "").strip().lower() == "true":
        return False
    given = [name for name, value in environment.items() if value.strip()]
    return any(name in _PLACES or name.startswith("OPENLINEAGE__TRANSPORT") for name in given)


_PLACES = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG")
