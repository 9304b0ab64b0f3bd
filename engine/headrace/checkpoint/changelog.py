"""From changes of state to rows of the state tables, and back into a backend."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, repeat
from typing import Any, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import RowKind
from headrace.async_io.stored_element import StoredElement
from headrace.checkpoint._delta import Options, open_table, read
from headrace.checkpoint.async_requests import columns_of as request_columns
from headrace.checkpoint.buffered_requests import StoredRequest, columns_of
from headrace.checkpoint.expired_rows import removed_if_dead
from headrace.checkpoint.tables import (
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    STATE_TABLES,
    TIMERS,
)
from headrace.materializer.histories import HistoryChange
from headrace.materializer.stored_history import HistoryRow, history_entry, stored_history
from headrace.state.backend import StateBackend, Write
from headrace.state.cleanup_timer import CLEANUP_DOMAINS, known_timers
from headrace.state.entry import EntryChange, entry_group, stored_value, value_entry
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.timer_service import Timer, TimerChange, timer_entry
from headrace.state.ttl import Age

_MILLISECONDS = pa.timestamp("ms", tz="UTC")
_CHUNK = 20_000


class KeyedState(Protocol):
    """What rows have to say of a state."""

    name: str

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """When an entry dies (ms); None if it doesn't."""
        ...


