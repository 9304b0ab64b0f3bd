"""Columns: all records of a task in one micro-batch, which a function takes with one call."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class KeyedColumns:
    """Records in arrival order, as columns. `values` holds the function's state of each key before them; None without one."""

    records: pa.StructArray
    timestamps: pa.Int64Array
    """Event times (ms)."""
    kinds: pa.Int32Array
    """Numbers of the `RowKind`."""
    keys: Sequence[bytes]
    """Different keys, as JSON. Each has at least one record."""
    key_numbers: pa.Int32Array
    """For each record, the place of its key in `keys`."""
    values: Sequence[Any]
    result_type: pa.StructType
    """Type of the emitted records as columns."""


@dataclass(frozen=True, slots=True)
class ColumnResults:
    """State of each key after the records, and the emitted records in the order of `collect`."""

    values: Sequence[Any]
    rows: pa.Int64Array
    """For each result, the place of the record that it belongs to."""
    indices: pa.Int32Array
    """For each result, its number among those of the same record: 0 or 1."""
    timestamps: pa.Int64Array
    kinds: pa.Int32Array
    records: pa.StructArray


class ColumnFunction(abc.ABC):
    """A keyed function with one value state, no timers and no side outputs that also takes columns.

    The engine gives it columns where no record is held, nothing expires and state is accessed asynchronously. State and
    output must be those of `process`, or of `process_bundle`, for the same records.
    """

    @property
    @abc.abstractmethod
    def takes_columns(self) -> bool:
        """Return whether the function can take columns at all."""

    @abc.abstractmethod
    def process_columns(self, columns: KeyedColumns, /) -> ColumnResults | None:
        """Return the results of the records; None if they have to be processed one by one. Changes nothing."""
