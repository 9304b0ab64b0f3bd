"""Firing of windows over columns: the slices of all windows that end in a micro-batch are merged together, and results need no records.

The stored parts of slices are the rows of a layout: by window, the earliest slice first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from decimal import Decimal
from itertools import chain
from typing import Any, Final, Self

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import DueColumns, EmittedColumns, FiredColumns, NamespaceColumns, TimerColumns
from headrace.operators._result_record import ResultRecord
from headrace.operators._running_fields import (
    NOT_IN_COLUMNS,
    Layout,
    MergedField,
    NotInColumnsError,
    Numbers,
    is_plain,
    merged_field,
)
from headrace.operators._slice_times import SliceTimes
from headrace.operators._value_types import annotated_type
from headrace.operators._window_results import BOUNDS, WindowResult

MOST_ROWS: Final = 4_000_000
"""Number of slices of windows that are merged at once, each counted for each of its windows, also where it has no records."""


class FiredWindows:
    """Computes the results of windows that fire together, and says which slices no later window has."""

    def __init__(
        self,
        times: SliceTimes,
        makers: Mapping[str, Callable[[Any, int, int], Any]],
        merged: Mapping[str, MergedField],
    ) -> None:
        """Take the times of the windows, and what makes the fields of results: of key and bounds, and of stored parts."""
        self._times = times
        self._makers = makers
        self._merged = merged

    @classmethod
    def of(cls, times: SliceTimes, result: WindowResult) -> Self | None:
        """Return the windows with this result; None where columns cannot merge all of its fields, or its class needs code."""
        if not isinstance(result, ResultRecord) or result.multisets or hasattr(result.gives, "__post_init__"):
            return None
        merged = {field.name: merge for field in result.fields if (merge := merged_field(field)) is not None}
        is_merged = len(merged) == len(result.fields) and all(map(_is_plain, msgspec.structs.fields(result.gives)))
        return cls(times, dict(result.makers), merged) if is_merged else None

    def fired(self, due: DueColumns) -> FiredColumns | None:
        """Return what windows emit, and the slices that they free; None where they have to fire key by key."""
        with contextlib.suppress(*NOT_IN_COLUMNS):
            parts = [self._fired(due, chosen) for chosen in self._at_once(due)]
            return parts[0] if len(parts) == 1 else _joined(parts)
        return None

    def _at_once(self, due: DueColumns) -> Iterator[Numbers]:
        """Yield the places of timers in parts that fit into memory, each with all timers of its keys."""
        times, time_of_timer = np.unique(due.timers.timestamps, return_inverse=True)
        slices = np.array([len(self._times.names_of(at + 1)) for at in times.tolist()], np.int64)
        rows = np.bincount(due.timers.key_numbers, slices[time_of_timer], len(due.keys))
        if rows.max(initial=0) > MOST_ROWS:
            raise NotInColumnsError
        part = (np.cumsum(rows) // MOST_ROWS)[due.timers.key_numbers]
        for number in np.unique(part):
            yield np.flatnonzero(part == number)

    def _fired(self, due: DueColumns, chosen: Numbers) -> FiredColumns:
        """Return what some of the timers do, which have no key in common with the others."""
        due = replace(due, timers=TimerColumns(*(column[chosen] for column in due.timers)))
        windows = _Windows(due, self._times)
        rows = windows.summed([part.rows for part in windows.parts])
        shown = pa.array(np.flatnonzero(rows > 0))
        types = list(due.result_type)
        records = pa.StructArray.from_arrays([self._field(field, due, windows) for field in types], fields=types)
        timers = pa.array(windows.timers).take(shown)
        nothing = pa.array(np.zeros(len(shown), np.int32))
        times = pa.array(due.timers.timestamps).take(timers)
        emitted = EmittedColumns(pa.array(chosen).take(timers), nothing, times, nothing, records.take(shown))
        return FiredColumns(emitted, windows.freed)

    def _field(self, field: pa.Field, due: DueColumns, windows: _Windows) -> pa.Array:
        """Return a field of the results of all windows."""
        make = self._makers.get(field.name)
        if make is None:
            states = [getattr(part.aggregates, field.name) for part in windows.parts]
            return self._merged[field.name](windows.layout, states, windows.part_of_row, field.type)
        if field.name in BOUNDS:
            bounds = [make(None, self._times.start_of(end), end) for end in windows.ends]
            return pa.array(bounds, field.type).take(pa.array(windows.end_of_timer[windows.timers]))
        of_keys = pa.array([make(due.key_of(key), 0, 0) for key in due.keys], field.type)
        return of_keys.take(pa.array(due.timers.key_numbers[windows.timers]))


class _Windows:
    """Windows of some timers that have slices, and the parts of these."""

    def __init__(self, due: DueColumns, times: SliceTimes) -> None:
        """Read the slices. Raises `NotInColumnsError` for parts in pieces, and where a window has a slice that an earlier one frees."""
        fired_at, self.end_of_timer = np.unique(due.timers.timestamps, return_inverse=True)
        """For each timer, the place of its window's end."""
        self.ends: list[int] = (fired_at + 1).tolist()
        """Different ends of windows (ms)."""
        names_of = [*map(times.names_of, self.ends)]
        self._names = [*dict.fromkeys(chain.from_iterable(names_of))]
        self._keys = due.timers.key_numbers
        timers, slices = self._by_timer(names_of)
        slices, slice_of_row = np.unique(slices, return_inverse=True)
        keys, names = np.divmod(slices, len(self._names))
        owners = NamespaceColumns(keys, pa.array(self._names, pa.string()).take(pa.array(names)))
        parts = due.read(owners)
        exists = np.array([part is not None for part in parts], bool)
        freed_by = self._freed_by([*map(times.last_names_of, self.ends)], slices)
        self.parts = [part for part in parts if part is not None]
        """The part of each slice."""
        is_row = exists[slice_of_row]
        timers, slice_of_row = timers[is_row], slice_of_row[is_row]
        if (timers > freed_by[slice_of_row]).any() or any(getattr(part, "moved", 0) for part in self.parts):
            raise NotInColumnsError
        self.timers, window_of_row = np.unique(timers, return_inverse=True)
        """For each window, the place of its timer."""
        self.layout = Layout.of(window_of_row, len(self.timers))
        """Layout of the slices, by window."""
        self.part_of_row = pa.array((np.cumsum(exists) - 1)[slice_of_row])
        """For each row of the layout, the place of its part."""
        is_freed = exists & (freed_by < len(self._keys))
        self.freed = NamespaceColumns(owners.key_numbers[is_freed], owners.names.filter(pa.array(is_freed)))
        """Slices that no later window has."""

    def _by_timer(self, named: Sequence[Sequence[str]]) -> tuple[Numbers, Numbers]:
        """Return a row for each timer and slice, in order of the timers. `named` are the names of the slices by end."""
        places = {name: place for place, name in enumerate(self._names)}
        timers, names = expanded([[places[name] for name in of_end] for of_end in named], self.end_of_timer)
        return timers, self._keys[timers] * len(self._names) + names

    def _freed_by(self, last_of: Sequence[Sequence[str]], slices: Numbers) -> Numbers:
        """Return for each slice the first timer behind which it is freed; the number of timers for a slice that stays."""
        timers, freed = self._by_timer(last_of)
        first = np.full(len(slices), len(self._keys))
        np.minimum.at(first, np.searchsorted(slices, freed), timers)
        return first

    def summed(self, numbers: Sequence[int]) -> Numbers:
        """Return the sum of the numbers of each window's parts."""
        rows = pa.array(numbers, pa.int64()).take(self.part_of_row)
        nothing = [0] * len(self.timers)
        return self.layout.running_sum(self.layout.placed(nothing, rows).to_numpy())[self.layout.ends]


