"""Operators of a changelog: they keep a history of each key's rows, and reconcile rows that arrive out of order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec

from headrace.api.changelog_inference import check_normalized
from headrace.api.functions import KeyedProcessFunction
from headrace.api.graph import Emit, Keep, LagNode, OnConflict, UpsertMaterialize
from headrace.api.ttl import AnyTtl, StateTtl, ttl_of
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
    return UpsertMaterialize(
        name, primary_key, upsert_key, strategy, emit, ttl=ttl, on_conflict=on_conflict, force=force
    )


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
