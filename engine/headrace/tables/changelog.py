"""Changes of state as rows of the state tables, and as files of them.

Layout of rows in the files of the state tables: a look-up of a few keys should read little.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.records import RowKind
from headrace.async_io.pending_call import StoredCall
from headrace.async_io.responses import KeptResponse
from headrace.materializer.histories import HistoryChange
from headrace.state.backend import EntryChange
from headrace.state.codec import encode
from headrace.state.key_groups import key_groups_of
from headrace.state.timers import Timer, TimerChange
from headrace.storage.files import LateValues, ParquetLayout, StagedFile, utf8
from headrace.tables.folder import JobFolder
from headrace.tables.requests import StoredRequest, buffered_request_columns, response_columns, waiting_element_columns
from headrace.tables.schemas import (
    ALL_TABLES,
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
    RESPONSES,
    TIMERS,
)

_MILLISECONDS = pa.timestamp("ms", tz="UTC")
SYMBOLS = {int(kind): kind.symbol for kind in RowKind}
"""Short forms of row kinds, by number."""


class KeyedState(Protocol):
    """Facts about a state that its rows contain."""

    name: str

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return the time at which an entry expires (ms); None if it never does."""
        ...


Origin = Literal["row", "part", "file", "record", "call", "retraction"]
"""What a row of the quarantine is: a row of a source's file, rows that were read together, a whole file; a record that a pipeline could
not take on; a call that was given up; a retraction that matches nothing."""


class QuarantineRow(NamedTuple):
    """Row of the quarantine. `position` is for people; `first_row` counts in the stored file, for a part in arrival order."""

    source: str
    position: str
    key: str
    raw: str | None
    error: str
    origin: Origin
    file: str | None = None
    first_row: int | None = None
    rows: int | None = None

    @classmethod
    def of_file(cls, source: str, file: str, raw: str | None, error: str) -> QuarantineRow:
        """Return the row for a file that was refused as a whole."""
        return cls(source, file, "null", raw, error, "file", file)

    @classmethod
    def of_row(cls, source: str, file: str, number: int, raw: str | None, error: str) -> QuarantineRow:
        """Return the row for one row of a file, by its number in the file."""
        return cls(source, f"{file}:{number}", "null", raw, error, "row", file, number, 1)

    @classmethod
    def of_part(cls, source: str, file: str, rows: tuple[int, int], raw: str | None, error: str) -> QuarantineRow:
        """Return the row for a part of a file that was refused as it was read; `rows` are its numbers in arrival order, from and to."""
        first, end = rows
        return cls(source, f"{file}:{first}-{end}", "null", raw, error, "part", file, first, end - first)

    @classmethod
    def of_record(cls, operator: str, order: bytes, record: Any, key: str, error: str) -> QuarantineRow:
        """Return the row for a record that the pipeline could not take on."""
        return cls(operator, order.hex(), key, encode(record).decode(), error, "record")


