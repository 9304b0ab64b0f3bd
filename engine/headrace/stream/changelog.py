"""Operators of a changelog: they keep a history of each key's rows, and reconcile rows that arrive out of order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import msgspec

from headrace.api.changelog import UPSERTS_OF_UNKNOWN_KEY
from headrace.api.changelog_inference import check_normalized
from headrace.api.column_reads import Declared, declared_reads
from headrace.api.functions import KeyedBroadcastFunction, KeyedFunction, KeyedProcessFunction
from headrace.api.graph import Emit, Filter, Keep, LagNode, OnConflict, OperatorFunction, Process, UpsertMaterialize
from headrace.api.options import ChangeRules, History
from headrace.api.ttl import AnyTtl, Lifetime, StateTtl, span_of, ttl_of
from headrace.api.types import check_field, check_key_field, check_record
from headrace.options import Strategy
from headrace.stream.base import StreamBase


def materializer_of(
    stream: StreamBase[Any],
    name: str,
    *,
    primary_key: tuple[str, ...],
    upsert_key: tuple[str, ...] | None,
    strategy: Strategy,
    emit: Emit = Emit.NET_CHANGE,
    ttl: StateTtl | None,
    on_conflict: OnConflict = OnConflict.KEEP_HISTORY,
    force: bool,
) -> UpsertMaterialize:
    """Return the materializer of `Stream.upsert_materialize`, and check its fields."""
    if not primary_key:
        msg = f"upsert_materialize '{name}' needs a primary key"
        raise ValueError(msg)
    for column in (*primary_key, *(upsert_key or ())):
        check_field(stream.record_type(), column)
    _refuse_panes(stream)
    return UpsertMaterialize(
        name, primary_key, upsert_key, strategy, emit, ttl=ttl, on_conflict=on_conflict, force=force
    )


def _refuse_panes(stream: StreamBase[Any]) -> None:
    """Raise `ValueError` behind windows that give their records in parts: a table with a key would keep the last part of each window."""
    node = stream._node
    while isinstance(node.operator, Filter):
        node = node.inputs[0].node
    operator = node.operator
    if (
        isinstance(operator, Process)
        and isinstance(operator.function, OperatorFunction)
        and operator.function.emits_panes
    ):
        msg = (
            f"'{operator.name}' has purging=True, so a window's records come in several results, and a table with a key would keep the last of them: "
            "append the results to a sink, add them up with aggregate, or leave purging out"
        )
        raise ValueError(msg)


def has_primary_key(stream: StreamBase[Any], fields: tuple[str, ...]) -> bool:
    """Return whether the operator before gives a table with this primary key."""
    operator = stream._node.operator
    return isinstance(operator, UpsertMaterialize) and {*operator.primary_key} == {*fields}


def lacks_upsert_key(stream: StreamBase[Any]) -> bool:
    """Return whether the stream has upserts whose key nothing declares, and only the code can know.

    Behind an operator of the library nothing identifies the rows: its results lack the key.
    """
    operator = stream._node.operator
    is_own = not (isinstance(operator, Process) and isinstance(operator.function, OperatorFunction))
    return is_own and stream._changes.mode == UPSERTS_OF_UNKNOWN_KEY


def keeper_of(
    stream: StreamBase[Any],
    name: str,
    keep: Keep,
    *,
    key: tuple[str, ...],
    upsert_key: tuple[str, ...] | None,
    strategy: Strategy,
    ttl: StateTtl | None,
) -> UpsertMaterialize:
    """Return the materializer that keeps the first or last row of each key."""
    materializer = materializer_of(
        stream, name, primary_key=key, upsert_key=upsert_key, strategy=strategy, ttl=ttl, force=True
    )
    return replace(materializer, keep=keep)


def lag_of(
    stream: StreamBase[Any],
    name: str,
    function: Callable[[Any, Any], Any],
    *,
    record: type[msgspec.Struct],
    partition_by: tuple[str, ...],
    primary_key: tuple[str, ...],
    upsert_key: tuple[str, ...] | None,
    offset: int,
    strategy: Strategy,
    ttl: StateTtl | None,
    reads: Declared | None,
) -> LagNode:
    """Return the materializer of `Stream.lag`, and check its fields."""
    if offset < 1 or not primary_key or not partition_by:
        msg = f"lag '{name}' needs partition_by, a primary key, and an offset of at least 1, not {offset}"
        raise ValueError(msg)
    for column in (*partition_by, *(upsert_key or ())):
        check_field(stream.record_type(), column)
    check_record(f"lag '{name}'", record)
    for column in primary_key:
        check_field(record, column)
    return LagNode(
        name,
        primary_key,
        upsert_key,
        strategy,
        Emit.NET_CHANGE,
        ttl=ttl,
        force=True,
        partition_by=partition_by,
        record=record,
        function=function,
        offset=offset,
        reads=declared_reads(f"lag '{name}'", reads, [stream.record_type()], record),
    )


def normalization(
    stream: StreamBase[Any], name: str, *, key: tuple[str, ...], state_ttl: AnyTtl, drops_unmatched: bool
) -> tuple[tuple[str, ...], KeyedProcessFunction[Any, Any]]:
    """Return the key and the function of `Stream.normalize`."""
    from headrace.operators._normalize import normalize

    taker, changes = f"normalize '{name}'", stream._changes
    fields = key or changes.mode.key or (changes.unique[0] if len(changes.unique) == 1 else ())
    check_normalized(taker, fields, changes)
    for column in fields:
        check_key_field(stream.record_type(), column)
    try:
        ttl = ttl_of(state_ttl, kept="the last row of each key", after="a key is new again")
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None
    return fields, normalize(stream.record_type(), ttl=ttl, drops_unmatched=drops_unmatched)


def applied_changes(
    stream: StreamBase[Any],
    name: str,
    record: type[Any] | None,
    *,
    key: tuple[str, ...],
    sequence_by: str | tuple[str, ...],
    deletes: Callable[[Any], object] | tuple[str, Any] | None,
    truncates: Callable[[Any], object] | tuple[str, Any] | None,
    history: History,
    track: tuple[str, ...],
    ignore_nulls: bool,
    tombstones: timedelta | Lifetime | None,
    corrections: timedelta | Lifetime | None,
) -> tuple[KeyedFunction, Callable[[Any], object] | None]:
    """Return the function of `Stream.apply_changes`, and the one that says whether an event truncates; None if none does."""
    from headrace.operators._apply_changes import apply_changes

    taker = f"apply_changes '{name}'"
    takes = stream.record_type()
    sequence = (sequence_by,) if isinstance(sequence_by, str) else tuple(sequence_by)
    if record is not None:
        check_record(taker, record)
    try:
        _check_fields_of_changes(takes, key, sequence, track)
        empties = _truncates(stream, truncates)
        rules = ChangeRules(
            key=key,
            sequence_by=sequence,
            deletes=deletes,
            truncates=empties is not None,
            history=history,
            track=track,
            ignore_nulls=ignore_nulls,
            tombstones=None,
            corrections=None,
        )
        rules = replace(rules, tombstones=_tombstones(stream, rules, tombstones))
        rules = replace(rules, corrections=_corrections(rules, corrections))
        return apply_changes(takes, record or takes, rules), empties
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def _check_fields_of_changes(
    takes: type[Any], key: tuple[str, ...], sequence: tuple[str, ...], track: tuple[str, ...]
) -> None:
    """Check the fields of the key and the sequence. Raises `ValueError` without one, and as `check_key_field`; `TypeError` for a text."""
    given: dict[str, object] = {"key": key, "track": track}
    for argument, names in given.items():
        if isinstance(names, str):
            msg = f"{argument} takes several names, as in {argument}=('{names}',), not a text"
            raise TypeError(msg)
    if not key or not sequence:
        msg = 'it needs the fields of the key, and those that order the events of a key, as in key=("id",), sequence_by="lsn"'
        raise ValueError(msg)
    for column in key:
        check_key_field(takes, column)
    for column in sequence:
        check_field(takes, column)


def _tombstones(stream: StreamBase[Any], rules: ChangeRules, tombstones: timedelta | Lifetime | None) -> int | None:
    """Return how long deleted keys are known (ms). Raises `ValueError` and `TypeError` as `Stream.apply_changes` does."""
    has_kinds = not stream._changes.mode.is_insert
    if rules.deletes is not None and has_kinds:
        msg = f"the rows have kinds, and those of kind -D delete: leave deletes= out, or row_kind of the source ({stream._changes})"
        raise ValueError(msg)
    if rules.deletes is None and not has_kinds and not (rules.truncates and rules.keeps_events):
        if tombstones is not None:
            msg = "no event deletes, so tombstones= has no effect: say which do, as in deletes=lambda event: event.op == 'd'"
            raise ValueError(msg)
        return None
    return span_of(
        tombstones, "tombstones", kept="deleted keys", after="an event from before a deletion makes a new row"
    )


def _truncates(
    stream: StreamBase[Any], truncates: Callable[[Any], object] | tuple[str, Any] | None
) -> Callable[[Any], object] | None:
    """Return the function that says whether an event truncates. Raises `ValueError` and `TypeError` as `Stream.apply_changes` does."""
    from headrace.operators._change_events import event_predicate

    if truncates is not None and not stream._changes.mode.is_insert:
        msg = f"the rows have kinds, and none of them truncates: leave truncates= out, or row_kind of the source ({stream._changes})"
        raise ValueError(msg)
    return event_predicate(stream.record_type(), truncates, "truncates")


def _corrections(rules: ChangeRules, corrections: timedelta | Lifetime | None) -> int | None:
    """Return how long an event can be put before others (ms). Raises `ValueError` and `TypeError` as `Stream.apply_changes` does."""
    if rules.track and not rules.has_versions:
        raise ValueError(
            "track= says what opens a version, and History.SCD1 has none: leave it out, or give History.SCD2"
        )
    if rules.keeps_events:
        return span_of(
            corrections, "corrections", kept="all events of each key", after="nothing can come before an event"
        )
    if corrections is not None:
        raise ValueError("corrections= has no effect: the current row needs the last event alone, whatever comes late")
    return None


def snapshot_functions(
    stream: StreamBase[Any], name: str, *, key: tuple[str, ...], time: str, every: timedelta
) -> tuple[KeyedProcessFunction[Any, Any], KeyedBroadcastFunction[Any, Any, Any]]:
    """Return the function that announces snapshots, and that of `Stream.snapshot_changes`."""
    from headrace.operators._snapshot_changes import announced_snapshots, snapshot_changes

    taker, takes = f"snapshot_changes '{name}'", stream.record_type()
    try:
        _check_fields_of_changes(takes, key, (time,), ())
        _check_inserts(stream)
        return announced_snapshots(takes), snapshot_changes(takes, time, every)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{taker}: {error}") from None


def _check_inserts(stream: StreamBase[Any]) -> None:
    if not stream._changes.mode.is_insert:
        msg = f"a snapshot has rows alone, and the stream is {stream._changes}: leave row_kind of the source out"
        raise ValueError(msg)
