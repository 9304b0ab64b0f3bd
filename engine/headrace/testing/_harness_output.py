"""Collects what a harness has seen go out: records, side outputs, watermarks and late records, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from headrace.execution.element import Emitted
from headrace.execution.keyed_process import KeyedProcess


class Watermark(msgspec.Struct, frozen=True):
    """A watermark that went out: all records before it are done, and the timers that it fired."""

    timestamp: int


class LateRecord(msgspec.Struct, frozen=True):
    """A record that came at or behind the watermark; it was processed like any other."""

    record: Any


class SideRecord(msgspec.Struct, frozen=True):
    """A record that went to a side output."""

    name: str
    record: Any


class HarnessOutput:
    """What a keyed harness has yet to show of its process.

    `in_order` says that what was collected at once is shown in arrival order; else as it was emitted.
    """

    def __init__(self, side_outputs: Iterable[str], *, in_order: bool) -> None:
        """Start with nothing collected."""
        self._side_outputs = tuple(side_outputs)
        self._in_order = in_order
        self._shown: list[Any] = []
        self._collected: dict[str, int] = {}
        self.restart()

    def restart(self) -> None:
        """Collect from a new process, which has emitted nothing yet."""
        self._collected = dict.fromkeys(("", *self._side_outputs), 0)

    def add(self, event: Watermark | LateRecord) -> None:
        """Show something that no process emits."""
        self._shown.append(event)

    def collect(self, process: KeyedProcess) -> None:
        """Take over what `process` has emitted since the last call."""
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
