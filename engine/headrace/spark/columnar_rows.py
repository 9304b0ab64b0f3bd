"""Records of a stream in a task, as columns. They become objects only where user code runs on them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import RowKind
from headrace.execution.element import Emitted, make_emitted
from headrace.plan.record_columns import from_struct_array
from headrace.plan.sink_columns import sink_columns


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

    def on_edge(self, edge: int) -> ColumnarRows:
        """Return the rows for one of several uses of the stream, with the edge in their places."""
        orders = pc.binary_join_element_wise(self.orders, pa.scalar(bytes([edge])), pa.scalar(b""))
        return ColumnarRows(self.record, orders, self.timestamps, self.kinds, self.columns)

    def emitted(self) -> list[Emitted]:
        """Return the rows as records."""
        records = from_struct_array(self.columns, self.record)
        places = (column.to_pylist() for column in (self.orders, self.timestamps, self.kinds))
        return list(map(make_emitted, zip(*places, records, strict=True)))

    def sink_table(self) -> pa.Table | None:
        """Return the rows as those of a sink; None where records have to be made of them, or there are no rows."""
        return sink_columns(self.columns, self.record) if len(self) else None

    def without_update_before(self) -> ColumnarRows:
        """Return the rows that are not the row before an update."""
        return self.filter(pc.not_equal(self.kinds, pa.scalar(int(RowKind.UPDATE_BEFORE), pa.int32())))

    def filter(self, mask: pa.BooleanArray) -> ColumnarRows:
        """Return the rows for which the mask is true."""
        columns = (self.orders, self.timestamps, self.kinds, self.columns)
        return ColumnarRows(self.record, *(column.filter(mask) for column in columns))
