"""From the code of a pipeline to its plan and the schemas of its sinks."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable

import pyarrow as pa

from headrace.errors import ConfigError
from headrace.plan.columns import changelog_schema, sink_schema
from headrace.plan.loader import PipelineCode, load_pipeline
from headrace.plan.planner import plan_stages
from headrace.plan.stages import Plan


@functools.cache
def plan_of(code: PipelineCode) -> Plan:
    """Return the stages of a pipeline, planned once in a process.

    Raises `ConfigError` when the pipeline cannot be loaded, or cannot be run.
    """
    return plan_stages(load_pipeline(code))


def sink_schemas(plan: Plan, appended: Collection[str] = ()) -> dict[str, tuple[pa.Schema, tuple[str, ...]]]:
    """Return the Arrow schema and the primary key (empty: append-only) of each of the pipeline's sinks.

    A materializer's sink in `appended` is a log of its changes. Raises `ConfigError` for names that Delta cannot tell apart.
    """
    schemas: dict[str, tuple[pa.Schema, tuple[str, ...]]] = {}
    for sink in plan.sinks.values():
        schema, keys = sink_schema(sink.record, sink.primary_key), sink.primary_key
        if keys and sink.name in appended:
            schema, keys = changelog_schema(schema), ()
        if twins := _equal_but_for_case(schema):
            msg = (
                f"sink '{sink.name}': the fields {' and '.join(twins)} of {sink.record.__name__} differ only in case, and Delta takes such names "
                "of columns for equal: rename one"
            )
            raise ConfigError(msg)
        schemas[sink.name] = (schema, keys)
    return schemas


def _equal_but_for_case(fields: Iterable[pa.Field]) -> list[str]:
    """Return the names of fields beside each other that differ only in case, also within structs, lists and maps; none without such ones."""
    level = [*fields]
    folded = [field.name.lower() for field in level]
    twins = [field.name for field in level if folded.count(field.name.lower()) > 1]
    if twins:
        return twins
    kinds = [field.type for field in level if pa.types.is_nested(field.type)]
    parts = (_equal_but_for_case(kind.field(place) for place in range(kind.num_fields)) for kind in kinds)
    return next(filter(None, parts), [])
