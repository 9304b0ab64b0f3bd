"""View of a state table at one version: its live entries, read by ranges of key groups.

A range is read at a time, so that a process never holds a whole state in memory. All rows of a key are in one key
group, so whatever looks at an entry's changes, or at a key's rows, can do so range by range. The ranges follow from the
sizes in the table's log: a small table is one range. One key group is the least: a state of which one group does not
fit into memory needs more groups (`headrace rescale`).

The file also reads the stored rows of one operator, table by table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.overlay import OverlaySnapshot, own_rows
from headrace.storage.predicate import Condition, Conditions, OneOf, Within, as_tuple
from headrace.storage.table import Snapshot
from headrace.tables.live_rows import check_rows, last_rows
from headrace.tables.schemas import QUARANTINE, STATE_TABLES, StateTable


def entries_of(
    operators: str | Iterable[str] | None = None,
    key_groups: KeyGroupRange | None = None,
    *,
    keys: Iterable[str] | None = None,
    states: str | Iterable[str] | None = None,
) -> list[Condition]:
    """Return the conditions for rows of a state table that belong to these entries; None sets no condition.

    `keys` are JSON texts.
    """
    conditions: list[Condition] = []
    if operators is not None:
        conditions.append(OneOf("operator", as_tuple(operators)))
    if key_groups is not None:
        conditions.append(Within("key_group", key_groups.first, key_groups.last))
    if keys is not None:
        conditions.append(OneOf("key", as_tuple(keys)))
    if states is not None:
        conditions.append(OneOf("state", as_tuple(states)))
    return conditions


RANGE_BYTES: Final = 64 << 20
"""Estimated size in memory of the rows of a range.

Sorting, filtering and writing copy the rows, so a process needs some five times as much. A compaction of 10,000,000 keys peaks
at 550 MB; with 256 MiB at 1.2 GB, and with 16 MiB at 450 MB, but then a rebuild of the state takes a third longer, since ranges
share row groups.
"""

_BYTES_OF_ROW: Final = 256
"""Size in memory of a row with a short key and value."""

_UNPACKED: Final = 4
"""Size in memory of a byte in a file: texts are compressed there."""


def key_group_ranges(files: pa.Table, key_groups: KeyGroupRange, range_bytes: int) -> Iterator[KeyGroupRange]:
    """Divide key groups into ranges whose rows take at most `range_bytes` in memory; yield nothing if no file has any of them.

    All ranges get about as many rows: tasks divide key groups evenly too, so that few files have rows of two ranges.
    `files` are the add actions of the table. The rows of a file are taken to be spread evenly over its key groups; a file without
    statistics may have rows of all groups.
    """
    sizes = _sizes(files, key_groups)
    most = _even_share(sizes, range_bytes)
    first, held = key_groups.first, 0
    for group, size in enumerate(sizes, key_groups.first):
        if held and size and held + size > most:
            yield KeyGroupRange(first, group - 1)
            first, held = group, 0
        held += size
    if any(sizes):
        yield KeyGroupRange(first, key_groups.last)


def _even_share(sizes: Sequence[int], range_bytes: int) -> int:
    """Return the size up to which each range is filled."""
    parts = max(1, -(-sum(sizes) // range_bytes))
    return min(range_bytes, sum(sizes) // parts + max(sizes, default=0) // 2)


def _sizes(files: pa.Table, key_groups: KeyGroupRange) -> list[int]:
    """Return the estimated size of the rows of each key group."""
    count = key_groups.last - key_groups.first + 1
    changes = [0] * (count + 1)  # from one group to the next
    for file in files.to_pylist():
        low, high = file.get("min.key_group"), file.get("max.key_group")
        low, high = (0, key_groups.last) if low is None or high is None else (low, high)
        begin, end = max(low, key_groups.first) - key_groups.first, min(high, key_groups.last) - key_groups.first + 1
        if begin < end:
            size = -(-_size(file) // (high - low + 1))
            changes[begin] += size
            changes[end] -= size
    return [*accumulate(changes[:count])]


def _size(file: dict[str, Any]) -> int:
    size: int = (file.get("num_records") or 0) * _BYTES_OF_ROW + file["size_bytes"] * _UNPACKED
    return size


def files_that_may_meet(conditions: Conditions, files: pa.Table) -> pa.Table:
    """Return the files (add actions) without those whose statistics rule out that a row has a number `Within` the conditions."""
    for condition in conditions:
        if isinstance(condition, Within) and f"min.{condition.column}" in files.schema.names:
            least, most = files[f"min.{condition.column}"], files[f"max.{condition.column}"]
            is_outside = pc.or_(pc.greater(least, condition.last), pc.less(most, condition.first))
            files = files.filter(pc.invert(pc.fill_null(is_outside, False)))
    return files


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
        files = files_that_may_meet(self.conditions, self.snapshot.add_actions())
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

    def last_changes(self, keys: pa.Array | None = None) -> pa.Table:
        """Return the last row of each entry, of deleted ones too; with `keys` (JSON texts), only of these keys.

        Raises `StorageError` when a file is gone or damaged.
        """
        rows = self.changes()
        wanted = rows if keys is None else rows.filter(pc.is_in(rows["key"], keys))
        return last_rows(wanted, self.table, keeps_deleted=True)

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


ViewOf = Callable[[str], TableView]
"""Function that opens a state table by its name."""


STATE_OF_OPERATORS = tuple(name for name in STATE_TABLES if name != QUARANTINE)
"""Tables that hold an operator's state, waiting elements and held records. `quarantine` has the input that it set aside."""


def live_chunks(
    view_of: ViewOf, table: str, operator: str, max_parallelism: int, columns: Sequence[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the live rows of an operator in one table, by ranges of key groups; nothing if the table has no files."""
    for part in view_of(table).of(operator).ranges(KeyGroupRange.all_of(max_parallelism)):
        yield part.live(columns)


def count_rows(view_of: ViewOf, operator: str, max_parallelism: int, tables: Iterable[str]) -> dict[str, int]:
    """Return the number of live rows of an operator by table, without zeros."""
    counts = {
        table: sum(rows.num_rows for rows in live_chunks(view_of, table, operator, max_parallelism, ["key"]))
        for table in tables
    }
    return {table: count for table, count in counts.items() if count}


def has_keyed_rows(view_of: ViewOf, operator: str, max_parallelism: int) -> bool:
    """Return whether an operator has rows with a key. Broadcast state has none."""
    return any(
        pc.any(pc.not_equal(rows["key"], BROADCAST_KEY.decode())).as_py()
        for table in STATE_OF_OPERATORS
        for rows in live_chunks(view_of, table, operator, max_parallelism, ["key"])
    )


def live_keys(view_of: ViewOf, operator: str, max_parallelism: int) -> Iterator[str]:
    """Yield the keys of an operator's rows as JSON, each at least once."""
    for table in STATE_OF_OPERATORS:
        for rows in live_chunks(view_of, table, operator, max_parallelism, ["key"]):
            yield from (key for key in rows["key"].unique().to_pylist() if key != BROADCAST_KEY.decode())
