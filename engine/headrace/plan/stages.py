"""From a pipeline to stages: what runs in one Spark job.

The first stage reads the source and makes the async calls that follow it; each keyed operator is a
stage of its own, behind a shuffle by key group. A keyed-ordered async wait is a keyed operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import get_args

import msgspec
import pyarrow as pa

from headrace.api import AsyncWait, Lag, Pipeline, Process, SinkNode, SourceNode, UpsertMaterialize
from headrace.api._pipeline import output_type
from headrace.errors import ConfigError
from headrace.plan.columns import columns_of

Keyed = Process | UpsertMaterialize | AsyncWait


@dataclass(frozen=True, slots=True)
class Ingest:
    """Read the source, make the calls; records leave as `record`, keyed for the next stage."""

    source: SourceNode
    waits: tuple[AsyncWait, ...]
    record: type[msgspec.Struct]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class KeyedStage:
    """One keyed operator. `takes` is its input, `record` its output; no `key` means a sink follows."""

    operator: Keyed
    takes: type[msgspec.Struct]
    record: type[msgspec.Struct]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline's stages, its main sink, and the primary key that a merge into it goes by."""

    name: str
    ingest: Ingest
    keyed: tuple[KeyedStage, ...]
    sink: SinkNode
    sink_record: type[msgspec.Struct]
    primary_key: tuple[str, ...]

    @property
    def sources(self) -> tuple[SourceNode, ...]:
        """All sources, as declared."""
        return (self.ingest.source,)

    @property
    def groups(self) -> tuple[tuple[str, ...], ...]:
        """Names of the sources that meet; each group has a line of ordinals of its own."""
        return ((self.ingest.source.name,),)


def plan_stages(pipeline: Pipeline) -> Plan:
    """Cut a pipeline into stages.

    Raises `ConfigError` for a graph that cannot be run: no source or sink, no keyed operator, an async
    wait after one, two outputs into one sink, or an event time that may be missing.
    """
    operators = pipeline.operators
    name = pipeline.name
    if not operators or not isinstance(operators[0], SourceNode) or not isinstance(operators[-1], SinkNode):
        msg = f"pipeline '{name}' must start with source() and end with sink()"
        raise ConfigError(msg)
    waits = tuple(operator for operator in operators if isinstance(operator, AsyncWait) and operator.key is None)
    keyed: list[Keyed] = [
        operator
        for operator in operators
        if isinstance(operator, Process | UpsertMaterialize) or (isinstance(operator, AsyncWait) and operator.key)
    ]
    if tuple(operators[1 : 1 + len(waits)]) != waits:
        msg = f"pipeline '{name}': async_wait() must come before the first key_by()"
        raise ConfigError(msg)
    if not keyed:
        msg = f"pipeline '{name}' has no keyed operator: add process() or upsert_materialize()"
        raise ConfigError(msg)
    _check_event_time(name, operators[0])
    _check_sinks(name, keyed, operators[-1])
    return _plan(name, operators[0], waits, keyed, operators[-1])


def _check_event_time(name: str, source: SourceNode) -> None:
    column = next(column for column in columns_of(source.record) if column.name == source.event_time)
    if column.nullable or column.type != pa.int64():
        msg = (
            f"pipeline '{name}': event_time '{source.event_time}' of {source.record.__name__} must be a "
            "Timestamp, and not optional"
        )
        raise ConfigError(msg)


def _check_sinks(name: str, keyed: list[Keyed], last: SinkNode) -> None:
    taken = [last.name]
    taken += [side.sink for operator in keyed if isinstance(operator, Process) for side in operator.side_outputs]
    twice = {sink for sink in taken if taken.count(sink) > 1}
    if twice:
        msg = f"pipeline '{name}': each output needs a sink of its own, but several go to {', '.join(sorted(twice))}"
        raise ConfigError(msg)


def _plan(name: str, source: SourceNode, waits: tuple[AsyncWait, ...], keyed: list[Keyed], sink: SinkNode) -> Plan:
    record = output_type(waits[-1].function) if waits else source.record
    ingest = Ingest(source, waits, record, key_fields(keyed[0]))
    stages: list[KeyedStage] = []
    for operator, following in zip(keyed, [*keyed[1:], None], strict=True):
        if isinstance(operator, UpsertMaterialize) and following is not None:
            msg = f"pipeline '{name}': upsert_materialize() must be followed by sink()"
            raise ConfigError(msg)
        takes = record
        if isinstance(operator, Process | AsyncWait):
            record = output_type(operator.function)
        elif isinstance(operator, Lag):
            record = operator.record
        stages.append(KeyedStage(operator, takes, record, key_fields(following) if following else ()))
    last = keyed[-1]
    primary_key = last.primary_key if isinstance(last, UpsertMaterialize) else ()
    return Plan(name, ingest, tuple(stages), sink, record, primary_key)


def key_fields(operator: Keyed) -> tuple[str, ...]:
    """The fields that key an operator's input."""
    if isinstance(operator, UpsertMaterialize):
        return operator.keyed_by
    assert operator.key is not None  # noqa: S101 - one without a key is no keyed operator
    return (operator.key,)


def stage_key(record: msgspec.Struct, fields: tuple[str, ...]) -> object:
    """A record's key: the field, or a tuple of several; None when any of them is null.

    It is what the key is after the record was stored and read again, so 5 in a field of type float is 5.0. And
    -0.0 is 0.0, as it is to SQL: a table has one row for both.
    """
    floats = _floats(type(record), fields)
    values = [getattr(record, field) for field in fields]
    if floats:
        values = [
            float(value) + 0.0 if name in floats and value is not None else value
            for name, value in zip(fields, values, strict=True)
        ]
    if len(values) == 1:
        return values[0]
    return None if None in values else tuple(values)


@cache
def _floats(record: type[msgspec.Struct], fields: tuple[str, ...]) -> frozenset[str]:
    """Those of the fields that hold floats alone."""
    types = {field.name: [*_parts(field.type)] for field in msgspec.structs.fields(record)}
    return frozenset(name for name in fields if float in types[name] and int not in types[name])


def _parts(annotation: object) -> Iterator[object]:
    """An annotation, and what it is made of."""
    yield annotation
    for part in get_args(annotation):
        yield from _parts(part)


def waits_of(plan: Plan) -> list[AsyncWait]:
    """All async waits of a plan, in the order in which records pass them."""
    return [*plan.ingest.waits, *(each.operator for each in plan.keyed if isinstance(each.operator, AsyncWait))]
