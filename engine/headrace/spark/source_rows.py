"""Rows of a source in a task: columns, until code runs on them."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.execution.element import Emitted
from headrace.plan.record_columns import from_struct_array


@dataclass(frozen=True, slots=True)
class SourceRows:
    """Rows of a source as columns. Python objects are made of them only where code runs on them."""

    record: type[msgspec.Struct]
    orders: pa.Array
    timestamps: pa.Array
    kinds: pa.Array
    columns: pa.StructArray

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.columns)

    def on_edge(self, edge: int) -> SourceRows:
        """Return the rows as one of several uses of the stream gets them."""
        orders = pc.binary_join_element_wise(self.orders, pa.scalar(bytes([edge])), pa.scalar(b""))
        return SourceRows(self.record, orders, self.timestamps, self.kinds, self.columns)

    def emitted(self) -> list[Emitted]:
        """Return the rows as records."""
        records = from_struct_array(self.columns, self.record)
        places = (column.to_pylist() for column in (self.orders, self.timestamps, self.kinds))
        return list(map(Emitted._make, zip(*places, records, strict=True)))
