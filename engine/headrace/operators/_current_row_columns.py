"""Current rows over columns: state, changes and timers of `CurrentRowsFunction`, bit for bit."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.api.batches import ColumnResults, ColumnTimer, KeyedColumns
from headrace.operators._change_events import ChangeEvents
from headrace.operators._column_changes import ColumnChanges, are_other
from headrace.operators._column_lifetimes import last_watermarks
from headrace.operators._column_records import ColumnRecords
from headrace.operators._event_columns import EventColumns, fit_columns
from headrace.operators._event_time import LAST_TIME
from headrace.operators._ranking import whole_numbers_of
from headrace.operators._running_fields import (
    NOT_IN_COLUMNS,
    Flags,
    NotInColumnsError,
    Numbers,
    keys_with,
)
from headrace.operators._value_types import are_equal


class CurrentRowColumns:
    """Finds the last event of each key in columns."""

    def __init__(self, events: ChangeEvents, last: Any) -> None:
        """Take what reads the events, and the type of the state."""
        self._events = events
        self._last = last

    @property
    def is_complete(self) -> bool:
        """Return whether columns can order the events and compare the rows, and neither needs code of its class."""
        return fit_columns(self._events)

    def taken_singly(self, columns: KeyedColumns) -> Flags | None:
        """Return for each key whether its events have to come singly; None if none has to.

        These are keys with a row before an update, an event without a place, two events with one place, or a deletion that may be
        forgotten before the last event.
        """
        with contextlib.suppress(*NOT_IN_COLUMNS):
            return _Events(self._events, columns).taken_singly()
        return np.ones(len(columns.keys), bool)

    def results(self, columns: KeyedColumns) -> ColumnResults | None:
        """Return the results of the events; None if they have to be processed one by one."""
        with contextlib.suppress(*NOT_IN_COLUMNS):
            return _CurrentRows(_Events(self._events, columns)).results(self._last)
        return None


class _Events(EventColumns):
    """Events of which the order of each key's alone decides, or which have to come singly."""

    def taken_singly(self) -> Flags | None:
        """Return for each key whether its events have to come singly; None if none has to."""
        return keys_with(self.has_no_place | self._has_equal() | self.is_forgotten, self.columns)

    def _has_equal(self) -> Flags:
        """Return for each event whether another one of its key has the same place in the sequence."""
        places = np.stack([self.key_numbers, *self.places()])
        order = np.lexsort(places)
        equals_next = (places[:, order[1:]] == places[:, order[:-1]]).all(axis=0)
        marked = np.zeros(len(order), bool)
        marked[order[1:][equals_next]] = True
        return marked


class _CurrentRows:
    """The row of each key behind each event. Places are those of the layout."""

    def __init__(self, events: _Events) -> None:
        """Lay the events behind the stored ones. Raises `NotInColumnsError` where order alone does not decide."""
        self._events, self._columns = events, events.columns
        self._stored: Sequence[Any] = events.columns.values
        self._records = ColumnRecords(events.columns, [None if last is None else last.record for last in self._stored])
        self._layout = layout = self._records.layout
        ranks = self._ranks()
        self._check_lifetimes()
        self._check_equal(ranks)
        self._last = layout.running_best(ranks, ranks > 0, takes_equal=False)
        """For each place, the last event up to it."""
        has_row = [last is not None and last.record is not None for last in self._stored]
        self._has_row: Flags = layout.placed(has_row, pa.array(~events.deletes)).to_numpy(zero_copy_only=False)

    def _ranks(self) -> Numbers:
        """Return numbers from 1 on that sort like the sequence; 0 for no event."""
        ranks = np.zeros(len(self._layout.order), np.int64)
        known = [None if last is None else self._numbers_of(last.order) for last in self._stored]
        for number, places in enumerate(self._events.places()):
            stored = [0 if numbers is None else numbers[number] for numbers in known]
            distinct, of_place = np.unique(self._layout.placed(stored, pa.array(places)), return_inverse=True)
            ranks = np.unique(ranks * len(distinct) + of_place, return_inverse=True)[1]
        ranks += 1
        ranks[self._layout.starts[[last is None for last in self._stored]]] = 0
        return ranks

    def _numbers_of(self, order: str) -> list[int]:
        """Return the numbers of the text that sorts a stored event. Raises `NotInColumnsError` for one of another sequence."""
        numbers = whole_numbers_of(order)
        if len(numbers) != len(self._events.reader.rules.sequence_by):
            raise NotInColumnsError
        return numbers

    def _check_lifetimes(self) -> None:
        """Refuse stored deletions that may be forgotten before the last event of their key."""
        lifetime = self._events.reader.rules.tombstones
        both = zip(self._stored, last_watermarks(self._columns), strict=True)
        if lifetime is not None and any(
            last is not None and last.record is None and last.at + lifetime <= watermark for last, watermark in both
        ):
            raise NotInColumnsError

    def _check_equal(self, ranks: Numbers) -> None:
        """Refuse an event with the place of the stored one that is not equal to it."""
        layout = self._layout
        of_stored = ranks[layout.starts][layout.segments]
        equal = np.flatnonzero((ranks == of_stored) & ~layout.is_stored)
        rows = self._records.row_of(equal)
        keys = layout.segments[equal].tolist()
        for key, row, record in zip(keys, rows.tolist(), self._records.objects(rows), strict=True):
            if not are_equal(None if self._events.deletes[row] else record, self._stored[key].record):
                raise NotInColumnsError

    def results(self, last: Any) -> ColumnResults:
        """Return the last event of each key in the type of the state, and the changes of the rows."""
        layout, columns = self._layout, self._columns
        changes = self._changes()
        times = changes.times([0 if stored is None else stored.at for stored in self._stored], columns.timestamps)
        values, written = [*self._stored], list[int | None]([None]) * len(self._stored)
        ends = self._last[layout.ends]
        keys = np.flatnonzero(~layout.is_stored[ends])
        rows = self._records.row_of(ends[keys])
        given = zip(
            keys.tolist(),
            self._records.objects(rows),
            self._events.deletes[rows].tolist(),
            times[layout.ends[keys]].tolist(),
            self._records.times(ends[keys]),
            strict=True,
        )
        for key, record, deletes, at, timestamp in given:
            order = self._events.reader.text_of(record)
            values[key], written[key] = last(order=order, at=at, record=None if deletes else record), timestamp
        timers = self._timers(times)
        return ColumnResults(values, changes.emitted(times, self._records.rows), timers=timers, timestamps=written)

    def _changes(self) -> ColumnChanges:
        replaces, before = self._layout.replacing(self._last)
        had_row = replaces & self._has_row[before]
        both = np.flatnonzero(had_row & self._has_row)
        changes = replaces.copy()
        changes[both] = self._differ(both, before[both])
        return ColumnChanges(self._layout, changes, before, had_row, self._has_row)

    def _differ(self, places: Numbers, before: Numbers) -> Flags:
        differs = np.zeros(len(places), bool)
        for name in self._events.reader.copied:
            differs |= are_other(self._records.values(name, places), self._records.values(name, before))
        return differs

    def _timers(self, times: Numbers) -> list[ColumnTimer]:
        """Return the timers that forget deleted keys."""
        lifetime = self._events.reader.rules.tombstones
        if lifetime is None:
            return []
        replaces, _ = self._layout.replacing(self._last)
        deletions = np.flatnonzero(replaces & ~self._has_row & (times <= LAST_TIME - lifetime))
        keys = self._layout.segments[deletions].tolist()
        return [ColumnTimer(key, at) for key, at in zip(keys, (times[deletions] + lifetime).tolist(), strict=True)]
