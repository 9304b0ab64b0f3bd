"""Last records over columns: state and changes of `LastByTimeFunction` and `LastArrivalFunction`, bit for bit."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from headrace.api.batches import ColumnResults, KeyedColumns
from headrace.api.ttl import StateTtl
from headrace.operators._column_changes import ColumnChanges
from headrace.operators._column_lifetimes import may_expire_before
from headrace.operators._column_records import ColumnRecords
from headrace.operators._running_fields import NOT_IN_COLUMNS, Flags, Layout, Numbers, keys_with, retractions


class LastRecordColumns:
    """Finds the last record of each key in columns: by event time, of equal ones the last to arrive, or by arrival alone."""

    def __init__(self, kept: Any, ttl: StateTtl | None, *, by_arrival: bool) -> None:
        """Take the type of the state, and its TTL."""
        self._kept = kept
        self._ttl = ttl
        self._by_arrival = by_arrival

    def taken_singly(self, columns: KeyedColumns) -> Flags | None:
        """Return for each key whether it has a retraction, or may expire between two of its records; None if none does."""
        return keys_with(retractions(columns) | may_expire_before(columns, self._ttl), columns)

    def results(self, columns: KeyedColumns) -> ColumnResults | None:
        """Return the last record of each key, and the changes; None where a stored record does not fit the columns.

        A stored record that stays is younger than the records that come before its end: of these, `may_expire_before` has told.
        """
        with contextlib.suppress(*NOT_IN_COLUMNS):
            return self._results(columns)
        return None

    def _results(self, columns: KeyedColumns) -> ColumnResults:
        stored = columns.values
        records = ColumnRecords(columns, [None if kept is None else kept.record for kept in stored])
        layout = records.layout
        is_there = ~layout.is_stored
        is_there[layout.starts] = [kept is not None for kept in stored]
        times: Numbers = layout.placed(
            [0 if kept is None else kept.at for kept in stored], columns.timestamps
        ).to_numpy()
        last = layout.running_best(self._ranks(layout, times), is_there, takes_equal=True)
        replaces, before = layout.replacing(last)
        changes = ColumnChanges(layout, replaces, before, replaces & is_there[before], np.ones(len(last), bool))
        values, written = self._values(records, last, stored)
        emitted = changes.emitted(times, records.rows)
        return ColumnResults(values, emitted, timestamps=None if self._by_arrival else written)  # by arrival, all write

    def _ranks(self, layout: Layout, times: Numbers) -> Numbers:
        """Return numbers from 1 on that sort like the records."""
        if self._by_arrival:
            return np.where(layout.is_stored, 1, layout.order + 1)
        ranks: Numbers = np.unique(times, return_inverse=True)[1] + 1
        return ranks

    def _values(self, records: ColumnRecords, last: Numbers, stored: Any) -> tuple[list[Any], list[int | None]]:
        """Return the state of each key, and the event time of the record that wrote it (ms), None if none has."""
        ends = last[records.layout.ends]
        keys = np.flatnonzero(~records.layout.is_stored[ends])
        values, written = [*stored], list[int | None]([None]) * len(stored)
        given = zip(keys.tolist(), records.objects(records.row_of(ends[keys])), records.times(ends[keys]), strict=True)
        for key, record, at in given:
            values[key], written[key] = self._kept(at=at, record=record, emitted=True), at
        return values, written
