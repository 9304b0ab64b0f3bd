"""Description of a job as plain data: its stages, their operators, and the flow of records.

Measured metrics of the services that a job calls, and the estimate of the capacity from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.api.graph import (
    SYMBOLS,
    Additions,
    AssignEventTime,
    AsyncWait,
    DropUpdateBefore,
    Emit,
    Filter,
    FlatMap,
    KeyBy,
    LagNode,
    Map,
    OperatorFunction,
    Process,
    SinkNode,
    SourceNode,
    SparkTransform,
    Union,
    UpsertMaterialize,
)
from headrace.api.states import State
from headrace.api.ttl import StateTtl
from headrace.api.types import output_type
from headrace.config import AsyncStateConfig, JobConfig, ServiceConfig, SourceConfig, format_duration
from headrace.execution.bound_function import declared_states
from headrace.names import counted
from headrace.options import AsyncStateOptions, Strategy
from headrace.plan.stages import Flow, KeyedStage, Plan, SourceStage, Through, ToSink, ToStage
from headrace.records.column_types import Names, columns_of

if TYPE_CHECKING:
    from headrace.log.checkpoint import Checkpoint


Measured = dict[str, Any]


def last_measured(config: JobConfig) -> dict[str, Measured]:
    """Return, by async operator, the metrics of the last micro-batch that called it; empty for a job that never ran."""
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    latest: dict[str, Measured] = {}
    log = CheckpointLog(JobFolder.of(config))
    for checkpoint in reversed(log.checkpoints if log.exists else []):
        for name, measured in services_of(checkpoint).items():
            if measured.get("calls"):
                latest.setdefault(name, measured)
    return latest


def services_of(checkpoint: Checkpoint) -> dict[str, Measured]:
    """Return the metrics of services in a checkpoint, by async operator."""
    return {name: metrics.shown() for name, metrics in checkpoint.services.items()}


def capacity_for_retries(measured: Measured) -> dict[str, float] | None:
    """Return FLIP-232's estimate of the capacity that waiting retries take: `inputRate * retryRate * avgRetryDuration`.

    100 records/s, of which 1 % are retried after 60 s, take 60 places. None without measurements.
    """
    if not measured.get("elements") or not measured.get("busy_ms"):
        return None
    retries = measured.get("retries", 0)
    # The capacity is that of one task, so the rate must be, too.
    rate = measured["elements"] / measured.get("tasks", 1) / measured["busy_ms"] * 1000
    share = retries / measured["elements"]
    seconds = measured.get("retry_wait_ms", 0) / retries / 1000 if retries else 0.0
    return {
        "input_rate": round(rate, 1),
        "retry_rate": round(share, 4),
        "avg_retry_seconds": round(seconds, 3),
        "capacity": round(rate * share * seconds, 1),
    }


def in_a_line(job: str, operator: str, measured: Measured) -> str:
    """Return the metrics of a service in a line for people."""
    parts = [counted(measured.get("calls", 0), "call")]
    if "p50_ms" in measured:
        parts.append(f"p50/p95/p99 {measured['p50_ms']:g}/{measured['p95_ms']:g}/{measured['p99_ms']:g} ms")
    counts = ("failures", "retries", "timeouts", "parked", "quarantined", "defaulted", "cache_hits", "coalesced")
    parts += [f"{measured[name]:,} {name.replace('_', ' ')}" for name in counts if measured.get(name)]
    if measured.get("breaker"):
        parts.append(f"breaker {measured['breaker'].replace('_', ' ')}")
    return f"{job}, {operator}: {', '.join(parts)}"


def describe(config: JobConfig, plan: Plan) -> dict[str, Any]:
    """Return a description of a job as plain values, without secrets.

    A stage is the work between two shuffles: one for each source with the transforms and calls after it, then one for each keyed operator
    with the transforms after it. `flow` has the targets of a stage's records: a number in `operator` is an index into the stage's
    `operators`, and several uses of a stream have an `edge` each.
    """
    return {
        "job": config.job,
        "pipeline": config.pipeline,
        "description": config.description,
        "cluster": {"name": config.cluster, "master": config.profile.shown_master, "tasks": config.tasks},
        "state": {
            "folder": config.job_folder,
            "backend": config.state.backend,
            "key_groups": config.max_parallelism,
            "watermark_every_rows": config.watermark.bucket,
        },
        "run": {"mode": config.mode, "budget": format_duration(config.run.budget)},
        "sources_that_meet": [list(group) for group in plan.groups if len(group) > 1],
        "stages": _Stages(config, plan).described(),
    }


class _Stages:
    """Stages of a plan as plain values."""

    def __init__(self, config: JobConfig, plan: Plan) -> None:
        self._config = config
        self._plan = plan
        names = [*(stage.name for stage in plan.source_stages), *(stage.name for stage in plan.keyed)]
        self._numbers = {name: number for number, name in enumerate(names, start=1)}

    def described(self) -> list[dict[str, Any]]:
        sources = [self._source(stage) for stage in self._plan.source_stages]
        return [*sources, *(self._stage(stage.name, self._keyed(stage), stage.flows) for stage in self._plan.keyed)]

    def _source(self, stage: SourceStage) -> dict[str, Any]:
        described = self._stage(stage.name, _operator(self._config, stage.source), {None: stage.flow})
        if self._plan.is_shared(stage):
            plain, _ = self._plan.plain_and_others()
            numbers = ", ".join(str(self._numbers[other.name]) for other in plain)
            for operator in described["operators"]:
                if operator["kind"] == _KINDS[AsyncWait]:
                    operator["calls"] = f"after stage{'s' * (len(plain) > 1)} {numbers}"
        return described

    def _stage(self, name: str, first: dict[str, Any], flows: Mapping[str | None, Flow]) -> dict[str, Any]:
        operators, places = [first], dict[int, int]()
        first["changes"] = str(flows[None].changes)
        described = {side: self._flow(flow, operators, places) for side, flow in flows.items()}
        return {
            "stage": self._numbers[name],
            "operators": operators,
            "flow": described.pop(None),
            "side_flows": described,
            "side_changes": {side: str(flows[side].changes) for side in described},
        }

    def _keyed(self, stage: KeyedStage) -> dict[str, Any]:
        operator = stage.operator
        if isinstance(operator, UpsertMaterialize):
            (use,) = stage.flows[None].uses
            return _operator(self._config, operator, use.to.sink if isinstance(use.to, ToSink) else "")
        described = _operator(self._config, operator)
        if len(stage.takes) == 1:
            return described | {"key": _key(stage.keys[0])}
        inputs = [
            {"input": number, "record": record.__name__, "key": _key(key) or "broadcast"}
            for number, (record, key) in enumerate(zip(stage.takes, stage.keys, strict=True), start=1)
        ]
        return described | {"key": _key(stage.keys[0]), "inputs": inputs}

    def _flow(self, flow: Flow, operators: list[dict[str, Any]], places: dict[int, int]) -> list[dict[str, Any]]:
        return [{"edge": use.edge, **self._end(use.to, operators, places)} for use in flow.uses]

    def _end(
        self, to: ToStage | ToSink | Through, operators: list[dict[str, Any]], places: dict[int, int]
    ) -> dict[str, Any]:
        if isinstance(to, ToStage):
            end = {"stage": self._numbers[to.stage], "name": to.stage, "key": _key(to.key)}
            return end | {"input": to.number + 1} if len(self._plan.stage(to.stage).takes) > 1 else end
        if isinstance(to, ToSink):
            sink = self._plan.sinks[to.sink]
            names = _names(sink.record, sink.names)
            operators.append({"operator": to.sink, "kind": "sink", **_bound(self._config, to.sink), **names})
            return {"operator": len(operators) - 1}
        if id(to.transform) not in places:  # a transform after several uses that meet appears once
            places[id(to.transform)] = len(operators)
            operators.append(_operator(self._config, to.transform) | {"changes": str(to.flow.changes)})
        return {"operator": places[id(to.transform)], "flow": self._flow(to.flow, operators, places)}


def _key(key: KeyBy | None) -> list[str]:
    return [] if key is None else list(key.fields) or [str(key)]


def _operator(config: JobConfig, operator: Any, *more: Any) -> dict[str, Any]:
    kind = {"operator": operator.name, "kind": kind_of(operator)}
    return {**kind, **_DETAILS[type(operator)](config, operator, *more)}


def kind_of(operator: object) -> str:
    """Return the kind of an operator, in the terms of the documentation."""
    if isinstance(operator, Process) and isinstance(operator.function, OperatorFunction):
        return operator.function.KIND
    return _KINDS[type(operator)]


def _transform(
    _: JobConfig, transform: Map | Filter | FlatMap | DropUpdateBefore | Additions | AssignEventTime | Union
) -> dict[str, Any]:
    record = getattr(transform, "record", None)
    return {} if record is None else {"record": record.__name__}


def _source(config: JobConfig, source: SourceNode) -> dict[str, Any]:
    bound = config.sources[source.name]
    return {
        "record": source.record.__name__,
        "fields": list(source.record.__struct_fields__),
        **_names(source.stored.record, source.stored.names),
        "event_time": source.event_time,
        "order_by": list(source.order_by or bound.kind.places),
        "row_kind": source.row_kind,
        **_kinds(source),
        "out_of_orderness": format_duration(source.out_of_orderness),
        "reads": bound.kind.reads(bound),
        "limits": {"files": bound.max_files_per_batch, "rows": bound.max_rows_per_batch},
        "on_bad_file": bound.on_bad_file,
        "on_bad_row": bound.on_bad_row,
        **({} if source.transform is None else {"spark_transform": _spark_transform(source.transform, bound)}),
    }


def _kinds(source: SourceNode) -> dict[str, Any]:
    """Return what the values of the row kinds' column stand for, where they are not the symbols themselves."""
    return {} if source.kinds == SYMBOLS else {"row_kinds": {value: kind.symbol for value, kind in source.kinds}}


