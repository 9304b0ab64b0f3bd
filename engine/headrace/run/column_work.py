"""Records of a keyed function that takes all of them at once, as columns, in one task."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import ColumnFunction, ColumnResults, KeyedColumns, TimerColumns
from headrace.api.graph import Process
from headrace.api.key_events import EventFunction
from headrace.api.types import output_type
from headrace.execution.element import (
    NO_WATERMARK,
    Watermark,
    before_watermark,
    behind_watermark,
)
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import CAUSE_SIZE, caused_at
from headrace.records.record_columns import struct_type, to_struct_array
from headrace.run.key_events import EventWork
from headrace.run.rows import ROWS_AT_ONCE, ColumnarRows, Takes, elements_of, placed
from headrace.run.timers_together import TimersTogether
from headrace.state.backend import within
from headrace.state.codec import decode_key
from headrace.state.maps_and_lists import MapStore
from headrace.state.timers import Timer
from headrace.state.ttl import LiveTtl
from headrace.state.values import SingleStore

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class ColumnWork:
    """Work of one operator over the columns of one task. `watermark` is the last one before them (ms)."""

    operator: Process
    process: KeyedProcess
    watermarks: Sequence[Watermark]
    watermark: int | None
    takes: Takes

    def run(self, batches: list[pa.RecordBatch], *, are_all: bool = True) -> Taken:
        """Set the state of the function and its timers behind the records of `batches`, but for those that are left.

        `are_all` says that no records of the micro-batch come behind these: then timers of other keys fire, too, where they may fire
        together. Empties the list: else all records are there twice.
        """
        function = self.operator.function
        if isinstance(function, EventFunction):
            return Taken(None, self._behind_events(function, batches) if are_all and self.watermarks else batches)
        if not isinstance(function, ColumnFunction):
            return Taken(None, batches)
        if not batches:
            return Taken(self._fired(function, [], None, ()) if are_all else None, batches)
        try:
            rows = pa.concat_batches(batches)
        except pa.ArrowInvalid:  # 2 GiB of text, more than a column can hold
            return Taken(None, batches)
        batches.clear()
        return self._run(rows, function, are_all=are_all) or Taken(None, _batches(rows))

    def _run(self, rows: pa.RecordBatch, function: ColumnFunction, *, are_all: bool) -> Taken | None:
        """Do what `run` does; return None, and change nothing, if all records are left."""
        columns, left = self._columns(rows, are_all=are_all), list[pa.RecordBatch]()
        singly = function.taken_singly(columns)
        if singly is not None:
            if singly.all():
                return None
            is_left = pa.array(singly[columns.key_numbers.to_numpy()])
            rows, left = rows.filter(pc.invert(is_left)), _batches(rows.filter(is_left))
            columns = self._columns(rows, are_all=are_all)
        processed = self._process(columns, function)
        if processed is None:
            return None
        keys, results = processed
        emitted = results.emitted
        if results.left is not None:
            is_left = pa.array(results.left[columns.key_numbers.to_numpy()])
            left = _in_order([*left, rows.filter(is_left)])
        if emitted is not None:
            return Taken(placed(emitted, rows["order"], self._output), left)
        return Taken(self._fired(function, keys, results.due, left) if are_all else None, left)

    def _behind_events(self, function: EventFunction, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """Process all records and timers together, but for those of some keys; return the records of these."""
        try:
            rows = pa.concat_batches(batches) if batches else None
        except pa.ArrowInvalid:  # as in `run`
            return batches
        columns = None if rows is None else self._columns(rows, are_all=True)
        batches.clear()
        work = EventWork(self.process, function, sorted(self.watermarks), self._before, self.takes)
        left = work.run(rows, columns)
        return [] if left is None else _batches(left)

    @property
    def _before(self) -> int:
        """Return the last watermark before the records (ms)."""
        return NO_WATERMARK if self.watermark is None else self.watermark

    def _fired(
        self, function: ColumnFunction, keys: Sequence[bytes], due: TimerColumns | None, left: Iterable[pa.RecordBatch]
    ) -> ColumnarRows | None:
        """Fire the timers of all keys but those of records that are left, if they may fire together; return what they emit."""
        store = self._store(SingleStore)
        if not function.fires_columns or store is None or not self.watermarks:
            return None
        firing = TimersTogether(self.process, function, store, sorted(self.watermarks), self._output)
        return firing.fire(keys, due, {key for batch in left for key in batch["key"].unique().to_pylist()})

    def _process(self, columns: KeyedColumns, function: ColumnFunction) -> tuple[Sequence[bytes], ColumnResults] | None:
        """Set the state of the function and its timers; return keys and results; None if the records have to be processed one by one."""
        store, given = self._store(SingleStore), self._with_entries(columns, function)
        taken = None if given is None else function.in_namespaces(given)
        if store is None or taken is None or len(taken.keys) > store.cache_limit:
            return None
        columns, names = taken, taken.keys
        if columns.namespaces:
            names = [*map(within, columns.keys, columns.namespaces)]
        keys = columns.keys
        columns = replace(
            columns,
            values=store.values_of(names, self._expiry_clocks(columns, store.ttl_logic)),
            read=lambda places: store.values_of([within(keys[key], namespace) for key, namespace in places]),
        )
        results = function.process_columns(columns)
        if results is not None:
            times = self._write_times(columns, store.ttl_logic) if results.timestamps is None else results.timestamps
            if store.ttl_logic is not None and not store.ttl_logic.in_event_time:
                times = [self.process.timers.processing_time] * len(names)
            store.set_values(names, results.values, times)
            for key, namespace, value, timestamp in results.others:
                store.set_values([within(keys[key], namespace)], [value], [timestamp])
            self._change(columns.keys, results)
            late = columns.timestamps.to_numpy() <= columns.watermarks
            if results.left is not None:
                late = late[~results.left[columns.key_numbers.to_numpy()]]
            self.process.count(len(late), int(late.sum()))
        return None if results is None else (keys, results)

    @staticmethod
    def _write_times(columns: KeyedColumns, ttl: LiveTtl | None) -> list[int]:
        """Return the event time of each key's last record, or with a TTL of its latest one (ms)."""
        return _last_times(columns) if ttl is None else _latest_times(columns)

    def _expiry_clocks(self, columns: KeyedColumns, ttl: LiveTtl | None) -> Sequence[int]:
        """Return the time by which the value of each key may have expired before its first record (ms)."""
        if ttl is None:
            return ()
        if not ttl.by_watermark:
            return [self.process.timers.processing_time] * len(columns.keys)
        first = np.empty(len(columns.keys), np.int64)
        first[columns.key_numbers.to_numpy()[::-1]] = columns.watermarks[::-1]  # of equal numbers, the last one stays
        clocks: list[int] = first.tolist()
        return clocks

    @property
    def _output(self) -> type:
        return output_type(self.operator.function)

    def _store(self, kind: type[S]) -> S | None:
        """Return the function's store of a kind."""
        return next((store for store in self.process.stores if isinstance(store, kind)), None)

    def _with_entries(self, columns: KeyedColumns, function: ColumnFunction) -> KeyedColumns | None:
        """Return the columns with what the function reads of its map; None where its entries cannot be read together."""
        maps, keys = self._store(MapStore), columns.keys
        if maps is None:
            return columns
        if not function.reads_entries:
            read = maps.entries_at
            return replace(columns, read_entries=lambda places: read([(keys[key], name) for key, name in places]))
        return replace(columns, entries=maps.entries_of(columns.keys)) if maps.reads_together(columns.keys) else None

    def _change(self, keys: Sequence[bytes], results: ColumnResults) -> None:
        """Change the function's map and its timers, and emit what timers emit."""
        maps, timers = self._store(MapStore), self.process.timers
        if maps is not None:
            maps.change_entries(keys, results.entries)
        for changed, change in ((results.deleted_timers, timers.delete), (results.timers, timers.register)):
            for timer in changed:
                change(Timer(timer.timestamp, keys[timer.key], namespace=timer.namespace))
        self.process.fire(results.fired, sorted(self.watermarks))

    def _columns(self, rows: pa.RecordBatch, *, are_all: bool) -> KeyedColumns:
        keys = rows["key"].dictionary_encode()
        return KeyedColumns(
            records=rows["in0"],
            timestamps=rows["timestamp"],
            kinds=rows["kind"],
            watermarks=self._watermarks_before(rows["order"]),
            bundled=lambda: (elements_of(batch, self.takes) for batch in _batches(rows)),
            objects=lambda places: (elements_of(batch, self.takes) for batch in _batches(rows.take(places))),
            columns_of=lambda records: to_struct_array(records, self.takes[0]),
            keys=keys.dictionary.to_pylist(),
            key_numbers=keys.indices,
            result_type=struct_type(self._output),
            results_of=lambda records: to_struct_array(records, self._output),
            last_watermark=max(self.watermarks).timestamp if are_all and self.watermarks else None,
            key_of=decode_key,
        )

    def _watermarks_before(self, orders: pa.BinaryArray) -> Times:
        """Return the last watermark before each record."""
        watermark, start = self._before, 0
        before = np.full(len(orders), watermark)
        for mark in sorted(self.watermarks):
            effects, end = (
                bisect.bisect_left(orders, place(mark), start, key=_as_python)
                for place in (before_watermark, behind_watermark)
            )
            if effects < end:
                before[effects:end] = _clocks(orders[effects:end], watermark)
            watermark, start = mark.timestamp, end
            before[start:] = watermark
        return before


