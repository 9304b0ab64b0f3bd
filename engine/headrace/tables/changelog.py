"""Conversion of state changes to rows of the state tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import pyarrow as pa

from headrace.api import RowKind
from headrace.async_io.kept_answers import KeptAnswer
from headrace.async_io.stored_element import StoredElement
from headrace.materializer.histories import HistoryChange
from headrace.state.entry import EntryChange
from headrace.state.key_groups import key_group
from headrace.state.timer_service import TimerChange
from headrace.tables.answers import answer_columns
from headrace.tables.async_requests import waiting_element_columns
from headrace.tables.buffered_requests import StoredRequest, buffered_request_columns
from headrace.tables.files import utf8
from headrace.tables.schemas import (
    ALL_TABLES,
    ANSWERS,
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    TIMERS,
)

_MILLISECONDS = pa.timestamp("ms", tz="UTC")


class KeyedState(Protocol):
    """Facts about a state that its rows contain."""

    name: str

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return the time at which an entry expires (ms); None if it never does."""
        ...


class Changelog:
    """Converter of one operator's changes to rows with the operator's name and the checkpoint's id."""

    def __init__(self, operator: str, checkpoint_id: int, max_parallelism: int) -> None:
        """Keep the values that all rows get."""
        self._operator = operator
        self._checkpoint_id = checkpoint_id
        self._max_parallelism = max_parallelism

    def values(self, store: KeyedState, changes: Sequence[EntryChange], *, without_values: bool = False) -> pa.Table:
        """Return rows of `keyed_state`. `without_values` leaves the column `value` null, for `stage_state` to fill."""
        return self._table(
            KEYED_STATE,
            [change.key_json for change in changes],
            [change.raw is None for change in changes],
            state=[store.name] * len(changes),
            namespace=[change.namespace or None for change in changes],
            user_key=[None if change.user_key is None else change.user_key.decode() for change in changes],
            value=[] if without_values else utf8([change.raw for change in changes]),
            last_access=[None if change.raw is None else change.stamp for change in changes],
            expires_at=[
                None if change.raw is None else store.expires_at(change.stamp, change.own_ttl) for change in changes
            ],
            ttl_ms=[change.own_ttl or None for change in changes],
        )

    def timers(self, changes: Sequence[TimerChange]) -> pa.Table:
        """Return rows of `timers`."""
        return self._table(
            TIMERS,
            [change.timer.key_json for change in changes],
            [not change.registered for change in changes],
            domain=[str(change.timer.domain) for change in changes],
            timestamp=[change.timer.timestamp for change in changes],
            namespace=[change.timer.namespace or None for change in changes],
        )

    def history(self, changes: Sequence[HistoryChange], upsert_key: Callable[[bytes], str | None]) -> pa.Table:
        """Return rows of `materializer_history`."""
        return self._table(
            MATERIALIZER_HISTORY,
            [change.key_json for change in changes],
            [change.row is None for change in changes],
            sequence_number=[change.sequence_number for change in changes],
            upsert_key=[None if change.row is None else upsert_key(change.row) for change in changes],
            row=[None if change.row is None else change.row.decode() for change in changes],
            row_kind=[None if change.row is None else RowKind(change.row_kind).symbol for change in changes],
            inserted_at=[None if change.row is None else change.inserted_at for change in changes],
        )

    def buffered(self, resumed: Sequence[StoredRequest], held: Sequence[StoredRequest]) -> pa.Table:
        """Return rows of `buffered_requests`: they remove resumed requests, and add the requests held now."""
        changes = [*resumed, *held]
        return self._table(
            BUFFERED_REQUESTS,
            [request.key_json for _, request in changes],
            [number < len(resumed) for number in range(len(changes))],
            **buffered_request_columns(changes),
        )

    def requests(self, rows: Sequence[StoredElement], deleted: Sequence[bool]) -> pa.Table:
        """Return rows of `async_requests`."""
        keys = [row.key.encode() for row in rows]
        return self._table(ASYNC_REQUESTS, keys, deleted, **waiting_element_columns(rows, deleted))

    def answers(self, rows: Sequence[KeptAnswer]) -> pa.Table:
        """Return rows of `answers`."""
        return self._table(ANSWERS, [row.key.encode() for row in rows], [False] * len(rows), **answer_columns(rows))

    def quarantine(self, rows: Sequence[tuple[str, str, str, str | None, str]]) -> pa.Table:
        """Return rows of `quarantine` from (source, position, key, raw, error)."""
        return self._table(
            QUARANTINE,
            [key.encode() for _, _, key, _, _ in rows],
            [False] * len(rows),
            source=[source for source, *_ in rows],
            position=[position for _, position, *_ in rows],
            raw=[raw for *_, raw, _ in rows],
            error=[error for *_, error in rows],
        )

    def _table(self, name: str, keys: Sequence[bytes], deleted: Sequence[bool], **columns: Sequence[Any]) -> pa.Table:
        count = len(keys)
        columns |= {
            "operator": [self._operator] * count,
            "key_group": [key_group(key, self._max_parallelism) for key in keys],
            "key": utf8(keys),
            "checkpoint_id": [self._checkpoint_id] * count,
            "deleted": deleted,
        }
        schema = ALL_TABLES[name].schema
        arrays = [_array(columns.get(field.name) or [None] * count, field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(kind)
    return pa.array(values, kind)