def _names(record: type[msgspec.Struct], names: Names) -> dict[str, Any]:
    """Return the names of columns that are not those of their fields; nothing without such ones."""
    other = {column.name: column.stored for column in columns_of(record, names) if column.stored != column.name}
    return {"names": other} if other else {}


def _spark_transform(transform: SparkTransform, bound: SourceConfig) -> dict[str, Any]:
    """Return Spark's transform on the rows of a source, before they become records of its `record`."""
    return {
        "takes": transform.takes.__name__,
        "by": transform.name if transform.query is None else " ".join(transform.query.split()),
        "tables": {name: bound.tables[name] for name in transform.tables} or None,
    }


def _wait(config: JobConfig, wait: AsyncWait) -> dict[str, Any]:
    override = config.async_io.get(wait.name)
    capacity = (override.capacity if override else None) or wait.capacity
    timeout = (override.timeout if override else None) or wait.timeout
    park_after = override.park_after if override and override.park_after is not None else wait.park_after
    service = config.services.get(wait.service) if wait.service else None
    return {
        "function": type(wait.function).__name__,
        "key": _key(wait.key),
        "record": output_type(wait.function).__name__,
        "mode": wait.mode.value,
        "capacity": capacity,
        "timeout": "none" if timeout is None else format_duration(timeout),
        "retry": _policy(wait.retry),
        "park_after": None if park_after is None else format_duration(park_after),
        "recovery": wait.recovery.value,
        "on_failure": wait.on_failure.value,
        **{name: _policy(policy) for name in ("breaker", "cache", "batch") if (policy := getattr(wait, name))},
        "service": wait.service,
        "limits": limits_of(service, capacity, timeout) if service and _is_limited(service) else None,
        "capacity_for_retries": _measured(config, wait, capacity),
    }


