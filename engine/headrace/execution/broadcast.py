"""Broadcast input of one task, and the timestamps at which it may be written.

Every task processes all broadcast records, each after all records before it are finished:

    order      1  2  B  4  5        B is broadcast: 1 and 2 end before it, 4 and 5 begin after it, in every task

Broadcast state is stored once for all tasks, so all tasks must have processed the same records when they end. A run
that has to stop therefore processes the last broadcast record before its cut, and stops after that.

Context in which a broadcast record is processed: it has a time, but no key.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from headrace.api.functions import BROADCAST_METHOD
from headrace.api.graph import Process
from headrace.api.records import RowKind
from headrace.api.states import BroadcastState
from headrace.errors import HeadraceError, UserFunctionError
from headrace.execution.drain import BufferedRequest
from headrace.execution.element import Element, shown_record
from headrace.interrupts import is_interrupt
from headrace.state.backend import EntryChange
from headrace.state.broadcast import BROADCAST_KEY, BroadcastRow, BroadcastStore


class BroadcastAccess:
    """A broadcast record at its place in arrival order.

    Everything that needs a key, or that every task would emit, raises `RuntimeError`. Keyed state reads `key_json`
    first.
    """

    __slots__ = ("processing_time", "row_kind", "timestamp", "watermark")

    def __init__(self, element: Element, watermark: int, processing_time: int) -> None:
        """Set its time: the last watermark before it, and the processing time of the micro-batch (ms)."""
        self.timestamp = element.timestamp
        self.row_kind = RowKind(element.kind)
        self.watermark = watermark
        self.processing_time = processing_time

    @property
    def key(self) -> NoReturn:
        """Refuse: there is no key. Raises `RuntimeError`."""
        raise _no_key("ctx.key")

    @property
    def key_json(self) -> NoReturn:
        """Refuse: keyed state needs a key. Raises `RuntimeError`."""
        raise _no_key("keyed state")

    @property
    def timers(self) -> NoReturn:
        """Refuse: a timer belongs to a key. Raises `RuntimeError`."""
        raise _no_key("ctx.timers")

    def collect(self, *_: Any) -> NoReturn:
        """Refuse: every task would emit the record. Raises `RuntimeError`."""
        raise _no_output("ctx.collect()")

    def output(self, *_: Any) -> NoReturn:
        """Refuse: every task would emit the record. Raises `RuntimeError`."""
        raise _no_output("ctx.output()")


def _no_key(what: str) -> RuntimeError:
    return RuntimeError(f"process_broadcast() has no key, so it cannot use {what}: it may change broadcast state only")


def _no_output(what: str) -> RuntimeError:
    return RuntimeError(
        f"process_broadcast() cannot use {what}: it runs in every task, and each of them would emit the record. Keep what "
        "is to be emitted in broadcast state, and emit it in process()"
    )


class BroadcastInput:
    """Applies broadcast records to broadcast state. `owns`: this task stores the resulting changes for all tasks."""

    def __init__(self, operator: Process, *, owns: bool) -> None:
        """Start without states; `bind` adds them."""
        self.stores: list[BroadcastStore] = []
        self._operator = operator
        self._owns = owns
        self._to_come = 0

    def bind(self, attribute: str, declared: BroadcastState[Any, Any]) -> None:
        """Replace a declared state by a live handle."""
        store = BroadcastStore(declared, self._operator.name)
        self.stores.append(store)
        setattr(self._operator.function, attribute, store.handle)

    def load(self, rows: Sequence[BroadcastRow]) -> None:
        """Load the operator's stored broadcast state; in every task, before the first record."""
        for store in self.stores:
            store.load(rows)

    def changes(self) -> list[tuple[BroadcastStore, list[EntryChange]]]:
        """Return the changes of each state, in the one task that stores them; an empty list in the others."""
        return [(store, store.changes()) for store in self.stores] if self._owns else []

    def expect(self, elements: Iterable[Element | BufferedRequest], cut: bytes | None) -> None:
        """Set the records that `take` will get: the broadcast records among `elements`, up to `cut`."""
        self._to_come = sum(is_broadcast(element) and (cut is None or element.order < cut) for element in elements)

    @property
    def is_complete(self) -> bool:
        """Return whether all expected records were processed, so that the task may stop."""
        return self._to_come <= 0

    def holds(self, element: Element | BufferedRequest) -> bool:
        """Return whether this task holds an element that was not processed; one task holds the broadcast records of all."""
        return self._owns or not is_broadcast(element)

    def take(self, element: Element, access: BroadcastAccess) -> None:
        """Apply a record to broadcast state. All records before it must be finished.

        Raises `UserFunctionError` with operator, method, record and traceback when the function fails.
        """
        self._to_come -= 1
        function: Any = self._operator.function
        for store in self.stores:
            store.writable_at = access.timestamp
        try:
            function.process_broadcast(element.record, access)
        except BaseException as error:
            if isinstance(error, HeadraceError) or is_interrupt(error):
                raise
            why = "".join(traceback.format_exception(error))
            shown = shown_record(element.record)
            raise UserFunctionError(self._operator.name, None, shown, why, method=BROADCAST_METHOD) from error
        finally:
            for store in self.stores:
                store.writable_at = None


def is_broadcast(element: Element | BufferedRequest) -> bool:
    """Return whether an element is for all tasks."""
    return element.key_json == BROADCAST_KEY