class Taken(NamedTuple):
    """What becomes of records that may be processed as columns. All records of a key are left, or none."""

    emitted: ColumnarRows | None
    """What those that were taken emit; None if only timers emit something."""
    left: list[pa.RecordBatch]
    """Those that have to be processed one by one."""


Times = np.ndarray[Any, np.dtype[np.int64]]

_as_python = methodcaller("as_py")


def _clocks(orders: pa.BinaryArray, watermark: int) -> Times:
    """Return the watermark that each record at these places comes behind, if it is at least `watermark` (ms)."""
    causes = pc.binary_slice(orders, 0, CAUSE_SIZE).dictionary_encode()
    times = map(caused_at, causes.dictionary.to_pylist())
    clocks = [watermark if time is None else max(watermark, time - 1) for time in times]
    by_row: Times = np.array(clocks, np.int64)[causes.indices.to_numpy()]
    return by_row


def _last_times(columns: KeyedColumns) -> list[int]:
    """Return the event time of each key's last record (ms)."""
    last = np.zeros(len(columns.keys), np.int64)
    numbers = columns.key_numbers.to_numpy()
    last[numbers] = np.arange(len(numbers))  # of equal numbers, the last one stays
    return cast("list[int]", columns.timestamps.take(pa.array(last)).to_pylist())


def _in_order(parts: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows of several parts in arrival order, in batches of as many as become records at once."""
    rows = pa.concat_batches(parts)
    return _batches(rows.take(pc.sort_indices(rows["order"])))


def _latest_times(columns: KeyedColumns) -> list[int]:
    """Return the latest event time of each key's records (ms)."""
    latest = np.full(len(columns.keys), NO_WATERMARK, np.int64)
    np.maximum.at(latest, columns.key_numbers.to_numpy(), columns.timestamps.to_numpy())
    times: list[int] = latest.tolist()
    return times


def _batches(rows: pa.RecordBatch) -> list[pa.RecordBatch]:
    """Return rows in batches of as many as become records at once."""
    return [rows.slice(start, ROWS_AT_ONCE) for start in range(0, len(rows), ROWS_AT_ONCE)]
