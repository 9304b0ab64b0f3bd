"""Records of a keyed function that takes all of them at once, as columns."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import Process
from headrace.api.column_function import ColumnFunction, ColumnResults, KeyedColumns
from headrace.api.stream_types import output_type
from headrace.execution.element import NO_WATERMARK, Watermark, before_watermark, behind_watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.plan.order import CAUSE_SIZE, caused_at, output_order
from headrace.plan.record_columns import struct_type
from headrace.spark.columnar_rows import ColumnarRows
from headrace.state.single_store import SingleStore


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """Work of one operator over the columns of one task. `watermark` is the last one before them (ms)."""

    operator: Process
    process: KeyedProcess
    watermarks: Sequence[Watermark]
    watermark: int | None

    def run(self, batches: Sequence[pa.RecordBatch]) -> ColumnarRows | None:
        """Return what the function emits, and set its state; None, with nothing changed, if records have to be processed one by one."""
        function, store = self.operator.function, self.process.stores[0]
        if not (isinstance(function, ColumnFunction) and isinstance(store, SingleStore) and batches):
            return None
        try:
            rows = pa.concat_batches(batches)
        except pa.ArrowInvalid:  # 2 GiB of text, more than a column can hold
            return None
        orders, keys = rows["order"], rows["key"].dictionary_encode()
        distinct = keys.dictionary.to_pylist()
        if len(distinct) > store.cache_limit:
            return None
        columns = KeyedColumns(
            records=rows["in0"],
            timestamps=rows["timestamp"],
            kinds=rows["kind"],
            keys=distinct,
            key_numbers=keys.indices,
            values=store.values_of(distinct),
            result_type=struct_type(output_type(function)),
        )
        results = function.process_columns(columns)
        if results is None:
            return None
        store.set_values(distinct, results.values, _last_times(columns))
        self.process.count(len(orders), self._late(orders, columns.timestamps))
        return _placed(results, orders, output_type(function))

    def _late(self, orders: pa.BinaryArray, timestamps: pa.Int64Array) -> int:
        """Return the number of records at or below the last watermark before them."""
        watermark = NO_WATERMARK if self.watermark is None else self.watermark
        times, late, start = timestamps.to_numpy(), 0, 0
        for mark in sorted(self.watermarks):
            effects, end = (
                bisect.bisect_left(orders, place(mark), start, key=_as_python)
                for place in (before_watermark, behind_watermark)
            )
            late += int((times[start:effects] <= watermark).sum())
            late += int((times[effects:end] <= _clocks(orders[effects:end], watermark)).sum())
            watermark, start = mark.timestamp, end
        return late + int((times[start:] <= watermark).sum())


_as_python = methodcaller("as_py")


def _clocks(orders: pa.BinaryArray, watermark: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the watermark that each record at these places comes behind, if it is at least `watermark` (ms)."""
    causes = pc.binary_slice(orders, 0, CAUSE_SIZE).dictionary_encode()
    times = map(caused_at, causes.dictionary.to_pylist())
    clocks = [watermark if time is None else max(watermark, time - 1) for time in times]
    by_row: np.ndarray[Any, np.dtype[np.int64]] = np.array(clocks, np.int64)[causes.indices.to_numpy()]
    return by_row


def _last_times(columns: KeyedColumns) -> list[int]:
    """Return the event time of each key's last record (ms)."""
    last = np.zeros(len(columns.keys), np.int64)
    numbers = columns.key_numbers.to_numpy()
    last[numbers] = np.arange(len(numbers))  # of equal numbers, the last one stays
    return cast("list[int]", columns.timestamps.take(pa.array(last)).to_pylist())


def _placed(results: ColumnResults, orders: pa.BinaryArray, record: type) -> ColumnarRows:
    """Return results with their places in the order, as `collect` gives them."""
    ends = pa.array([output_order(b"", index) for index in (0, 1)], pa.binary()).take(results.indices)
    places = pc.binary_join_element_wise(orders.take(results.rows), ends, pa.scalar(b""))
    return ColumnarRows(record, places, results.timestamps, results.kinds, results.records)
