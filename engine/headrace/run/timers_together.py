"""Timers of many keys that fire together, behind all records of a micro-batch, for a function that takes them as columns.

Of a key with records that come one by one, the timers fire between these, and are none of them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import ColumnFunction, DueColumns, NamespaceColumns, TimerColumns
from headrace.execution.element import Watermark
from headrace.execution.keyed_process import KeyedProcess
from headrace.records.order import END_OF_KEY
from headrace.records.record_columns import struct_type
from headrace.run.rows import ColumnarRows, placed
from headrace.state.codec import decode_key
from headrace.state.key_columns import names_within
from headrace.state.timers import Timer
from headrace.state.values import SingleStore


@dataclass(frozen=True, slots=True)
class TimersTogether:
    """Timers of event time without a namespace of one operator in one task. `watermarks` are all of the micro-batch, in their order."""

    process: KeyedProcess
    function: ColumnFunction
    store: SingleStore
    watermarks: Sequence[Watermark]
    output: type[msgspec.Struct]

    def fire(self, keys: Sequence[bytes], due: TimerColumns | None, others: Collection[bytes]) -> ColumnarRows | None:
        """Fire all timers that are due but those of `others`, and return what they emit. `due` has timers of `keys` that nobody has registered.

        Where they cannot fire together, only registers these.
        """
        registered = [timer for timer in self.process.timers.due_for_users() if timer.key_json not in others]
        names, timers = _together(keys, due or _NO_TIMERS, registered)
        if not names:
            return None
        emitted = self._fired(names, timers) if len(timers.timestamps) <= self.store.cache_limit else None
        if emitted is None:
            for key, timestamp in zip(*(column.tolist() for column in timers), strict=True):
                self.process.timers.register(Timer(timestamp, names[key]))
            return None
        self.process.timers.take_together(registered, len(timers.timestamps) - len(registered))
        return emitted

    def _fired(self, keys: Sequence[bytes], timers: TimerColumns) -> ColumnarRows | None:
        """Return what timers emit, and remove the state that they free; None where they cannot fire together."""
        of_keys = pa.array(keys, pa.binary())

        def entries(places: NamespaceColumns) -> list[bytes]:
            return names_within(of_keys.take(pa.array(places.key_numbers)), places.names)

        def read(places: NamespaceColumns) -> list[object]:
            return self.store.values_within(keys, entries(places))

        fired = self.function.fire_columns(DueColumns(keys, timers, struct_type(self.output), decode_key, read))
        if fired is None:
            return None
        removed = entries(fired.removed)
        nothing = [None] * len(removed)
        self.store.set_values(removed, nothing, nothing)
        return placed(fired.emitted, self._places(keys, timers), self.output)

    def _places(self, keys: Sequence[bytes], timers: TimerColumns) -> pa.BinaryArray:
        """Return the places of timers in the order."""
        times, of_timer = np.unique(timers.timestamps, return_inverse=True)
        begins = pa.array(self.process.places_of_timers(times.tolist(), self.watermarks), pa.binary())
        of_keys = pa.array(keys, pa.binary()).take(pa.array(timers.key_numbers))
        return pc.binary_join_element_wise(
            begins.take(pa.array(of_timer)), of_keys, pa.scalar(END_OF_KEY), pa.scalar(b"")
        )


_NO_TIMERS = TimerColumns(np.array([], np.int64), np.array([], np.int64))


def _together(
    keys: Sequence[bytes], due: TimerColumns, registered: Sequence[Timer]
) -> tuple[list[bytes], TimerColumns]:
    """Return the keys of timers in the order of their bytes, and the different timers in that of their places."""
    owners, owner_of_due = np.unique(due.key_numbers, return_inverse=True)
    with_timers = [*(keys[owner] for owner in owners.tolist()), *(timer.key_json for timer in registered)]
    names = sorted({*with_timers})
    number_of = {name: number for number, name in enumerate(names)}
    numbers = np.array([number_of[name] for name in with_timers], np.int64)
    stamps = np.array([timer.timestamp for timer in registered], np.int64)
    times, time_of_timer = np.unique(np.concatenate([due.timestamps, stamps]), return_inverse=True)
    of_timer = np.concatenate([numbers[owner_of_due], numbers[len(owners) :]])
    if not names:
        return names, _NO_TIMERS
    order, key_numbers = np.divmod(np.unique(time_of_timer * len(names) + of_timer), len(names))
    return names, TimerColumns(key_numbers, times[order])
