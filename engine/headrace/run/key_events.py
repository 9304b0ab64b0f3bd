"""All that happens to keys in a micro-batch, for a function that takes it with one call.

Of a key with a record that has to come alone, everything comes one by one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.api.key_events import EventFunction, KeyEvents, KeyTimer
from headrace.execution.element import Element, Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.state.codec import decode_key
from headrace.state.timers import EVENT_TIME, Timer


@dataclass(frozen=True, slots=True)
class EventWork:
    """Work of one operator on the keys of one task. `watermarks` are all of the micro-batch, in their order."""

    process: KeyedProcess
    function: EventFunction
    watermarks: Sequence[Watermark]
    before: int

    def run(self, batches: Iterable[Sequence[Element]], others: Collection[bytes]) -> set[bytes] | None:
        """Process the elements and the timers that are due, but those of `others`; return the keys that are left. None if all are, and nothing has changed."""
        records = _by_key(batches)
        timers, registered = self._due(others)
        keys = sorted({*records, *timers})
        most = sum(map(len, records.values())) + len(registered)
        if not self._reads_together(keys, most):
            return None
        events = KeyEvents(
            keys,
            records,
            timers,
            self.before,
            self.watermarks[-1].timestamp,
            decode_key,
            {store.name: store for store in self.process.stores},
        )
        results = self.function.process_events(events)
        left = results.left
        for store in self.process.stores if left else ():
            store.forget(left)
        service = self.process.timers
        service.take_together((timer for timer in registered if timer.key_json not in left), results.unregistered)
        for key, timer in results.registered:
            service.register(Timer(timer.timestamp, key, namespace=timer.namespace))
        self.process.emit(results.emitted, self.watermarks)
        self.process.count(sum(len(taken) for key, taken in records.items() if key not in left), 0)
        return left

    def _due(self, others: Collection[bytes]) -> tuple[Mapping[bytes, list[KeyTimer]], list[Timer]]:
        """Return the timers of event time that are due, by key, and as they are registered."""
        by_key: dict[bytes, list[KeyTimer]] = {}
        registered = [
            timer for timer in self.process.timers.live if timer.domain == EVENT_TIME and timer.key_json not in others
        ]
        for timer in registered:
            by_key.setdefault(timer.key_json, []).append(KeyTimer(timer.timestamp, timer.namespace))
        return by_key, registered

    def _reads_together(self, keys: Sequence[bytes], most: int) -> bool:
        """Return whether the caches hold what these keys read."""
        return all(store.reads_together(keys) and most <= store.cache_limit for store in self.process.stores)


def _by_key(batches: Iterable[Sequence[Element]]) -> dict[bytes, list[Element]]:
    records: dict[bytes, list[Element]] = {}
    for batch in batches:
        for element in batch:
            of_key = records.get(element.key_json)
            if of_key is None:
                records[element.key_json] = [element]
            else:
                of_key.append(element)
    return records
