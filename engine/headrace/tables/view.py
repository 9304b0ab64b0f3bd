"""View of a state table at one version: its live entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.state.key_groups import KeyGroupRange
from headrace.tables.key_group_ranges import RANGE_BYTES, key_group_ranges
from headrace.tables.last_rows import last_rows
from headrace.tables.overlay import OverlaySnapshot, own_rows
from headrace.tables.predicate import Condition, Conditions, entries_of
from headrace.tables.schemas import StateTable
from headrace.tables.store import Snapshot, storage_errors
from headrace.tables.stored_rows import check_rows

MILLISECONDS = pa.timestamp("ms", tz="UTC")


class TableView:
    """Rows of a state table at a version that meet all conditions."""

    def __init__(self, table: StateTable, snapshot: Snapshot, conditions: Conditions = ()) -> None:
        """Keep the arguments; read nothing yet."""
        self.table = table
        self.snapshot = snapshot
        self.conditions = tuple(conditions)

    @property
    def version(self) -> int:
        """Version of the table."""
        return self.snapshot.version

    def of(
        self,
        operators: str | Iterable[str] | None = None,
        key_groups: KeyGroupRange | None = None,
        *,
        keys: Iterable[str] | None = None,
        states: str | Iterable[str] | None = None,
    ) -> TableView:
        """Return the view of some entries; None sets no condition. `keys` are JSON texts."""
        return self.where(*entries_of(operators, key_groups, keys=keys, states=states))

    def where(self, *conditions: Condition) -> TableView:
        """Return the view of rows that also meet these conditions."""
        return TableView(self.table, self.snapshot, (*self.conditions, *conditions))

    def ranges(self, key_groups: KeyGroupRange) -> Iterator[TableView]:
        """Yield the views of parts of these key groups, each small enough for memory; nothing if there are no rows.

        Raises `StorageError` when the storage refuses.
        """
        with storage_errors(f"to read {self.snapshot.uri}"):
            files = self.snapshot.add_actions()
        return (self.of(key_groups=part) for part in key_group_ranges(files, key_groups, RANGE_BYTES))

    @property
    def own(self) -> TableView:
        """View without the base of a branch's table."""
        return TableView(self.table, own_rows(self.snapshot), self.conditions)

    @property
    def has_base(self) -> bool:
        """Return whether it is a branch's table."""
        return isinstance(self.snapshot, OverlaySnapshot)

    def changes(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return all rows, in no particular order: each row is a change of an entry.

        Raises `StorageError` when a file is gone or damaged.
        """
        rows = self.snapshot.read(self.table.schema, columns=columns, conditions=self.conditions)
        return check_rows(self.snapshot.uri, rows, self.table)

    def live(self, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the last row of each entry that is not deleted; `columns` only, if they are given.

        Raises `StorageError` when a file is gone or damaged.
        """
        if columns is None:
            return last_rows(self.changes(), self.table)
        needed = dict.fromkeys((*columns, *self.table.entry, "checkpoint_id", "deleted"))
        return last_rows(self.changes(list(needed)), self.table).select(list(columns))

    def live_rows(self, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Return the live entries as mappings, with times in milliseconds. Raises `StorageError` as `live` does."""
        rows: list[dict[str, Any]] = in_milliseconds(self.live(columns)).to_pylist()
        return rows

    def stream(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as an Arrow stream that can be read once; `columns` only, if they are given.

        A column that the table lacks, since it has an earlier format, is null and comes last. Raises `OSError` when the
        storage refuses; reading the stream fails when a file is gone.
        """
        names = list(columns or self.table.schema.names)
        stored = set(self.snapshot.schema.names)
        stream = self.snapshot.stream([name for name in names if name in stored], self.conditions)
        return _with_nulls(stream, [self.table.schema.field(name) for name in names if name not in stored])

    def files(self) -> set[str]:
        """Return all data files of the table, relative to its folder, without regard to the conditions."""
        return self.snapshot.files()


def in_milliseconds(rows: pa.Table) -> pa.Table:
    """Convert times to integers (ms): Arrow would make a datetime object of each time, a microsecond each."""
    for position, column in enumerate(rows.schema):
        if pa.types.is_timestamp(column.type):
            times = rows[column.name].cast(MILLISECONDS, safe=False).cast(pa.int64())
            rows = rows.set_column(position, column.name, times)
    return rows


def _with_nulls(stream: Any, missing: Sequence[pa.Field]) -> Any:
    """Return an Arrow stream with additional columns of nulls.

    The stream is read into memory: Arrow's threads would call a stream made in Python, which can abort the process at its end.
    Only tables of earlier formats lack columns.
    """
    if not missing:
        return stream
    rows = pa.RecordBatchReader.from_stream(stream).read_all()
    for column in missing:
        rows = rows.append_column(column, pa.nulls(rows.num_rows, column.type))
    return rows.to_reader()
