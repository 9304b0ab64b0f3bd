"""From the code of a pipeline to its plan and the schemas of its sinks."""

from __future__ import annotations

import functools
from collections.abc import Collection

import pyarrow as pa

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

    A materializer's sink in `appended` is a log of its changes.
    """
    schemas: dict[str, tuple[pa.Schema, tuple[str, ...]]] = {}
    for sink in plan.sinks.values():
        schema, keys = sink_schema(sink.record, sink.primary_key), sink.primary_key
        if keys and sink.name in appended:
            schema, keys = changelog_schema(schema), ()
        schemas[sink.name] = (schema, keys)
    return schemas
