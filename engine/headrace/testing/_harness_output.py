"""Collects the output of a harness: records, side outputs, watermarks and late records, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from headrace.execution.element import Emitted
from headrace.execution.keyed_process import KeyedProcess


class Watermark(msgspec.Struct, frozen=True):
    """A watermark that was emitted: all records before it, and the timers that it fired, are done."""

    timestamp: int


class LateRecord(msgspec.Struct, frozen=True):
    """A record that arrived at or behind the watermark; it was processed like any other."""

    record: Any


class SideRecord(msgspec.Struct, frozen=True):
    """A record that went to a side output."""

    name: str
    record: Any


class HarnessOutput:
    """Output of a keyed harness that `take` has not returned yet.

    `in_order`: outputs collected together are returned in arrival order; otherwise in the order of emission.
    """

    def __init__(self, side_outputs: Iterable[str], *, in_order: bool) -> None:
        """Start empty."""
        self._side_outputs = tuple(side_outputs)
        self._in_order = in_order
        self._shown: list[Any] = []
        self._collected: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """Collect from a new process, which has emitted nothing yet."""
        self._collected = dict.fromkeys(("", *self._side_outputs), 0)

    def add(self, event: Watermark | LateRecord) -> None:
        """Add an event that no process emits."""
        self._shown.append(event)

    def collect(self, process: KeyedProcess) -> None:
        """Collect the outputs of `process` since the last call."""
        new = [(emitted.order, emitted.record) for emitted in self._new("", process.emitted)]
        for name in self._side_outputs:
            side_records = self._new(name, process.side_outputs[name])
            new += [(emitted.order, SideRecord(name, emitted.record)) for emitted in side_records]
        if self._in_order:
            new.sort(key=itemgetter(0))
        self._shown += [record for _, record in new]

    def take(self) -> list[Any]:
        """Return what was collected since the last call."""
        shown, self._shown = self._shown, []
        return shown

    def _new(self, name: str, emitted: Sequence[Emitted]) -> Sequence[Emitted]:
        new = emitted[self._collected[name] :]
        self._collected[name] = len(emitted)
        return new
