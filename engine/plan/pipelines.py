"""Finding a pipeline by name, in the driver and in every task."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Collection

import pyarrow as pa

from engine.api import Pipeline, Process
from engine.errors import ConfigError
from engine.imports import why_not_imported
from engine.plan.columns import changelog_schema, sink_schema
from engine.plan.stages import Plan, plan_stages


@functools.cache
def plan_of(reference: str) -> Plan:
    """The stages of the pipeline at `package.module:variable`.

    Raises `ConfigError` when there is no pipeline there, or when its module cannot be imported.
    """
    module, _, variable = reference.partition(":")
    try:
        pipeline = getattr(importlib.import_module(module), variable, None)
    except Exception as error:
        # User code runs here, so anything may come out; the reader needs their place, not ours.
        msg = f"'{reference}' is no Pipeline: {module} cannot be imported: {why_not_imported(module, error)}"
        raise ConfigError(msg) from error
    if not isinstance(pipeline, Pipeline):
        msg = f"'{reference}' is no Pipeline"
        raise ConfigError(msg)
    return plan_stages(pipeline)


def sink_schemas(plan: Plan, appended: Collection[str] = ()) -> dict[str, tuple[pa.Schema, tuple[str, ...]]]:
    """The Arrow schema and the primary key (empty: append-only) of each of the pipeline's sinks.

    A materializer's sink that is among those `appended` to is a log of its changes.
    """
    schema, keys = sink_schema(plan.sink_record, plan.primary_key), plan.primary_key
    if keys and plan.sink.name in appended:
        schema, keys = changelog_schema(schema), ()
    found = {plan.sink.name: (schema, keys)}
    for stage in plan.keyed:
        if isinstance(stage.operator, Process):
            for side in stage.operator.side_outputs:
                found[side.sink] = (sink_schema(side.record), ())
    return found
