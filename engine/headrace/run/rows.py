"""Rows of a stream in a task: as columns, or as records where user code has made them.

Records of a stream stay columns in a task. They become objects only where user code runs on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.api.batches import EmittedColumns
from headrace.api.records import RowKind
from headrace.execution.element import Element, Emitted, make_element, make_emitted
from headrace.records.columns import sink_columns
from headrace.records.order import output_order
from headrace.records.record_columns import from_struct_array, struct_type, to_struct_array
from headrace.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class ColumnarRows:
    """Records of a stream as columns: their places in the order, and a struct for each."""

    record: type[msgspec.Struct]
    orders: pa.Array
    timestamps: pa.Array
    kinds: pa.Array
    columns: pa.StructArray

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.columns)

    @classmethod
    def of(cls, emitted: Sequence[Emitted], record: type[msgspec.Struct]) -> ColumnarRows:
        """Return records as rows. Raises `UnfitRecord` for one that columns cannot store."""
        orders, timestamps, kinds, records = zip(*emitted, strict=True)
        places = (pa.array(orders, pa.binary()), pa.array(timestamps, pa.int64()), pa.array(kinds, pa.int32()))
        return cls(record, *places, to_struct_array(records, record))

    def on_edge(self, edge: int) -> ColumnarRows:
        """Return the rows for one of several uses of the stream, with the edge in their places."""
        orders = pc.binary_join_element_wise(self.orders, pa.scalar(bytes([edge])), pa.scalar(b""))
        return ColumnarRows(self.record, orders, self.timestamps, self.kinds, self.columns)

    def table(self) -> pa.Table:
        """Return the rows as a table, for a later task."""
        columns = [self.orders, self.timestamps, self.kinds, self.columns]
        return pa.Table.from_arrays(columns, schema=_staged_schema(self.record))

    @classmethod
    def of_table(cls, table: pa.Table, record: type[msgspec.Struct]) -> ColumnarRows:
        """Return the rows that an earlier task has staged with `table`."""
        return cls(record, *(column.combine_chunks() for column in table.cast(_staged_schema(record)).columns))

    def emitted(self) -> list[Emitted]:
        """Return the rows as records."""
        records = from_struct_array(self.columns, self.record)
        places = (column.to_pylist() for column in (self.orders, self.timestamps, self.kinds))
        return list(map(make_emitted, zip(*places, records, strict=True)))

    def sink_table(self, schema: pa.Schema) -> pa.Table | None:
        """Return the rows as those of a sink of this schema; None where records have to be made of them, or there are no rows."""
        return sink_columns(self.columns, self.record, schema) if len(self) else None

    def without_update_before(self) -> ColumnarRows:
        """Return the rows that are not the row before an update."""
        return self.filter(pc.not_equal(self.kinds, pa.scalar(int(RowKind.UPDATE_BEFORE), pa.int32())))

    def filter(self, mask: pa.BooleanArray) -> ColumnarRows:
        """Return the rows for which the mask is true."""
        columns = (self.orders, self.timestamps, self.kinds, self.columns)
        return ColumnarRows(self.record, *(column.filter(mask) for column in columns))


def placed(results: EmittedColumns, causes: pa.BinaryArray, record: type[msgspec.Struct]) -> ColumnarRows:
    """Return results with their places in the order, as `collect` gives them. `causes` are the places of what they belong to."""
    most = pc.max(results.indices).as_py() or 0
    ends = pa.array([output_order(b"", index) for index in range(most + 1)], pa.binary()).take(results.indices)
    places = pc.binary_join_element_wise(causes.take(results.rows), ends, pa.scalar(b""))
    return ColumnarRows(record, places, results.timestamps, results.kinds, results.records)


def joined(parts: Sequence[ColumnarRows]) -> ColumnarRows:
    """Return the rows of several parts, in arrival order."""
    if len(parts) == 1:
        return parts[0]
    columns = [
        pa.concat_arrays([getattr(part, name) for part in parts])
        for name in ("orders", "timestamps", "kinds", "columns")
    ]
    order = pc.sort_indices(columns[0])
    return ColumnarRows(parts[0].record, *(column.take(order) for column in columns))


Rows = ColumnarRows | list[Emitted]
"""Rows as they run through a task: as columns, or as records behind a room that made them."""


class Taker(Protocol):
    """Next room on a record's way. A stage first lays its pipes, then rows run through them, forward only."""

    def take(self, rows: Rows, /) -> None:
        """Take the next rows, and pass on what becomes of them."""
        ...

    def end(self) -> None:
        """Pass on what still waits for more rows, and the end. Called once, behind the last rows."""
        ...


@dataclass(frozen=True, slots=True)
class Pipe(Taker):
    """Room with one other behind it."""

    next: Taker

    def end(self) -> None:
        """Pass on the end."""
        self.next.end()


class Outlet(Taker):
    """Last room on the way of a record in a task."""

    __slots__ = ()

    def end(self) -> None:
        """Do nothing: rows are staged as they come."""


def as_records(rows: Rows) -> list[Emitted]:
    """Return rows as records."""
    return rows.emitted() if isinstance(rows, ColumnarRows) else rows


Takes = tuple[type, ...]
"""Record types of a stage's inputs."""

ROWS_AT_ONCE: Final = 20_000
"""Number of rows that a task turns into records at once, like `spark.sql.execution.arrow.maxRecordsPerBatch` in the profiles."""

_STAGED = (
    pa.field("order", pa.binary()),
    pa.field("timestamp", pa.int64()),
    pa.field("kind", pa.int32()),
)


def _staged_schema(record: type[msgspec.Struct]) -> pa.Schema:
    return pa.schema([*_STAGED, pa.field("record", struct_type(record))])


def elements_of(batch: pa.RecordBatch, takes: Takes) -> list[Element]:
    """Return the elements in a batch that Spark gives to a keyed task."""
    columns = [batch[name].to_pylist() for name in ("order", "timestamp", "kind", "key")]
    inputs = batch["input"].to_pylist()
    if len(takes) == 1:
        records: Iterable[object] = from_struct_array(batch["in0"], takes[0])
    else:
        structs = [from_struct_array(batch[f"in{number}"], record) for number, record in enumerate(takes)]
        records = (structs[number][at] for at, number in enumerate(inputs))
    return list(map(make_element, zip(*columns, records, inputs, strict=True)))


def handed_on(file: Storage) -> pa.Table:
    """Return the rows of a file that the driver, or another task, has written for this one.

    What it raises is raw: Spark repeats a task that could not read, and no task repeats one that reports an error of Headrace.
    """
    return pq.ParquetFile(file.open()).read()
