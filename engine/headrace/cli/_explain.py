"""The operator graph of a job as plain data, and as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api import (
    AsyncWait,
    Emit,
    Lag,
    Pipeline,
    Process,
    SinkNode,
    SourceNode,
    StateTtl,
    Strategy,
    UpsertMaterialize,
)
from headrace.api._pipeline import output_type
from headrace.api._state import State
from headrace.cli._services import capacity_for_retries, last_measured
from headrace.config import AsyncStateConfig, JobConfig, ServiceConfig, format_duration
from headrace.execution.declarations import declared_states
from headrace.execution.options import AsyncStateOptions

if TYPE_CHECKING:
    from rich.tree import Tree


def describe(config: JobConfig, pipeline: Pipeline) -> dict[str, Any]:
    """Everything worth knowing about a job, as plain values. Holds no secret.

    Stages are what Spark runs between two shuffles: reading and calling out first, then one stage
    for each keyed operator.
    """
    stages: list[dict[str, Any]] = []
    for operator in pipeline.operators:
        is_keyed_wait = isinstance(operator, AsyncWait) and operator.key is not None
        if is_keyed_wait or isinstance(operator, SourceNode | Process | UpsertMaterialize):
            stages.append({"stage": len(stages) + 1, "operators": []})
        stages[-1]["operators"].append(_operator(config, operator))
    return {
        "job": config.job,
        "pipeline": config.pipeline,
        "description": config.description,
        "cluster": {"name": config.cluster, "master": config.profile.master, "tasks": config.tasks},
        "state": {
            "folder": config.job_folder,
            "backend": config.state.backend,
            "key_groups": config.max_parallelism,
            "watermark_every_rows": config.watermark.bucket,
        },
        "run": {"mode": config.mode, "budget": format_duration(config.run.budget)},
        "stages": stages,
    }


def _operator(config: JobConfig, operator: Any) -> dict[str, Any]:
    kind = {"operator": operator.name, "kind": _KINDS[type(operator)]}
    return {**kind, **_DETAILS[type(operator)](config, operator)}


def _source(config: JobConfig, source: SourceNode) -> dict[str, Any]:
    bound = config.sources[source.name]
    return {
        "record": source.record.__name__,
        "fields": list(source.record.__struct_fields__),
        "event_time": source.event_time,
        "order_by": list(source.order_by) or ["file", "row"],
        "row_kind": source.row_kind,
        "out_of_orderness": format_duration(source.out_of_orderness),
        "reads": f"{bound.format} files in {bound.path}",
        "limits": {"files": bound.max_files_per_batch, "rows": bound.max_rows_per_batch},
        "on_bad_file": bound.on_bad_file,
        "on_bad_row": bound.on_bad_row,
    }


def _wait(config: JobConfig, wait: AsyncWait) -> dict[str, Any]:
    override = config.async_io.get(wait.name)
    capacity = (override.capacity if override else None) or wait.capacity
    timeout = (override.timeout if override else None) or wait.timeout
    park_after = override.park_after if override and override.park_after is not None else wait.park_after
    service = config.services.get(wait.service) if wait.service else None
    return {
        "function": type(wait.function).__name__,
        "key": [wait.key] if wait.key else [],
        "record": output_type(wait.function).__name__,
        "mode": wait.mode.value,
        "capacity": capacity,
        "timeout": format_duration(timeout),
        "retry": _policy(wait.retry),
        "park_after": None if park_after is None else format_duration(park_after),
        "recovery": wait.recovery.value,
        "on_failure": wait.on_failure.value,
        **{name: _policy(policy) for name in ("breaker", "cache", "batch") if (policy := getattr(wait, name))},
        "service": wait.service,
        "limits": limits_of(service, capacity, timeout) if service and _is_limited(service) else None,
        "capacity_for_retries": _measured(config, wait, capacity),
    }


def limits_of(service: ServiceConfig, capacity: int, timeout: timedelta) -> dict[str, Any]:
    """What a service can bear, and whether elements would run out of time while they wait for their turn."""
    limits = {"rate": service.rate, "concurrency": service.concurrency}
    longest = capacity / service.rate if service.rate else 0.0
    if longest <= timeout.total_seconds():
        return limits
    told = f"a call may wait {longest:g} s for its turn, longer than the timeout: lower capacity, or raise the timeout"
    return {**limits, "beware": told}


def _is_limited(service: ServiceConfig) -> bool:
    return service.rate is not None or service.concurrency is not None


def _measured(config: JobConfig, wait: AsyncWait, capacity: int) -> str | None:
    """FLIP-232's estimate from the rates of the last micro-batch, in words."""
    made = last_measured(config).get(wait.name)
    found = capacity_for_retries(made) if made else None
    if found is None:
        return None
    rates = f"{found['input_rate']:g} records/s x {found['retry_rate']:.2%} retried x {found['avg_retry_seconds']:g} s"
    enough = "" if found["capacity"] < capacity / 2 else f": more than half of capacity {capacity}, raise it"
    return f"{found['capacity']:g} of {capacity} ({rates}, as measured last){enough}"