class Changelog:
    """Converter of one operator's changes to rows with the operator's name and the checkpoint's id."""

    def __init__(self, operator: str, checkpoint_id: int, max_parallelism: int) -> None:
        """Keep the values that all rows get."""
        self._operator = operator
        self._checkpoint_id = checkpoint_id
        self._max_parallelism = max_parallelism

    def values(self, store: KeyedState, changes: Sequence[EntryChange], *, without_values: bool = False) -> pa.Table:
        """Return rows of `keyed_state`. `without_values` leaves the column `value` null, for `stage_state` to fill."""
        fields = ([*map(itemgetter(place), changes)] for place in range(len(EntryChange._fields)))
        keys, raws, stamps, own_ttls, namespaces, user_keys = fields
        return self._table(
            KEYED_STATE,
            keys,
            [raw is None for raw in raws],
            state=pa.repeat(store.name, len(changes)),
            namespace=[namespace or None for namespace in namespaces] if any(namespaces) else (),
            user_key=utf8(user_keys),
            value=() if without_values else utf8(raws),
            last_access=[None if raw is None else stamp for stamp, raw in zip(stamps, raws, strict=True)],
            expires_at=()
            if store.expires_at(0) is None  # no entry expires
            else [
                None if raw is None else store.expires_at(stamp, ttl)
                for raw, stamp, ttl in zip(raws, stamps, own_ttls, strict=True)
            ],
            ttl_ms=[own_ttl or None for own_ttl in own_ttls] if any(own_ttls) else (),
        )

    def timers(self, changes: Sequence[TimerChange]) -> pa.Table:
        """Return rows of `timers`."""
        timers = [change.timer for change in changes]
        fields = ([*map(itemgetter(place), timers)] for place in range(len(Timer._fields)))
        timestamps, keys, domains, namespaces = fields
        return self._table(
            TIMERS,
            keys,
            [not change.registered for change in changes],
            domain=[*map(str, domains)],
            timestamp=timestamps,
            namespace=[namespace or None for namespace in namespaces],
        )

    def history(self, changes: Sequence[HistoryChange], upsert_key: Callable[[bytes], str | None]) -> pa.Table:
        """Return rows of `materializer_history`."""
        return self._table(
            MATERIALIZER_HISTORY,
            [change.key_json for change in changes],
            [change.row is None for change in changes],
            sequence_number=[change.sequence_number for change in changes],
            upsert_key=[None if change.row is None else upsert_key(change.row) for change in changes],
            row=utf8([change.row for change in changes]),
            row_kind=[None if change.row is None else SYMBOLS[change.row_kind] for change in changes],
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

    def requests(self, rows: Sequence[StoredCall], deleted: Sequence[bool]) -> pa.Table:
        """Return rows of `async_requests`."""
        keys = [row.key.encode() for row in rows]
        return self._table(ASYNC_REQUESTS, keys, deleted, **waiting_element_columns(rows, deleted))

    def responses(self, rows: Sequence[KeptResponse]) -> pa.Table:
        """Return rows of `responses`."""
        return self._table(RESPONSES, [row.key.encode() for row in rows], [False] * len(rows), **response_columns(rows))

    def quarantine(self, rows: Sequence[QuarantineRow]) -> pa.Table:
        """Return rows of `quarantine`."""
        fields = [name for name in QuarantineRow._fields if name != "key"]
        columns = {name: [getattr(row, name) for row in rows] for name in fields}
        return self._table(QUARANTINE, [row.key.encode() for row in rows], [False] * len(rows), **columns)

    def _table(self, name: str, keys: Sequence[bytes], deleted: Sequence[bool], **columns: Sequence[Any]) -> pa.Table:
        count = len(keys)
        columns |= {
            "operator": pa.repeat(self._operator, count),
            "key_group": pa.array(key_groups_of(keys, self._max_parallelism), pa.int32()),
            "key": utf8(keys),
            "checkpoint_id": pa.repeat(pa.scalar(self._checkpoint_id, pa.int64()), count),
            "deleted": deleted,
        }
        schema = ALL_TABLES[name].schema
        arrays = [_array(columns.get(field.name, ()), field.type, count) for field in schema]
        return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Sequence[Any], kind: pa.DataType, count: int) -> pa.Array:
    """Return a column of `count` values; of nulls if there are none."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    if not values:
        return pa.nulls(count, kind)
    if pa.types.is_timestamp(kind):
        return pa.array(values, pa.int64()).cast(_MILLISECONDS).cast(kind)
    return pa.array(values, kind)


ROWS_PER_GROUP = 16_384
"""Rows per row group: a look-up of one key reads at least one. A quarter of it makes reading a whole table a third slower."""

_NEVER_TWICE = frozenset(
    {
        "key",
        "user_key",
        "value",
        "last_access",
        "expires_at",
        "timestamp",
        "upsert_key",
        "row",
        "inserted_at",
        "record",
        "element",
        "digest",
        "position",
        "ordinal",
    }
)


_SORTED_BY = {TIMERS: "timestamp", RESPONSES: "ordinal"}
_WITHIN_KEY = ("state", "namespace", "user_key")
"""Sort columns within a key: so a page of a list or map is in few row groups."""


def sort_column(table: str) -> str:
    """Return the column by which an operator's rows are sorted in each file, before `key`.

    Timers are looked up by time, responses by place of arrival, everything else by key.
    """
    return _SORTED_BY.get(table, "key_group")


def parts(table: str, rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows of a state table in parts, one for each file; no empty parts.

    Timers of different domains are in different files, so a look-up in one domain reads nothing of the others.
    """
    if table != TIMERS:
        divided = [rows]
    else:
        divided = [rows.filter(pc.equal(rows["domain"], domain)) for domain in pc.unique(rows["domain"])]
    yield from (part for part in divided if part.num_rows)


def stage_state(
    folder: JobFolder,
    table: str,
    name: str,
    rows: pa.Table,
    *,
    values: Sequence[bytes | None] | None = None,
) -> StagedFile:
    """Sort rows of a state table and stage them as a file. Raises `StorageError` when the storage refuses.

    `values`, if given, replace the rows' column `value`: they become a column only when their row group is written.
    """
    wanted = ["operator", sort_column(table), "key"]
    if table == KEYED_STATE and rows["user_key"].null_count < rows.num_rows:
        wanted += _WITHIN_KEY
    names = [column for column in wanted if column in rows.schema.names]
    order = pc.sort_indices(rows.select(names), [(column, "ascending") for column in names])
    layout = _layout(table)
    if values is not None:
        layout = replace(layout, late_values=LateValues(values, order))
    return folder.below(table).stage(name, rows.take(order), layout=layout)


def _layout(table: str) -> ParquetLayout:
    # A look-up spends its time on decoding: with lz4 and plain texts it needs a quarter less CPU than with zstd and
    # dictionaries (`make bench-state-look-ups`). The files are half as large again, but compaction keeps the tables small.
    names = ALL_TABLES[table].schema.names
    dictionary = [name for name in names if name not in _NEVER_TWICE]
    return ParquetLayout(compression="lz4", dictionary=dictionary, rows_per_group=ROWS_PER_GROUP)
