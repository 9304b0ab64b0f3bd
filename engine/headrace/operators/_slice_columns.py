"""Windows of slices over columns: records of a micro-batch are added to their slices together, and the timers of new slices are set."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa

from headrace.api.batches import ColumnResults, ColumnTimer, KeyedColumns, TimerColumns
from headrace.operators._event_time import check_in_calendar
from headrace.operators._fired_windows import expanded
from headrace.operators._part_columns import PartColumns, StoredParts, by_key
from headrace.operators._result_record import ResultRecord
from headrace.operators._running_fields import Flags, keys_with, retractions
from headrace.operators._slice_times import SliceTimes
from headrace.operators._window_results import RankedWindow, WindowResult

TimersOf = Callable[[int], Sequence[tuple[int, str]]]
"""Function of a slice that returns the time (ms) and the namespace of each timer."""


class SliceColumns:
    """Adds records to slices. No window of theirs has fired before them: so each window has all its records when its timer fires."""

    def __init__(
        self, times: SliceTimes, result: WindowResult, timers_of: TimersOf, lateness: int, *, fires: bool
    ) -> None:
        """Take the times of the windows, their result, the function that returns the timers of a new slice, and the lateness in ms.

        `fires` says that timers may fire together.
        """
        self._times = times
        self._fires = fires
        self._parts = parts_of(result)
        self._timers_of = timers_of
        self._lateness = lateness

    def taken_singly(self, columns: KeyedColumns) -> Flags | None:
        """Return for each key whether it has a retraction, or a record behind the end of its first window; None if none has."""
        marked, times = retractions(columns), columns.timestamps.to_numpy()
        late = np.flatnonzero(columns.watermarks >= times)  # a window ends behind its records, so no other is
        starts, of_record = np.unique(self._times.slices_at(times[late]), return_inverse=True)
        first_ends = np.array([self._times.ends_of(start)[0] for start in starts.tolist()], np.int64)
        marked[late] |= columns.watermarks[late] >= first_ends[of_record] - 1
        return keys_with(marked, columns)

    def in_slices(self, columns: KeyedColumns) -> KeyedColumns:
        """Return the records by key and slice."""
        starts = self._times.slices_at(columns.timestamps.to_numpy())
        slices, of_record = np.unique(starts, return_inverse=True)
        numbers = slices.tolist()
        keys = columns.key_numbers.to_numpy().astype(np.int64)  # pairs of key and slice may be more than 32 bits count
        pairs, of_record = np.unique(keys * len(numbers) + of_record, return_inverse=True)
        return replace(
            columns,
            keys=[columns.keys[pair] for pair in (pairs // len(numbers)).tolist()],
            namespaces=[str(numbers[pair]) for pair in (pairs % len(numbers)).tolist()],
            key_numbers=pa.array(of_record.astype(np.int32)),
        )

    def results(self, columns: KeyedColumns) -> ColumnResults | None:
        """Return the slices and the timers of new ones; None where a record fails, and has to be named."""
        with contextlib.suppress(Exception):
            self._check(columns)
            parts = self._parts(columns)
            if self._fires and columns.last_watermark is not None:
                due, timers = self._until(columns, columns.last_watermark)
                return ColumnResults(parts.rows, others=parts.pieces, timers=timers, due=due)
            return ColumnResults(parts.rows, others=parts.pieces, timers=[*self._timers(columns)])
        return None

    def _until(self, columns: KeyedColumns, watermark: int) -> tuple[TimerColumns, list[ColumnTimer]]:
        """Return the timers of new slices that are due at a watermark (ms), and the others."""
        names = {name: number for number, name in enumerate(dict.fromkeys(columns.namespaces))}
        new = np.array([number for number, part in enumerate(columns.values) if part is None], np.int64)
        name_of_new = np.array([names[columns.namespaces[number]] for number in new.tolist()], np.int64)
        rows, times = expanded([[at for at, _ in self._timers_of(int(name))] for name in names], name_of_new)
        is_due, slices = times <= watermark, new[rows]
        later = zip(slices[~is_due].tolist(), times[~is_due].tolist(), strict=True)
        return TimerColumns(slices[is_due], times[is_due]), [ColumnTimer(*timer) for timer in later]

    def _check(self, columns: KeyedColumns) -> None:
        for start in {*columns.namespaces}:
            ends = self._times.ends_of(int(start))
            check_in_calendar(0, self._times.start_of(ends[0]), ends[-1], self._lateness)

    def _timers(self, columns: KeyedColumns) -> Iterator[ColumnTimer]:
        by_slice = {name: self._timers_of(int(name)) for name in {*columns.namespaces}}
        for number, (name, part) in enumerate(zip(columns.namespaces, columns.values, strict=True)):
            for at, namespace in () if part is not None else by_slice[name]:
                yield ColumnTimer(number, at, namespace)


def parts_of(result: WindowResult) -> Callable[[KeyedColumns], StoredParts]:
    """Return the function that returns the part of each key with the records added, and changes nothing."""
    if isinstance(result, ResultRecord):
        return PartColumns(result).parts
    assert isinstance(result, RankedWindow)  # noqa: S101 - no other result takes columns
    return partial(_ranked, result)


def _ranked(result: RankedWindow, columns: KeyedColumns) -> StoredParts:
    both = zip(columns.values, by_key(columns), strict=True)
    return StoredParts([result.with_records(part, records) for part, records in both])
