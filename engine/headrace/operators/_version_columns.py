"""Versions over columns: state, changes and timers of `HistoryFunction`, bit for bit.

Where the events of a key come in the order of their sequence, behind the stored ones, each event follows the one before it, and changes the
last version alone: columns make these versions. The events of other keys are put in their places one by one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.api.batches import ChangedEntry, ColumnResults, ColumnTimer, EmittedColumns, KeyedColumns
from headrace.api.records import RowKind
from headrace.operators._change_events import ChangeEvents, ValidFrom
from headrace.operators._column_changes import are_other, differ
from headrace.operators._column_lifetimes import last_watermarks
from headrace.operators._column_records import ColumnRecords
from headrace.operators._event_columns import EventColumns, fit_columns
from headrace.operators._event_links import EventLinks, row_of
from headrace.operators._event_time import LAST_TIME
from headrace.operators._ranking import whole_number_texts
from headrace.operators._reordered_versions import Arrived, ReorderedVersions
from headrace.operators._running_fields import NOT_IN_COLUMNS, Flags, Numbers, of_type
from headrace.operators._value_types import are_equal

Objects = npt.NDArray[np.object_]


class VersionColumns:
    """Makes the versions of each key in columns."""

    def __init__(self, events: ChangeEvents, event: Any) -> None:
        """Take what reads the events, and the type of a stored event."""
        self._events = events
        self._event = event

    @property
    def is_complete(self) -> bool:
        """Return whether columns can order the events and compare the rows. Values that replace nulls need all events before them."""
        rules = self._events.rules
        return rules.has_versions and not rules.ignore_nulls and fit_columns(self._events)

    def results(self, columns: KeyedColumns) -> ColumnResults | None:
        """Return the results of the events; None if all have to be processed one by one."""
        with contextlib.suppress(*NOT_IN_COLUMNS):
            events = EventColumns(self._events, columns)
            chains = _Chains(events)
            if not chains.left.all():
                return self._results(_Versions(chains))
        return None

    def _results(self, versions: _Versions) -> ColumnResults | None:
        """Return the state of each key behind its events, and the changes of its versions."""
        chains = versions.chains
        values, written = [*chains.columns.values], list[int | None]([None]) * len(chains.stored)
        for key, place, at in versions.latest():
            values[key], written[key] = place, at
        others = ReorderedVersions(EventLinks(self._events), chains.columns)
        changed, left = others.results(chains.stored, chains.arrived(self._event))
        for key, (place, at) in changed.latest.items():
            values[key], written[key] = place, at
        chains.left[[*left]] = True
        return ColumnResults(
            values,
            _together(versions.emitted(), changed.columns(chains.columns)),
            timers=[*versions.timers(), *changed.timers],
            entries=[*versions.entries(self._event), *changed.entries],
            timestamps=written,
            left=chains.left if chains.left.any() else None,
        )


class _Chains:
    """Events of each key, each behind the one before it. Places are those of the layout, which begins each key with its last stored event.

    `left` says which keys are left: one of their events has no place, or timers decide between them. `reordered` says which others have events in
    another order.
    """

    def __init__(self, events: EventColumns) -> None:
        """Read the last stored event of each key."""
        self.events, self.columns = events, events.columns
        latest = self.columns.values
        known = [(key, place) for key, place in enumerate(latest) if place is not None]
        self.stored: list[Any] = [None] * len(latest)
        for (key, _), event in zip(known, self.columns.read_entries(known), strict=True):
            self.stored[key] = event
        self.records = ColumnRecords(self.columns, [None if event is None else row_of(event) for event in self.stored])
        self.layout = self.records.layout
        self.places = [
            self._placed([0 if event is None else getattr(event.sequence, name) for event in self.stored], places)
            for name, places in zip(events.reader.rules.sequence_by, events.places(), strict=True)
        ]
        """The fields of the sequence."""
        is_lower, is_equal = self._against_next()
        self.left = self._left()
        self.reordered = np.zeros(len(self.left), bool)
        self.reordered[self.layout.segments[is_lower]] = True
        self.reordered &= ~self.left
        self.is_repeated = is_equal & ~self._is_apart
        """Whether an event has the place of the one before it: it is the same event again."""
        self._check_repeated()

    def _placed(self, stored: Sequence[int], records: Numbers) -> Numbers:
        placed: Numbers = self.layout.placed(stored, pa.array(records)).to_numpy()
        return placed

    def _against_next(self) -> tuple[Flags, Flags]:
        """Return for each event whether it comes before the one that arrived before it, in the sequence, and whether it has its place."""
        is_lower, is_equal = np.zeros(len(self.layout.order), bool), ~self.layout.is_stored
        has_event = np.ones(len(self.layout.order), bool)
        has_event[self.layout.starts] = [event is not None for event in self.stored]
        is_equal[1:] &= has_event[:-1]
        for numbers in self.places:
            is_lower[1:] |= is_equal[1:] & (numbers[1:] < numbers[:-1])
            is_equal[1:] &= numbers[1:] == numbers[:-1]
        return is_lower, is_equal

    @property
    def _is_apart(self) -> Flags:
        """Return for each place whether columns do not make the versions of its key."""
        return (self.left | self.reordered)[self.layout.segments]

    def _left(self) -> Flags:
        """Return for each key whether one of its events has no place, or timers decide between them."""
        events, columns, rules = self.events, self.columns, self.events.reader.rules
        marked = events.has_no_place | events.is_forgotten
        if rules.corrections is not None:
            marked |= columns.timestamps.to_numpy() + rules.corrections <= columns.watermarks
        left = np.zeros(len(self.stored), bool)
        left[events.key_numbers[marked]] = True
        left |= [event is None and place is not None for place, event in zip(columns.values, self.stored, strict=True)]
        if rules.tombstones is not None:
            deleted = [LAST_TIME if event is None or event.record is not None else event.at for event in self.stored]
            left |= np.array(deleted) + rules.tombstones <= np.array(last_watermarks(columns))
        return left

    def _check_repeated(self) -> None:
        """Leave the keys with an event that differs from the one of its place."""
        at = np.flatnonzero(self.is_repeated)
        records = self._kept_at(np.stack([at, at - 1], axis=1).ravel())
        for key, record, before in zip(
            self.layout.segments[at].tolist(), records[::2].tolist(), records[1::2].tolist(), strict=True
        ):
            if not are_equal(record, before):
                self.left[key] = True
        self.is_repeated &= ~self._is_apart

    def _kept_at(self, places: Numbers) -> Objects:
        """Return what is stored of the events at some places: the record, None of a deletion."""
        is_stored = self.layout.is_stored[places]
        records = np.empty(len(places), object)
        records[is_stored] = [self.stored[key].record for key in self.layout.segments[places[is_stored]].tolist()]
        rows = self.records.row_of(places[~is_stored])
        records[~is_stored] = self.kept_records(rows)
        return records

    def kept_records(self, rows: Numbers) -> list[Any]:
        """Return what is stored of some events, by their numbers."""
        deletes = self.events.deletes[rows].tolist()
        return [
            None if is_deletion else record
            for record, is_deletion in zip(self.records.objects(rows), deletes, strict=True)
        ]

    @cached_property
    def is_new(self) -> Flags:
        """Return for each place whether its event is stored."""
        return ~self.layout.is_stored & ~self.is_repeated & ~self._is_apart

    def arrived(self, event: Any) -> dict[int, list[Arrived]]:
        """Return the events of each reordered key in the order of their arrival, in the type of a stored event."""
        places = np.flatnonzero(self.reordered[self.layout.segments] & ~self.layout.is_stored)
        rows = self.records.row_of(places)
        events = map(event, self.records.times(places), self.sequences(places), self.kept_records(rows))
        arrived = map(Arrived, rows.tolist(), self.texts(places), events, self.columns.watermarks[rows].tolist())
        by_key: dict[int, list[Arrived]] = {}
        for key, of_key in zip(self.layout.segments[places].tolist(), arrived, strict=True):
            by_key.setdefault(key, []).append(of_key)
        return by_key

    def sequences(self, places: Numbers) -> list[Any]:
        """Return the sequence of some events."""
        return [*map(self.events.reader.sequence, *(numbers[places].tolist() for numbers in self.places))]

    def texts(self, places: Numbers) -> list[str]:
        """Return the texts that sort some events."""
        return [
            *map("".join, zip(*(whole_number_texts(numbers[places].tolist()) for numbers in self.places), strict=True))
        ]

    @cached_property
    def last(self) -> Numbers:
        """Return for each place that of the last event up to it, or where its key begins."""
        known = np.where(self.is_new | self.layout.is_stored, np.arange(len(self.layout.order)), 0)
        return np.maximum.accumulate(known)

    @cached_property
    def before(self) -> Numbers:
        """Return for each place that of the event before it, or where its key begins."""
        return np.concatenate([[0], self.last[:-1]])


class _Versions:
    """The version behind each event. Places are those of the layout."""

    def __init__(self, chains: _Chains) -> None:
        """Find the events that open versions."""
        self.chains, self.layout = chains, chains.layout
        stored, events = chains.stored, chains.events
        has_row = [event is not None and event.record is not None for event in stored]
        self.has_row: Flags = self.layout.placed(has_row, pa.array(~events.deletes)).to_numpy(zero_copy_only=False)
        self.had_row: Flags = self.has_row[chains.before] & chains.is_new
        self.opens: Flags = self.has_row & chains.is_new
        both = np.flatnonzero(self.opens & self.had_row)
        self.opens[both] = self._compared(differ, events.reader.tracked, both)
        opened = np.where(self.opens | self.layout.is_stored, np.arange(len(self.layout.order)), 0)
        self.opener = np.maximum.accumulate(opened)
        """For each place, that of the event which opened its version, or where its key begins."""

    def _compared(self, compare: Callable[[Any, Any], Flags], names: Sequence[str], places: Numbers) -> Flags:
        """Return whether some fields of the rows at some places differ from those of the row before, as `compare` says."""
        records, before, differs = self.chains.records, self.chains.before[places], np.zeros(len(places), bool)
        for name in names:
            differs |= compare(records.values(name, places), records.values(name, before))
        return differs

    @cached_property
    def times(self) -> Numbers:
        """Return the event time of each version (ms)."""
        began = [0 if event is None else event.began for event in self.chains.stored]
        times: Numbers = self.layout.placed(began, self.chains.columns.timestamps).to_numpy()
        return times[self.opener]

    def emitted(self) -> EmittedColumns:
        """Return what is emitted: the change of the version before, `-U` and `+U`, and the new version."""
        goes_on = np.flatnonzero(self.had_row & self.has_row & ~self.opens)
        changes = self.had_row.copy()
        changes[goes_on] = self._compared(are_other, self.chains.events.reader.copied, goes_on)
        places = np.flatnonzero(changes | self.opens)
        places = places[np.argsort(self.layout.order[places], kind="stable")]
        updates = changes[places]
        outputs = 2 * updates + self.opens[places]
        at = np.repeat(places, outputs)
        indices = np.arange(len(at)) - np.repeat(np.cumsum(outputs) - outputs, outputs)
        is_update = np.repeat(updates, outputs) & (indices <= 1)
        ends = is_update & (indices == 1) & (self.opens[at] | ~self.has_row[at])
        shown = np.where(is_update & ((indices == 0) | ends), self.chains.before[at], at)
        kinds = np.where(is_update, np.where(indices == 0, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER), RowKind.INSERT)
        return EmittedColumns(
            rows=pa.array(self.layout.order[at] - len(self.layout.starts)),
            indices=pa.array(indices.astype(np.int32)),
            timestamps=pa.array(self.times[shown]),
            kinds=pa.array(kinds.astype(np.int32)),
            records=self._rows(shown, pa.array(at), pa.array(ends)),
        )

    def _rows(self, shown: Numbers, at: pa.Array, ends: pa.BooleanArray) -> pa.StructArray:
        """Return versions with the rows of some places. Some end at the places `at`."""
        reader, columns = self.chains.events.reader, self.chains.columns
        arrays = []
        for field in columns.result_type:
            mark = reader.bounds.get(field.name)
            if mark is None:
                arrays.append(of_type(self.chains.records.values(field.name, shown), field.type))
                continue
            number = reader.rules.sequence_by.index(str(mark.field))
            if isinstance(mark, ValidFrom):
                arrays.append(pa.array(self._begins(number)[self.opener[shown]], field.type))
            else:
                places = self.chains.places[number][at.to_numpy()]
                arrays.append(pa.array(places, field.type, mask=~ends.to_numpy(zero_copy_only=False)))
        return pa.StructArray.from_arrays(arrays, fields=list(columns.result_type))

    def _begins(self, number: int) -> Numbers:
        """Return a field of the place where a version begins that an event opens, or that is stored."""
        name = self.chains.events.reader.rules.sequence_by[number]
        begins = self.chains.places[number].copy()
        begins[self.layout.starts] = [
            0 if event is None or event.begins is None else getattr(event.begins, name) for event in self.chains.stored
        ]
        return begins

    def entries(self, event: Any) -> list[ChangedEntry]:
        """Return the events to be stored, in the order of their keys, in the type of a stored event."""
        chains, has_row = self.chains, self.has_row[self.places]
        sequences, begins = chains.sequences(self.places), np.empty(len(self.layout.order), object)
        begins[self.layout.starts] = [None if stored is None else stored.begins for stored in chains.stored]
        begins[self.places] = sequences
        begins_of, began = begins[self.opener[self.places]], self.times[self.places]
        begins_of[~has_row], began[~has_row] = None, 0
        times = chains.records.times(self.places)
        events = map(
            event,
            times,
            sequences,
            chains.kept_records(chains.records.row_of(self.places)),
            self.texts[chains.before[self.places]].tolist(),
            begins_of.tolist(),
            began.tolist(),
        )
        return [*map(ChangedEntry, self.layout.segments[self.places].tolist(), self._new_texts, events, times)]

    def latest(self) -> Iterator[tuple[int, str, int]]:
        """Yield the keys with new events, the text of the last one's place, and its event time (ms)."""
        last = self.chains.last[self.layout.ends]
        last = last[self.chains.is_new[last]]
        yield from zip(
            self.layout.segments[last].tolist(), self.texts[last].tolist(), self.chains.records.times(last), strict=True
        )

    @cached_property
    def places(self) -> Numbers:
        """Return the places of events to be stored."""
        return np.flatnonzero(self.chains.is_new)

    @cached_property
    def _new_texts(self) -> list[str]:
        return self.chains.texts(self.places)

    @cached_property
    def texts(self) -> Objects:
        """Return the texts of the places in the sequence."""
        texts = np.empty(len(self.layout.order), object)
        texts[self.layout.starts], texts[self.places] = self.chains.columns.values, self._new_texts
        return texts

    def timers(self) -> list[ColumnTimer]:
        """Return the timers that free the events."""
        rules = self.chains.events.reader.rules
        places = self.places
        rows = self.chains.records.row_of(places)
        times: Numbers = self.chains.columns.timestamps.to_numpy()[rows]
        keys = self.layout.segments[places]
        due = [np.empty((2, 0), np.int64)]
        if rules.corrections is not None:
            due.append(_ends(keys, times - times % rules.corrections, 2 * rules.corrections))
        if rules.tombstones is not None:
            deletes = ~self.has_row[places]
            due.append(_ends(keys[deletes], times[deletes], rules.tombstones))
        timers = np.concatenate(due, axis=1)
        timers = timers[:, np.lexsort(timers)]
        is_other = np.ones(timers.shape[1], bool)
        is_other[1:] = (timers[:, 1:] != timers[:, :-1]).any(axis=0)
        return [*map(ColumnTimer, *timers[:, is_other].tolist())]


def _ends(keys: Numbers, begins: Numbers, length: int) -> Numbers:
    """Return the keys with lengths of event time, and their ends (ms), but for those that last for ever."""
    ends = begins <= LAST_TIME - length
    return np.stack([keys[ends], begins[ends] + length])


def _together(*parts: EmittedColumns) -> EmittedColumns:
    """Return what parts emit, in the order of the events."""
    given = [part for part in parts if len(part.rows)]
    if len(given) != len(parts):
        return given[0] if given else parts[0]
    rows, indices, timestamps, kinds, records = (
        pa.concat_arrays([getattr(part, name) for part in parts])
        for name in ("rows", "indices", "timestamps", "kinds", "records")
    )
    order = pa.array(np.lexsort((indices.to_numpy(), rows.to_numpy())))
    return EmittedColumns(*(column.take(order) for column in (rows, indices, timestamps, kinds, records)))