class Changelog:
    """Turns one operator's changes into rows that carry its name and the checkpoint's id."""

    def __init__(self, operator: str, checkpoint_id: int, max_parallelism: int) -> None:
        """All rows will carry these."""
        self._operator = operator
        self._checkpoint_id = checkpoint_id
        self._max_parallelism = max_parallelism

    def values(self, store: KeyedState, changes: Sequence[EntryChange]) -> pa.Table:
        """Rows of `keyed_state`."""
        return self._table(
            KEYED_STATE,
            [change.key_json for change in changes],
            [change.raw is None for change in changes],
            state=[store.name] * len(changes),
            namespace=[change.namespace or None for change in changes],
            user_key=[None if change.user_key is None else change.user_key.decode() for change in changes],
            value=[None if change.raw is None else change.raw.decode() for change in changes],
            last_access=[None if change.raw is None else change.stamp for change in changes],
            expires_at=[
                None if change.raw is None else store.expires_at(change.stamp, change.own_ttl) for change in changes
            ],
            ttl_ms=[change.own_ttl or None for change in changes],
        )

    def timers(self, changes: Sequence[TimerChange]) -> pa.Table:
        """Rows of `timers`."""
        return self._table(
            TIMERS,
            [change.timer.key_json for change in changes],
            [not change.registered for change in changes],
            domain=[str(change.timer.domain) for change in changes],
            timestamp=[change.timer.timestamp for change in changes],
            namespace=[change.timer.namespace or None for change in changes],
        )

    def history(self, changes: Sequence[HistoryChange], upsert_key: Callable[[bytes], str | None]) -> pa.Table:
        """Rows of `materializer_history`."""
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
        """Rows of `buffered_requests`: what was resumed is removed, what is held now is added."""
        changes = [*resumed, *held]
        return self._table(
            BUFFERED_REQUESTS,
            [request.key_json for _, request in changes],
            [number < len(resumed) for number in range(len(changes))],
            **columns_of(changes),
        )

    def requests(self, rows: Sequence[StoredElement], deleted: Sequence[bool]) -> pa.Table:
        """Rows of `async_requests`."""
        keys = [row.key.encode() for row in rows]
        return self._table(ASYNC_REQUESTS, keys, deleted, **request_columns(rows, deleted))

    def quarantine(self, rows: Sequence[tuple[str, str, str, str | None, str]]) -> pa.Table:
        """Rows of `quarantine` from (source, position, key, raw, error)."""
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
            "key": [key.decode() for key in keys],
            "checkpoint_id": [self._checkpoint_id] * count,
            "deleted": deleted,
        }
        schema = STATE_TABLES[name].schema
        arrays = [_array(columns.get(field.name) or [None] * count, field.type) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(kind)
    return pa.array(values, kind)


def rebuild(
    backend: StateBackend,
    job_folder: str,
    versions: dict[str, int],
    operator: str,
    key_groups: KeyGroupRange,
    *,
    ages: Mapping[str, Age] | None = None,
    storage: Options = None,
) -> int:
    """Load an operator's state for one key-group range from the Delta tables into an empty backend.

    Reads only files and rows of the range, each change in checkpoint order, so the last one wins. Entries that are dead by the
    `ages` of their states are not loaded.
    Returns the number of rows read.
    """
    predicate = f"operator = '{operator}' AND key_group >= {key_groups.first} AND key_group <= {key_groups.last}"
    rows = 0
    for name, stored in STORED.items():
        table = open_table(f"{job_folder}/{name}", version=versions[name], storage=storage)
        found = read(table, STATE_TABLES[name].schema, columns=stored.columns, predicate=predicate)
        rows += found.num_rows
        writes = stored.entries(removed_if_dead(found, ages) if ages and name == KEYED_STATE else found)
        while chunk := list(islice(writes, _CHUNK)):
            backend.write_batch(chunk)
    return rows


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """How a state table holds a backend's entries: the columns needed, and what their rows say."""

    columns: tuple[str, ...]
    writes: Callable[[pa.Table], Iterator[Write]]

    def entries(self, rows: pa.Table) -> Iterator[Write]:
        """Rows, in whatever order, as writes in checkpoint order: the last one for an entry is its state.

        An entry with several rows (a history) is complete only if all rows of its key are there.
        """
        ordered = rows.take(pc.sort_indices(rows, [("checkpoint_id", "ascending")]))
        return self.writes(_times_as_integers(ordered))


def _times_as_integers(table: pa.Table) -> pa.Table:
    # Arrow makes a datetime object of each timestamp, a microsecond a piece: integers are cheap.
    for position, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            column = table[field.name].cast(_MILLISECONDS).cast(pa.int64())
            table = table.set_column(position, field.name, column)
    return table


def _value_writes(table: pa.Table) -> Iterator[Write]:
    for batch in table.to_batches(_CHUNK):
        states, keys, values, stamps, gone = (batch[name].to_pylist() for name in _EVERY_VALUE)
        entries = _entries_of(batch, states, keys)
        lives = batch["ttl_ms"].to_pylist() if batch["ttl_ms"].null_count < batch.num_rows else repeat(None)
        for entry, value, stamp, own_ttl, is_gone in zip(entries, values, stamps, lives, gone, strict=False):
            yield entry, None if is_gone else stored_value(stamp or 0, value.encode(), own_ttl or 0)


def _entries_of(batch: pa.RecordBatch, states: Sequence[str], keys: Sequence[str]) -> Iterator[bytes]:
    if batch["user_key"].null_count == batch["namespace"].null_count == batch.num_rows:  # value state alone
        prefixes = {state: value_entry(state, b"") for state in set(states)}
        yield from (prefixes[state] + key.encode() for state, key in zip(states, keys, strict=True))
        return
    columns = (batch[name].to_pylist() for name in ("namespace", "user_key"))
    for state, key, namespace, user_key in zip(states, keys, *columns, strict=True):
        if user_key is None:
            yield value_entry(state, key.encode(), namespace or "")
        else:
            yield entry_group(state, key.encode(), namespace or "") + user_key.encode()


def _timer_writes(table: pa.Table) -> Iterator[Write]:
    cleanups: dict[Timer, bool] = {}
    for batch in table.to_batches(_CHUNK):
        columns = [batch[name].to_pylist() for name in _TIMER_COLUMNS[1:]]
        for key, domain, time, namespace, gone in zip(*columns, strict=True):
            timer = Timer(time, key.encode(), domain, namespace or "")
            if domain in CLEANUP_DOMAINS:
                cleanups[timer] = not gone
            yield timer_entry(timer), None if gone else b""
    yield from known_timers(timer for timer, is_set in cleanups.items() if is_set)


def _history_writes(table: pa.Table) -> Iterator[Write]:
    histories: dict[str, dict[int, HistoryRow]] = {}
    columns = [table[name].to_pylist() for name in _HISTORY_COLUMNS[1:]]
    for key, number, row, kind, inserted_at, gone in zip(*columns, strict=True):
        history = histories.setdefault(key, {})
        if gone:
            history.pop(number, None)
        else:
            history[number] = HistoryRow(number, msgspec.Raw(row.encode()), RowKind.parse(kind), inserted_at)
    for key, rows in histories.items():
        if rows:
            yield history_entry(key.encode()), stored_history([rows[number] for number in sorted(rows)])


_EVERY_VALUE = ("state", "key", "value", "last_access", "deleted")
_VALUE_COLUMNS = ("checkpoint_id", *_EVERY_VALUE, "namespace", "user_key", "ttl_ms")
_TIMER_COLUMNS = ("checkpoint_id", "key", "domain", "timestamp", "namespace", "deleted")
_HISTORY_COLUMNS = ("checkpoint_id", "key", "sequence_number", "row", "row_kind", "inserted_at", "deleted")

STORED: dict[str, StoredEntries] = {
    KEYED_STATE: StoredEntries(_VALUE_COLUMNS, _value_writes),
    TIMERS: StoredEntries(_TIMER_COLUMNS, _timer_writes),
    MATERIALIZER_HISTORY: StoredEntries(_HISTORY_COLUMNS, _history_writes),
}
"""The tables whose rows are a backend's entries."""
