"""Loader of user code, its plan, and the schemas of its sinks.

Loader of user code: driver, tasks and command line import pipelines only through it.
"""

from __future__ import annotations

import functools
import importlib
import os
import traceback
from collections.abc import Collection, Iterable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace import logs
from headrace.config import PipelineCode
from headrace.errors import ConfigError
from headrace.interrupts import is_interrupt
from headrace.names import did_you_mean
from headrace.plan.planner import plan_stages
from headrace.plan.stages import Plan
from headrace.records.column_types import columns_of
from headrace.records.columns import changelog_schema, sink_schema

if TYPE_CHECKING:
    from headrace.stream.stream import Pipeline


_OWN_CODE = str(Path(__file__).parent.parent) + os.sep


@functools.cache
def load_pipeline(code: PipelineCode) -> Pipeline:
    """Import the pipeline of a job, once in a process.

    Raises `ConfigError` when its module cannot be imported, has no such variable, or the variable is no `Pipeline`.
    """
    from headrace.stream.stream import ConnectedStreams, Pipeline, Stream

    code.make_importable()
    module_name, _, variable = code.reference.partition(":")
    module = _module(module_name, code)
    if not hasattr(module, variable):
        public = [name for name in vars(module) if not name.startswith("_")]
        msg = f"{module_name} has no variable '{variable}'{did_you_mean(variable, public)}"
        raise ConfigError(msg)
    pipeline = getattr(module, variable)
    if not isinstance(pipeline, Pipeline):
        msg = f"'{code.reference}' is of type {type(pipeline).__name__}, not a Pipeline"
        if isinstance(pipeline, Stream | ConnectedStreams):
            msg += ": end the stream with sink(), which returns the pipeline, or name the variable that Pipeline() is kept in"
        raise ConfigError(msg)
    return pipeline


def _module(name: str, code: PipelineCode) -> ModuleType:
    try:
        with redirect_stdout(
            logs.output_of_user_code()
        ):  # standard output is for the command: with --json, one document
            return importlib.import_module(name)
    except BaseException as error:
        if is_interrupt(error):
            raise
        # User code runs here, so any error is possible; the reader needs its place in user code, not ours.
        msg = f"module '{name}' cannot be imported: {_reason(name, error, code)}"
        raise ConfigError(msg) from error


def _reason(name: str, error: BaseException, code: PipelineCode) -> str:
    """Return the error of the import of module `name`, and its place in user code."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
        return f"there is no module '{error.name}' in {code.described()}"
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) or not frames:
        return f"{type(error).__name__}: {error}"
    place = next((frame for frame in reversed(frames) if not frame.filename.startswith(_OWN_CODE)), frames[-1])
    return f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"


@functools.cache
def plan_of(code: PipelineCode) -> Plan:
    """Return the stages of a pipeline, planned once in a process.

    Raises `ConfigError` when the pipeline cannot be loaded, or cannot be run.
    """
    return with_names(plan_stages(load_pipeline(code)), code)


def with_names(plan: Plan, code: PipelineCode) -> Plan:
    """Return a plan with the names that the job's file gives to columns of sources and sinks."""
    if not (code.source_names or code.sink_names):
        return plan
    of_sources, of_sinks = dict(code.source_names), dict(code.sink_names)
    return replace(
        plan,
        source_stages=tuple(
            replace(stage, source=replace(stage.source, rename=of_sources.get(stage.name, ())))
            for stage in plan.source_stages
        ),
        sinks={name: replace(sink, names=of_sinks.get(name, ())) for name, sink in plan.sinks.items()},
    )


def sink_schemas(plan: Plan, appended: Collection[str] = ()) -> dict[str, tuple[pa.Schema, tuple[str, ...]]]:
    """Return the Arrow schema and the primary key (empty: append-only) of each of the pipeline's sinks.

    A materializer's sink in `appended` is a log of its changes. Raises `ConfigError` for names that Delta cannot tell apart.
    """
    schemas: dict[str, tuple[pa.Schema, tuple[str, ...]]] = {}
    for sink in plan.sinks.values():
        schema = sink_schema(sink.record, sink.primary_key, sink.names)
        stored = {column.name: column.stored for column in columns_of(sink.record, sink.names)}
        keys = tuple(stored[name] for name in sink.primary_key)
        changes = changelog_schema(schema) if keys else schema
        if twins := _equal_but_for_case(changes):
            msg = (
                f"sink '{sink.name}': the columns {' and '.join(twins)} of {sink.record.__name__} differ only in case, or not at all, and Delta "
                "takes such names for equal: rename one"
            )
            raise ConfigError(msg)
        if keys and sink.name in appended:
            schema, keys = changes, ()
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
