"""Loading of a job's pipeline, and checks that the job binds everything that the pipeline needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import msgspec

from headrace.config import AsyncStateConfig, JobConfig, Problem, UpsertMaterializeConfig, raise_problems
from headrace.errors import ConfigError
from headrace.names import did_you_mean

if TYPE_CHECKING:
    from headrace.stream.stream import Pipeline


def load_pipeline(config: JobConfig) -> Pipeline:
    """Load the job's pipeline and check that the job binds its sources, sinks and operators.

    Raises `ConfigError` when the pipeline cannot be loaded, or a binding is missing or not used.
    """
    pipeline = import_pipeline(config)
    check_bindings(config, pipeline)
    return pipeline


def import_pipeline(config: JobConfig) -> Pipeline:
    """Load the job's pipeline. Raises `ConfigError` that names the place in the job's file when it cannot be loaded."""
    from headrace.plan import loader

    try:
        return loader.load_pipeline(config.code)
    except ConfigError as error:
        msg = f"{config.where('pipeline')}: {error}"
        raise ConfigError(msg) from error


def check_bindings(config: JobConfig, pipeline: Pipeline) -> None:
    """Raise `ConfigError` that lists all `binding_problems`, if there are any."""
    raise_problems(config.file, binding_problems(config, pipeline))


def binding_problems(config: JobConfig, pipeline: Pipeline) -> list[str]:
    """Return every name that only the job or only the pipeline has, and options that contradict others."""
    problems = [f"{config.where(key)}: {text}" for key, text in _problems(config, pipeline)]
    return list(dict.fromkeys([*problems, *_contradictions(config, pipeline)]))


def kindless_sinks(config: JobConfig, pipeline: Pipeline) -> list[str]:
    """Return the sinks that append rows without their kinds, of streams that may retract rows (`-U`, `-D`)."""
    from headrace.api.changelog_inference import may_retract
    from headrace.api.graph import SinkNode, UpsertMaterialize

    return [
        node.operator.name
        for node in pipeline.nodes
        if isinstance(node.operator, SinkNode)
        and node.operator.name in config.sinks
        and config.sinks[node.operator.name].mode == "append"
        and not isinstance(node.inputs[0].node.operator, UpsertMaterialize)
        and may_retract(node.inputs[0])
    ]


def _problems(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    from headrace.api.graph import AsyncWait, SinkNode, SourceNode

    operators = pipeline.operators
    sinks = [operator.name for operator in operators if isinstance(operator, SinkNode)]
    sources = [operator.name for operator in operators if isinstance(operator, SourceNode)]
    yield from _differences("sources", "source", sources, config.sources)
    yield from _differences("sinks", "sink", sinks, config.sinks)
    waits = [operator.name for operator in operators if isinstance(operator, AsyncWait)]
    for name in config.async_io:
        if name not in waits:
            yield f"async_io.{name}", _left_over("async operator", name, waits)
    yield from _services(config, pipeline)
    yield from _overrides(config, pipeline)
    yield from _modes(config, pipeline)
    yield from _row_kinds(config, pipeline)
    yield from _orders(config, pipeline)
    yield from _tables(config, pipeline)
    yield from _names(config, pipeline)


def _names(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the names of fields that the record of a source or sink lacks, and those that another one of its fields has."""
    from headrace.api.graph import SinkNode, SourceNode
    from headrace.plan.planner import record_of

    for node in pipeline.nodes:
        operator = node.operator
        if isinstance(operator, SourceNode) and (source := config.sources.get(operator.name)) and source.rename:
            yield from _renames(f"sources.{operator.name}.rename", source.rename, operator.record)
        elif isinstance(operator, SinkNode) and (sink := config.sinks.get(operator.name)) and sink.rename:
            yield from _renames(f"sinks.{operator.name}.rename", sink.rename, record_of(node.inputs[0]))


def _renames(key: str, names: Mapping[str, str], record: type[msgspec.Struct]) -> Iterator[Problem]:
    own = {field.name: field.encode_name for field in msgspec.structs.fields(record)}
    for field, name in names.items():
        others = [other for other in own if other != field and other not in names and own[other] == name]
        if field not in own:
            listed = f"{did_you_mean(field, [*own])} (it has: {', '.join(own)})"
            yield f"{key}.{field}", f"{record.__name__} has no field '{field}'{listed}"
        elif others:
            yield f"{key}.{field}", f"field '{others[0]}' has the name '{name}', too: rename it as well"


