"""Rows of the state tables as entries of a backend, of broadcast state too.

Broadcast state in its table: every task reads it, one task writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, repeat

import msgspec
import pyarrow as pa

from headrace.api.records import RowKind
from headrace.materializer.stored_history import HistoryRow, history_entry, stored_history
from headrace.state.backend import StateBackend, Write, entry_group, stored_value, value_entry
from headrace.state.broadcast import BROADCAST_KEY, BroadcastRow
from headrace.state.cleanup import CLEANUP_DOMAINS, known_timers
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.timers import Timer, timer_entry
from headrace.tables.expiry import RowExpiry, deleted_if_dead
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import in_order, last_rows
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY, STATE_TABLES, TIMERS
from headrace.tables.view import ViewOf, in_milliseconds

_CHUNK = 20_000
_EVERY_VALUE = ("state", "key", "value", "last_access", "deleted")
_VALUE_COLUMNS = ("checkpoint_id", *_EVERY_VALUE, "namespace", "user_key", "ttl_ms")
_TIMER_COLUMNS = ("checkpoint_id", "key", "domain", "timestamp", "namespace", "deleted")
_HISTORY_COLUMNS = ("checkpoint_id", "key", "sequence_number", "row", "row_kind", "inserted_at", "deleted")


def rebuild(
    backend: StateBackend,
    view_of: ViewOf,
    operator: str,
    key_groups: KeyGroupRange,
    *,
    expiries: Sequence[RowExpiry] = (),
) -> int:
    """Load an operator's state for one key-group range from the state tables into an empty backend.

    Reads only files and rows of the range, a part of its key groups at a time. Applies changes in checkpoint order, so the last
    one wins. Does not load entries that are dead by `expiries`. Returns the number of rows read.
    """
    rows = 0
    for name, stored in STORED.items():
        for part in view_of(name).of(operator).ranges(key_groups):
            changes = part.changes(stored.columns)
            rows += changes.num_rows
            if (
                name == KEYED_STATE
            ):  # a key that many micro-batches wrote has many rows: Arrow finds the last ones sooner
                changes = last_rows(deleted_if_dead(changes, expiries) if expiries else changes, STATE_TABLES[name])
            writes = stored.entries(changes)
            while chunk := list(islice(writes, _CHUNK)):
                backend.write_batch(chunk)
    return rows


@dataclass(frozen=True, slots=True)
class StoredEntries:
    """Form of a backend's entries in a state table: the columns needed, and the conversion of their rows to writes."""

    columns: tuple[str, ...]
    writes: Callable[[pa.Table], Iterator[Write]]

    def entries(self, rows: pa.Table) -> Iterator[Write]:
        """Yield rows, given in any order, as writes in checkpoint order: the last write of an entry is its state.

        An entry with several rows (a history) needs all rows of its key.
        """
        return self.writes(in_milliseconds(in_order(rows)))


def _value_writes(table: pa.Table) -> Iterator[Write]:
    for batch in table.to_batches(_CHUNK):
        states, keys, values, stamps, deleted = (batch[name].to_pylist() for name in _EVERY_VALUE)
        entries = _entries_of(batch, states, keys)
        lifetimes = batch["ttl_ms"].to_pylist() if batch["ttl_ms"].null_count < batch.num_rows else repeat(None)
        for entry, value, stamp, own_ttl, is_deleted in zip(entries, values, stamps, lifetimes, deleted, strict=False):
            yield entry, None if is_deleted else stored_value(stamp or 0, value.encode(), own_ttl or 0)


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
        for key, domain, time, namespace, is_deleted in zip(*columns, strict=True):
            timer = Timer(time, key.encode(), domain, namespace or "")
            if domain in CLEANUP_DOMAINS:
                cleanups[timer] = not is_deleted
            yield timer_entry(timer), None if is_deleted else b""
    yield from known_timers(timer for timer, is_set in cleanups.items() if is_set)


def _history_writes(table: pa.Table) -> Iterator[Write]:
    histories: dict[str, dict[int, HistoryRow]] = {}
    columns = [table[name].to_pylist() for name in _HISTORY_COLUMNS[1:]]
    for key, number, row, kind, inserted_at, is_deleted in zip(*columns, strict=True):
        history = histories.setdefault(key, {})
        if is_deleted:
            history.pop(number, None)
        else:
            history[number] = HistoryRow(number, msgspec.Raw(row.encode()), RowKind.parse(kind), inserted_at)
    for key, rows in histories.items():
        if rows:
            yield history_entry(key.encode()), stored_history([rows[number] for number in sorted(rows)])


STORED: dict[str, StoredEntries] = {
    KEYED_STATE: StoredEntries(_VALUE_COLUMNS, _value_writes),
    TIMERS: StoredEntries(_TIMER_COLUMNS, _timer_writes),
    MATERIALIZER_HISTORY: StoredEntries(_HISTORY_COLUMNS, _history_writes),
}
"""Tables with entries of a backend."""


def broadcast_groups(max_parallelism: int) -> KeyGroupRange:
    """Return the key group of broadcast rows: the task of this key group writes them."""
    group = key_group(BROADCAST_KEY, max_parallelism)
    return KeyGroupRange(group, group)


def load_broadcast_state(folder: JobFolder, version: int, operator: str, max_parallelism: int) -> list[BroadcastRow]:
    """Return an operator's broadcast state at a version of `keyed_state`."""
    view = folder.view(KEYED_STATE, version)
    rows = view.of(operator, broadcast_groups(max_parallelism), keys=[BROADCAST_KEY.decode()]).live_rows()
    return [
        BroadcastRow(row["state"], row["user_key"].encode(), row["value"].encode(), row["last_access"] or 0)
        for row in rows
    ]