def _process(config: JobConfig, process: Process) -> dict[str, Any]:
    return {
        "function": type(process.function).__name__,
        "key": [process.key],
        "record": output_type(process.function).__name__,
        "states": [_state(state) for state in declared_states(process.function).values()],
        "side_outputs": [
            {"name": side.name, "record": side.record.__name__, "sink": side.sink, **_bound(config, side.sink)}
            for side in process.side_outputs
        ],
        "async_state": _async_state(config.async_state(process.name)),
    }


def _async_state(options: AsyncStateOptions) -> dict[str, Any]:
    """All options, by the names that they have in the job's file."""
    keys = {field.name: field.encode_name for field in msgspec.structs.fields(AsyncStateConfig)}
    return {key: _plain(getattr(options, name)) for name, key in keys.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    return value.value if isinstance(value, Enum) else value


def _state(state: State) -> dict[str, Any]:
    ttl = _ttl(state.ttl) if state.ttl is not None else None
    kind = type(state).__name__.removesuffix("State").lower()
    stored = getattr(state, "type", None)
    return {"state": state.name, "kind": kind, "type": getattr(stored, "__name__", str(stored)), "ttl": ttl}


def _ttl(ttl: StateTtl) -> str:
    """All that decides over the life of an entry, in one line."""
    clock = "watermark" if ttl.expires_by_watermark else "processing time"
    parts = [
        f"{format_duration(ttl.ttl)} {ttl.update.value}",
        f"{ttl.time.value} time by {clock}",
        ttl.visibility.value,
    ]
    cleanup = ttl.cleanup
    kinds = {
        f"{cleanup.entries_per_record} a record": cleanup.entries_per_record,
        f"{cleanup.entries_per_access} an access": cleanup.entries_per_access,
        "at compaction": cleanup.at_compaction,
        "exact": cleanup.exact,
    }
    parts.append(f"cleanup {' and '.join(['on access', *(kind for kind, is_on in kinds.items() if is_on)])}")
    if ttl.gap_threshold is not None:
        parts.append(f"prolonged by pauses over {format_duration(ttl.gap_threshold)}")
    return "; ".join(parts)


def _materialize(config: JobConfig, operator: UpsertMaterialize) -> dict[str, Any]:
    layouts = config.upsert_materialize(operator.name).layouts(operator.strategy, config.state.backend)
    adaptive = layouts.strategy is Strategy.ADAPTIVE
    return {
        "key": list(operator.primary_key),
        "upsert_key": list(operator.upsert_key) if operator.upsert_key else None,
        "history": _history(operator),
        "strategy": layouts.strategy.value if operator.is_needed else None,
        "thresholds": {"high": layouts.high, "low": layouts.low} if operator.is_needed and adaptive else None,
        "ttl": format_duration(operator.ttl.ttl) if operator.ttl else None,
        "on_conflict": operator.on_conflict.value,
        "emit": (Emit.NET_CHANGE if _merges(config) else operator.emit).value,
    }


def _merges(config: JobConfig) -> bool:
    """Whether the main sink, which alone can, is merged into: it takes the net change, whatever the pipeline says."""
    return any(sink.mode == "merge" for sink in config.sinks.values())


def _lag(config: JobConfig, operator: Lag) -> dict[str, Any]:
    layouts = config.upsert_materialize(operator.name).layouts(operator.strategy, config.state.backend)
    return {
        "function": getattr(operator.function, "__name__", str(operator.function)),
        "record": operator.record.__name__,
        "partition_by": list(operator.partition_by),
        "offset": operator.offset,
        "key": list(operator.primary_key),
        "upsert_key": list(operator.upsert_key) if operator.upsert_key else None,
        "strategy": layouts.strategy.value,
        "ttl": format_duration(operator.ttl.ttl) if operator.ttl else None,
    }


def _history(operator: UpsertMaterialize) -> str:
    if not operator.is_needed:
        return "not needed: the upsert key is the primary key, so the last change of a key is what counts"
    if replace(operator, force=False).is_needed:
        return "kept"
    return "kept because of force=True: the upsert key is the primary key, so none is needed"


def _sink(config: JobConfig, sink: SinkNode) -> dict[str, Any]:
    return _bound(config, sink.name)


def _bound(config: JobConfig, name: str) -> dict[str, Any]:
    return {"writes": config.sinks[name].path, "mode": config.sinks[name].mode}


_KINDS = {
    SourceNode: "source",
    AsyncWait: "async wait",
    Process: "keyed process",
    UpsertMaterialize: "upsert materializer",
    Lag: "lag",
    SinkNode: "sink",
}
_DETAILS: dict[type, Any] = {
    SourceNode: _source,
    AsyncWait: _wait,
    Process: _process,
    UpsertMaterialize: _materialize,
    Lag: _lag,
    SinkNode: _sink,
}


def _policy(policy: Any) -> str:
    """A frozen dataclass of options in one line: `ExponentialBackoff(max_retries=8, ...)`."""
    if not is_dataclass(policy):
        return type(policy).__name__
    parts = [f"{field.name}={_value(getattr(policy, field.name))}" for field in fields(policy)]
    return f"{type(policy).__name__}({', '.join(parts)})"


def _value(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, tuple):
        return "|".join(getattr(item, "__name__", str(item)) for item in value)
    return str(getattr(value, "value", value))


def tree(described: dict[str, Any]) -> Tree:
    """What `describe` made, for people."""
    from rich.text import Text
    from rich.tree import Tree

    root = Tree(Text(f"{described['job']}: {described['description']}"))
    cluster, state = described["cluster"], described["state"]
    root.add(Text(f"cluster {cluster['name']} ({cluster['master']}), {cluster['tasks']} tasks per operator"))
    root.add(Text(f"state in {state['folder']} ({state['backend']}, {state['key_groups']} key groups)"))
    for stage in described["stages"]:
        where = "reads and calls out" if stage["stage"] == 1 else "after a shuffle by key"
        branch = root.add(Text(f"stage {stage['stage']}: {where}"))
        for operator in stage["operators"]:
            _grow(branch.add(Text(f"{operator['kind']} {operator['operator']}")), operator)
    return root


def _grow(branch: Tree, values: dict[str, Any]) -> None:
    from rich.text import Text

    for name, value in _shown(values):
        if isinstance(value, list) and isinstance(value[0], dict):
            for item in value:
                branch.add(Text(f"{name.rstrip('s').replace('_', ' ')}: {_line(item)}"))
        else:
            branch.add(Text(f"{name.replace('_', ' ')}: {_line(value)}"))


def _shown(values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if name not in {"operator", "kind"} and value not in (None, []):
            yield name, _notable(value) if name == "async_state" else value


def _notable(options: dict[str, Any]) -> dict[str, Any]:
    """The options that are not as by default, and the two that everyone asks for."""
    defaults = _async_state(AsyncStateOptions())
    asked_for = {"in-flight-records-limit", "buffer-size"}
    return {key: value for key, value in options.items() if key in asked_for or value != defaults[key]}


def _line(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_line(item)}" for key, item in value.items() if item is not None)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