def _joined(parts: Sequence[FiredColumns]) -> FiredColumns:
    """Return what several parts of the timers do together, in the order of the timers."""
    columns = [pa.concat_arrays(column) for column in zip(*(_columns(part.emitted) for part in parts), strict=True)]
    order = pc.sort_indices(columns[0])
    keys, names = zip(*(part.removed for part in parts), strict=True)
    removed = NamespaceColumns(np.concatenate(keys), pa.concat_arrays(names))
    return FiredColumns(EmittedColumns(*(column.take(order) for column in columns)), removed)


def _columns(emitted: EmittedColumns) -> Iterator[pa.Array]:
    return (getattr(emitted, field.name) for field in fields(emitted))


def _is_plain(field: msgspec.structs.FieldInfo) -> bool:
    """Return whether columns hold the values of a field as records do. Decimals of one sum may differ in their digits."""
    return is_plain(field) and annotated_type(field.type).type is not Decimal


def expanded(lists: Sequence[Sequence[int]], list_of_row: Numbers) -> tuple[Numbers, Numbers]:
    """Return the number of a row, and a value, for each value of the list of each row."""
    sizes = np.array([*map(len, lists)], np.int64)
    rows = np.repeat(np.arange(len(list_of_row)), sizes[list_of_row])
    begins = np.cumsum(sizes) - sizes
    before = np.cumsum(sizes[list_of_row]) - sizes[list_of_row]
    places = np.arange(len(rows)) - before[rows] + begins[list_of_row[rows]]
    return rows, np.array([*chain.from_iterable(lists)], np.int64)[places]
