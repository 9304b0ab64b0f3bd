"""Versions of keys whose events come in another order than that of their sequence: event by event, on stored events that are read together."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.api.batches import ChangedEntry, ColumnTimer, EmittedColumns, KeyedColumns
from headrace.api.records import RowKind
from headrace.operators._event_links import EventLinks, emit_rows
from headrace.operators._value_types import are_equal, are_identical


class Arrived(NamedTuple):
    """Event of a micro-batch: its number, the text of its place, the event without links, and the last watermark before it (ms)."""

    row: int
    place: str
    event: Any
    watermark: int


class Emitted(NamedTuple):
    """Emitted row: the number of the event that it belongs to, its number among those of the event, and what `collect` gets."""

    row: int
    number: int
    timestamp: int
    kind: int
    record: Any


_place_of = itemgetter(0, 1)


@dataclass
class Reordered:
    """Changes of state, rows and timers of some keys. As a context, it takes the rows that an event emits."""

    emitted: list[Emitted] = field(default_factory=list)
    entries: list[ChangedEntry] = field(default_factory=list)
    timers: list[ColumnTimer] = field(default_factory=list)
    latest: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By key, the place of its last event, if it is another one, and the event time of the event that has written it last (ms)."""

    row: int = 0
    index: int = 0

    def collect(self, record: Any, kind: RowKind = RowKind.INSERT, *, timestamp: int) -> None:
        """Emit a row."""
        self.emitted.append(Emitted(self.row, self.index, timestamp, int(kind), record))
        self.index += 1

    def add(self, other: Reordered) -> None:
        """Add what the events of another key change and emit."""
        self.emitted += other.emitted
        self.entries += other.entries
        self.timers += other.timers
        self.latest |= other.latest

    def columns(self, columns: KeyedColumns) -> EmittedColumns:
        """Return what is emitted as columns, in the order of the events."""
        emitted = sorted(self.emitted, key=_place_of)
        rows, numbers, timestamps, kinds, records = zip(*emitted, strict=True) if emitted else [()] * 5
        return EmittedColumns(
            pa.array(rows, pa.int64()),
            pa.array(numbers, pa.int32()),
            pa.array(timestamps, pa.int64()),
            pa.array(kinds, pa.int32()),
            columns.results_of(records),
        )


class _Chain:
    """Last events of a key in the order of their sequence, and the texts of their places: all that may change."""

    def __init__(self, place: str | None, event: Any) -> None:
        """Take the last stored event, if there is one."""
        self.places, self.events = ([], []) if place is None else ([place], [event])

    def missing(self, place: str) -> str | None:
        """Return the place of the next event to be read, back from the last one, until one is not behind `place`; None if all are here."""
        before: str | None = self.events[0].before if self.events and self.places[0] > place else None
        return before


class ReorderedVersions:
    """Puts the events of keys in their places."""

    def __init__(self, links: EventLinks, columns: KeyedColumns) -> None:
        """Take what links events, and the events as columns."""
        self._links = links
        self._columns = columns

    def results(self, stored: Sequence[Any], arrived: dict[int, list[Arrived]]) -> tuple[Reordered, set[int]]:
        """Return what the events of some keys change and emit, and the keys that are left: one of their events is late, or refused.

        `stored` has the last stored event of each key.
        """
        chains = {key: _Chain(self._columns.values[key], stored[key]) for key in arrived}
        left, results = self._read(chains, arrived), Reordered()
        for key, events in arrived.items():
            changed = None if key in left else self._put(key, chains[key], events)
            if changed is None:
                left.add(key)
            else:
                results.add(changed)
        return results, left

    def _read(self, chains: dict[int, _Chain], arrived: dict[int, list[Arrived]]) -> set[int]:
        """Read the stored events back to the one before the first place, for all keys at once; return the keys where one is missing, or final."""
        first = {key: min(event.place for event in events) for key, events in arrived.items()}
        last = {key: events[-1].watermark for key, events in arrived.items()}
        left: set[int] = set()
        while unread := [
            (key, place)
            for key, chain in chains.items()
            if key not in left and (place := chain.missing(first[key])) is not None
        ]:
            for (key, place), event in zip(unread, self._columns.read_entries(unread), strict=True):
                chain = chains[key]
                if event is None or self._links.is_final(chain.events[0], last[key]):
                    left.add(key)
                chain.places.insert(0, place)
                chain.events.insert(0, event)
        return left

    def _put(self, key: int, chain: _Chain, arrived: Iterable[Arrived]) -> Reordered | None:
        """Return what the events of a key change and emit; None if one is late, or refused."""
        changed, written = Reordered(), dict[str, tuple[Any, int]]()
        for row, place, event, watermark in arrived:
            number = bisect_right(chain.places, place)
            if any(self._links.is_final(later, watermark) for later in chain.events[number:]):
                return None
            if number and chain.places[number - 1] == place:
                if not are_equal(event.record, chain.events[number - 1].record):
                    return None
                continue
            changed.row, changed.index = row, 0
            written |= self._insert(chain, place, event, changed)
            is_last = chain.places[-1] == place
            changed.timers += (ColumnTimer(key, end) for end in self._links.timers(event, is_last=is_last))
            if is_last:
                changed.latest[key] = place, event.at
        changed.entries += (ChangedEntry(key, place, event, at) for place, (event, at) in written.items())
        return changed

    def _insert(self, chain: _Chain, place: str, event: Any, changed: Reordered) -> dict[str, tuple[Any, int]]:
        """Put an event in its place, and emit the changes of the rows from there on; return what is written, with its event time (ms)."""
        at = bisect_left(chain.places, place)
        before, later = chain.events[max(at - 1, 0) : at], [*zip(chain.places[at:], chain.events[at:], strict=True)]
        new = self._links.linked(event, chain.places[at - 1] if at else None, before[0] if before else None)
        behind = self._links.relinked(new, place, later)
        after = self._links.versions([*before, new, *behind])
        emit_rows(changed, self._links.versions([*before, *chain.events[at:]]), after)
        chain.places.insert(at, place)
        chain.events[at:] = [new, *behind]
        pairs = zip(later, behind, strict=True)
        relinked = {text: (other, event.at) for (text, old), other in pairs if not are_identical(other, old)}
        return {place: (new, event.at), **relinked}