def _tables(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield the dimension tables of Spark's transforms that only the job or only the pipeline has."""
    from headrace.api.graph import SourceNode, SparkTransform, transform_over

    for node in pipeline.nodes:
        source = node.operator
        if isinstance(source, SourceNode) and source.name in config.sources:
            transform = transform_over(node, pipeline.nodes)
            wanted = [] if transform is None else [*cast("SparkTransform", transform.operator).tables]
            yield from _differences(
                f"sources.{source.name}.tables", "table", wanted, config.sources[source.name].tables
            )


def _orders(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield sources with an order of their own that the pipeline wants to sort: the sorted rows would depend on the size of a micro-batch."""
    from headrace.api.graph import SourceNode

    for node in pipeline.operators:
        if not isinstance(node, SourceNode) or node.name not in config.sources or not node.order_by:
            continue
        if (own_order := config.sources[node.name].kind.own_order) is not None:
            what = f"the pipeline gives the source an order_by, and {own_order}"
            yield f"sources.{node.name}.format", f"{what}: leave order_by out"


def _row_kinds(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    """Yield sources for which only the job reads a change feed, or only the pipeline that of a table."""
    from headrace.api.changelog import COMPACTED, DEBEZIUM, MAXWELL
    from headrace.api.graph import CHANGE_TYPE, SYMBOLS, SourceNode

    feeds = {"debezium": DEBEZIUM, "maxwell": MAXWELL}
    for node in pipeline.operators:
        if not isinstance(node, SourceNode) or node.name not in config.sources:
            continue
        source, by_feed = config.sources[node.name], node.row_kind == CHANGE_TYPE
        if (envelope := source.envelope) is not None and (
            node.row_kind != feeds[envelope]["field"] or node.kinds == SYMBOLS
        ):
            name = envelope.upper()
            what = f"rows of a change feed have kinds: give the source row_kind={name} in the pipeline, with 'from headrace import {name}'"
            yield f"sources.{node.name}.envelope", what
        if source.on_tombstone == "delete" and (node.row_kind != COMPACTED["field"] or node.kinds == SYMBOLS):
            what = "a tombstone deletes the row of its key: give the source row_kind=COMPACTED in the pipeline, with 'from headrace import COMPACTED'"
            yield f"sources.{node.name}.on_tombstone", what
        key = f"sources.{node.name}.{'change_feed' if source.on_change == 'fail' else 'on_change'}"
        if source.gives_changes and not (by_feed and node.kinds == SYMBOLS):
            yield key, f'rows of changes have kinds: give the source row_kind="{CHANGE_TYPE}" in the pipeline'
        elif by_feed and not source.gives_changes:
            what = f"the pipeline takes row kinds from {CHANGE_TYPE}, a column of a Delta table's changes"
            yield (
                key,
                f"{what}: write change_feed: true or on_change: as_changes (with format: delta), or take row_kind from another column",
            )


def _differences(key: str, what: str, wanted: list[str], bound: Iterable[str]) -> Iterator[Problem]:
    for name in wanted:
        if name not in bound:
            yield f"{key}.{name}", f"the pipeline's {what} '{name}' is not bound: add it under {key}"
    for name in bound:
        if name not in wanted:
            yield f"{key}.{name}", _left_over(what, name, wanted)


def _left_over(what: str, name: str, known: list[str]) -> str:
    listed = ", ".join(known) or "none"
    return f"the pipeline has no {what} '{name}'{did_you_mean(name, known)} (it has: {listed})"


def _services(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    from headrace.api.graph import AsyncWait

    known = list(config.services)
    waits = [operator for operator in pipeline.operators if isinstance(operator, AsyncWait)]
    for operator in waits:
        if operator.service is not None and operator.service not in known:
            listed = f"{did_you_mean(operator.service, known)} (it has: {', '.join(known) or 'none'})"
            text = f"async_wait '{operator.name}' needs the service '{operator.service}': add it under services{listed}"
            yield f"services.{operator.service}", text
    named = {operator.service for operator in waits}
    for name, service in config.services.items():
        settings = service.of_calls
        if settings and name not in named:
            yield f"services.{name}", _unnamed(name, settings, [operator.name for operator in waits])


def _unnamed(name: str, settings: Sequence[str], waits: Sequence[str]) -> str:
    listed = ", ".join(f"'{wait}'" for wait in waits) or "the pipeline has none"
    return (
        f"{', '.join(settings)} would not hold for any call: no async_wait names the service '{name}' (there are: {listed}). "
        f"Give service='{name}' to those that call it"
    )


def _overrides(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    from headrace.api.graph import Process, SinkNode, UpsertMaterialize

    processes = [operator.name for operator in pipeline.operators if isinstance(operator, Process)]
    materializers = [operator.name for operator in pipeline.operators if isinstance(operator, UpsertMaterialize)]
    keyed = [*processes, *materializers]
    named = {operator.name for operator in pipeline.operators if not isinstance(operator, SinkNode)}
    others = named - {*keyed}
    for name, own in config.operators.items():
        if name in others:
            rule = "is neither a keyed process nor a materializer; only those can be set here"
            yield f"operators.{name}", f"'{name}' {rule} (the pipeline has: {', '.join(keyed) or 'none'})"
        elif name not in keyed:
            yield f"operators.{name}", _left_over("keyed process or materializer", name, keyed)
        elif name in materializers and own.execution.async_state != AsyncStateConfig():
            yield f"operators.{name}.execution.async-state", f"'{name}' is a materializer: this has no effect on it"
        elif name in processes and own.execution.upsert_materialize != UpsertMaterializeConfig():
            yield (
                f"operators.{name}.execution.upsert-materialize",
                f"'{name}' is no materializer: this has no effect on it",
            )


def _contradictions(config: JobConfig, pipeline: Pipeline) -> Iterator[str]:
    """Yield the errors that a run would report for its operators' options."""
    for operator in pipeline.operators:
        try:
            config.upsert_materialize(operator.name)
        except ConfigError as error:
            yield str(error)


def _modes(config: JobConfig, pipeline: Pipeline) -> Iterator[Problem]:
    from headrace.api.graph import SinkNode, UpsertMaterialize

    for node in pipeline.nodes:
        if not isinstance(node.operator, SinkNode) or node.operator.name not in config.sinks:
            continue
        name, before = node.operator.name, node.inputs[0]
        if config.sinks[name].mode == "merge" and not isinstance(before.node.operator, UpsertMaterialize):
            what = "a side output" if before.side is not None else "the stream before it"
            yield (
                f"sinks.{name}.mode",
                f'merge needs a primary key, and {what} has none: give the sink its key, as in sink("{name}", key=(...)), or write mode: append',
            )
    for name in kindless_sinks(config, pipeline):
        if config.sinks[name].kind.only_appended is not None:
            text = (
                f"the stream may take rows back (-U, -D), and {config.sinks[name].format} keeps all of them: put upsert_materialize() "
                "before the sink, which then has the kind of each row in _row_kind, or additions() where it gets late records, or write "
                "format: delta"
            )
            yield f"sinks.{name}.format", text