def limits_of(service: ServiceConfig, capacity: int, timeout: timedelta | None) -> dict[str, Any]:
    """Return the limits of a service, with a warning if elements would time out while they wait for their turn."""
    limits = {"rate": service.rate, "concurrency": service.concurrency}
    longest = capacity / service.rate if service.rate else 0.0
    if timeout is None or longest <= timeout.total_seconds():
        return limits
    warning = (
        f"a call may wait {longest:g} s for its turn, longer than the timeout: lower capacity, or raise the timeout"
    )
    return {**limits, "beware": warning}


def _is_limited(service: ServiceConfig) -> bool:
    return service.rate is not None or service.concurrency is not None


def _measured(config: JobConfig, wait: AsyncWait, capacity: int) -> str | None:
    """Return FLIP-232's estimate of the capacity, from the rates of the last micro-batch, as text."""
    measured = last_measured(config).get(wait.name)
    estimate = capacity_for_retries(measured) if measured else None
    if estimate is None:
        return None
    rates = f"{estimate['input_rate']:g} records/s x {estimate['retry_rate']:.2%} retried x {estimate['avg_retry_seconds']:g} s"
    enough = "" if estimate["capacity"] < capacity / 2 else f": more than half of capacity {capacity}, raise it"
    return f"{estimate['capacity']:g} of {capacity} ({rates}, as measured last){enough}"


