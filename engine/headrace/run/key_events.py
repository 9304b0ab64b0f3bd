"""All that happens to keys in a micro-batch, for a function that takes it with one call.

Of a key with a record that has to come alone, everything comes one by one. Keys do not depend on each other, so some of them become
objects at a time:

    rows        b3 a1 b1 c2 a2      sorted by key    a1 a2 | b3 b1 | c2
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import KeyedColumns
from headrace.api.key_events import EventFunction, KeyEvents, KeyTimer
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.run.rows import ROWS_AT_ONCE, Takes, elements_of
from headrace.state.codec import decode_key
from headrace.state.timers import EVENT_TIME, Timer, make_timer

Records = dict[bytes, list[Element]]
"""Records of some keys, in arrival order."""


@dataclass(frozen=True, slots=True)
class EventWork:
    """Work of one operator on the keys of one task. `watermarks` are all of the micro-batch, in their order, `before` is the last one before it (ms)."""

    process: KeyedProcess
    function: EventFunction
    watermarks: Sequence[Watermark]
    before: int
    takes: Takes

    def run(self, rows: pa.RecordBatch | None, columns: KeyedColumns | None) -> pa.RecordBatch | None:
        """Process all records of the micro-batch, and the timers that are due, but those of some keys; return the records of these. `columns` are the rows as columns."""
        left = set[bytes]() if columns is None else self._single_keys(columns)
        keys = [] if columns is None else columns.keys
        timers = {key: of_key for key, of_key in self._timers().items() if key not in left}
        if not self._reads_together(
            {*keys, *timers}, (0 if rows is None else len(rows)) + len(self.process.timers.live)
        ):
            return rows
        for records in self._records(rows, columns, left):
            left |= self._take(records, {key: timers.pop(key, ()) for key in records})
        keys = sorted(timers)
        for start in range(0, len(keys), ROWS_AT_ONCE):
            left |= self._take({}, {key: timers.pop(key) for key in keys[start : start + ROWS_AT_ONCE]})
        self._take_timers(left)
        return None if rows is None else _rows_of(rows, left)

    def _single_keys(self, columns: KeyedColumns) -> set[bytes]:
        """Return the keys whose records have to come one by one."""
        singly = self.function.taken_singly(columns)
        return set() if singly is None else {columns.keys[key] for key in np.flatnonzero(singly).tolist()}

    def _timers(self) -> dict[bytes, list[KeyTimer]]:
        """Return the timers of event time that are due, by key."""
        by_key: dict[bytes, list[KeyTimer]] = {}
        for timestamp, key, domain, namespace in self.process.timers.live:
            if domain == EVENT_TIME:
                by_key.setdefault(key, []).append((timestamp, namespace))
        return by_key

    def _reads_together(self, keys: set[bytes], most: int) -> bool:
        """Return whether the caches hold what these keys read."""
        return all(store.reads_together([*keys]) and most <= store.cache_limit for store in self.process.stores)

    def _records(
        self, rows: pa.RecordBatch | None, columns: KeyedColumns | None, others: set[bytes]
    ) -> Iterator[Records]:
        """Yield the records by key, some keys at a time, but those of other keys."""
        if rows is None or columns is None:
            return
        ranks = np.empty(len(columns.keys), np.int64)
        by_rank = np.argsort(np.array(columns.keys, object))
        ranks[by_rank] = np.arange(len(ranks))
        of_row = ranks[columns.key_numbers.to_numpy()]
        order = np.argsort(of_row, kind="stable")
        starts = np.searchsorted(of_row[order], np.arange(len(ranks) + 1))
        rows = rows.take(pa.array(order))
        first = 0
        while first < len(ranks):
            end = max(first + 1, int(np.searchsorted(starts, starts[first] + ROWS_AT_ONCE, "right")) - 1)
            elements = elements_of(rows.slice(starts[first], starts[end] - starts[first]), self.takes)
            bounds = (starts[first : end + 1] - starts[first]).tolist()
            names = (columns.keys[number] for number in by_rank[first:end].tolist())
            yield {
                key: elements[begin:stop]
                for key, begin, stop in zip(names, bounds[:-1], bounds[1:], strict=True)
                if key not in others
            }
            first = end

    def _take(self, records: Records, timers: Mapping[bytes, Sequence[KeyTimer]]) -> set[bytes]:
        """Process records and timers of some keys; return the keys that are left."""
        process = self.process
        states = {store.name: store for store in process.stores}
        for store in process.stores:
            store.make_room()
        events = KeyEvents([*timers], records, timers, self.before, self.watermarks[-1].timestamp, decode_key, states)
        results = self.function.process_events(events)
        left = results.left
        for store in process.stores if left else ():
            store.forget(left)
        for timer in _timers_of(results.registered):
            process.timers.register(timer)
        process.timers.register_unread(_timers_of(results.first))
        process.timers.fired += results.unregistered
        process.emit(results.emitted, self.watermarks)
        process.count(sum(len(of_key) for key, of_key in records.items() if key not in left), 0)
        return left

    def _take_timers(self, left: set[bytes]) -> None:
        """Take all timers of event time that were due, but those of keys that are left."""
        service = self.process.timers
        fired = [timer for timer in service.live if timer.domain == EVENT_TIME and timer.key_json not in left]
        service.take_together(fired, 0)


def _timers_of(timers: Iterable[tuple[bytes, KeyTimer]]) -> Iterator[Timer]:
    return (make_timer((timestamp, key, EVENT_TIME, namespace)) for key, (timestamp, namespace) in timers)


def _rows_of(rows: pa.RecordBatch, keys: Iterable[bytes]) -> pa.RecordBatch | None:
    """Return the rows of some keys; None without any."""
    names = [*keys]
    return rows.filter(pc.is_in(rows["key"], pa.array(names, rows["key"].type))) if names else None
