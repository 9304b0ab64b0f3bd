"""OpenLineage's datasets of a job, with columns, their types and their lineage, as JSON of OpenLineage's specification."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from headrace.config import Dataset, JobConfig
    from headrace.plan.column_lineage import JobColumnLineage, Origin
    from headrace.records.column_types import Column

PRODUCER: Final = "https://pypi.org/project/headrace"
_SPECIFICATION: Final = "https://openlineage.io/spec/facets"
_MOST_FIELDS: Final = 50_000
"""Fields that the lineage of one sink may list. A wide table behind a function that may read every column has more."""

Json = dict[str, Any]


def facet(schema: str, **content: Any) -> Json:
    """Return a facet: `schema` is its version and name in the specification."""
    version, name = schema.split("/")
    url = f"{_SPECIFICATION}/{version}/{name}.json#/$defs/{name}"
    return {"_producer": PRODUCER, "_schemaURL": url, **content}


def datasets(config: JobConfig, known: JobColumnLineage | None) -> tuple[dict[str, Json], dict[str, Json]]:
    """Return the datasets of a job's sources, and those of its sinks, by name; without `known` columns, as places alone."""
    from headrace.config import datasets_of

    sources, sinks = datasets_of(config)
    return (
        {
            name: _dataset(dataset, None if known is None else known.sources.get(name))
            for name, dataset in sources.items()
        },
        {name: _sink(dataset, name, sources, known) for name, dataset in sinks.items()},
    )


def _sink(dataset: Dataset, name: str, sources: dict[str, Dataset], known: JobColumnLineage | None) -> Json:
    if known is None or name not in known.sinks:
        return _dataset(dataset, None)
    lineage = known.sinks[name]
    described = _dataset(dataset, known.sink_columns[name])
    if len(lineage.rows) + sum(map(len, lineage.columns.values())) <= _MOST_FIELDS:
        described["facets"]["columnLineage"] = facet(
            "1-2-0/ColumnLineageDatasetFacet",
            fields={column: {"inputFields": _fields(origins, sources)} for column, origins in lineage.columns.items()},
            dataset=_fields(lineage.rows, sources),
        )
    return described


def _dataset(dataset: Dataset, columns: Sequence[Column] | None) -> Json:
    uri = f"file://{dataset.name}" if dataset.namespace == "file" else f"{dataset.namespace}/{dataset.name}"
    facets = {"dataSource": facet("1-0-1/DatasourceDatasetFacet", name=dataset.namespace, uri=uri)}
    if columns:
        fields = [{"name": column.stored, "type": str(column.sink_type)} for column in columns]
        facets["schema"] = facet("1-1-1/SchemaDatasetFacet", fields=fields)
    return {"namespace": dataset.namespace, "name": dataset.name, "facets": facets}


def _fields(origins: Iterable[Origin], sources: dict[str, Dataset]) -> list[Json]:
    """Return the columns of sources, each once, with the ways in which it is read."""
    ways: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for origin in sorted(origins, key=lambda origin: (origin.source, origin.column, origin.kind.value, origin[3:])):
        if origin.source in sources:
            ways[origin.source, origin.column].append(_transformation(origin))
    return [
        {
            "namespace": sources[source].namespace,
            "name": sources[source].name,
            "field": column,
            "transformations": transformations,
        }
        for (source, column), transformations in ways.items()
    ]


def _transformation(origin: Origin) -> Json:
    description = f"user function {origin.by}" if origin.by else ""
    if not origin.is_sure:
        description += ", which may read any column"
    return {
        "type": "DIRECT" if origin.kind.is_direct else "INDIRECT",
        "subtype": origin.kind.name,
        "description": description,
        "masking": False,
    }