def _process(config: JobConfig, process: Process) -> dict[str, Any]:
    return {
        "function": type(process.function).__name__,
        "key": [process.key],
        "record": output_type(process.function).__name__,
        **_described(process),
        "states": [_state(state) for state in declared_states(process.function).values()],
        "side_outputs": [
            {"name": side.name, "record": side.record.__name__, "sink": side.sink}
            | (_bound(config, side.sink) if side.sink else {})
            for side in process.side_outputs
        ],
        "async_state": state_options(config.async_state(process.name)),
    }


def _described(process: Process) -> dict[str, Any]:
    """Return the description of an operator of `headrace.operators` and its state's lifetime; empty for other functions."""
    function = process.function
    described = function.described() if isinstance(function, OperatorFunction) else {}
    return {name: _plain(value) for name, value in described.items()}


def state_options(options: AsyncStateOptions) -> dict[str, Any]:
    """Return all options, by their names in the job's file."""
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
    """Return all settings of a TTL in one line."""
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


def _materialize(config: JobConfig, operator: UpsertMaterialize, sink: str) -> dict[str, Any]:
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
        # A merge sink takes the net change, whatever the pipeline says.
        "emit": (Emit.NET_CHANGE if config.sinks[sink].mode == "merge" else operator.emit).value,
    }


def _lag(config: JobConfig, operator: LagNode, _: str) -> dict[str, Any]:
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
        return "not needed: the upsert key is the primary key, so the last change of a key counts; -U and -D delete it"
    if replace(operator, force=False).is_needed:
        return "kept"
    return "kept because of force=True: the upsert key is the primary key, so none is needed"


def _bound(config: JobConfig, name: str) -> dict[str, Any]:
    return {"writes": config.sinks[name].path, "mode": config.sinks[name].mode}


_KINDS = {
    SourceNode: "source",
    AsyncWait: "async wait",
    Process: "keyed process",
    UpsertMaterialize: "upsert materializer",
    LagNode: "lag",
    Map: "map",
    Filter: "filter",
    FlatMap: "flat map",
    DropUpdateBefore: "drop update before",
    Additions: "additions",
    AssignEventTime: "event time",
    Union: "union",
    SinkNode: "sink",
}
_DETAILS: dict[type, Any] = {
    SourceNode: _source,
    AsyncWait: _wait,
    Process: _process,
    UpsertMaterialize: _materialize,
    LagNode: _lag,
    **dict.fromkeys((Map, Filter, FlatMap, DropUpdateBefore, Additions, AssignEventTime, Union), _transform),
}


def _policy(policy: Any) -> str:
    """Return a frozen dataclass of options in one line: `ExponentialBackoff(max_retries=8, ...)`."""
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
