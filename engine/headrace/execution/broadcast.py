"""Broadcast input of one task, and the timestamps at which it may be written.

Every task processes all broadcast records, each after all records before it are finished:

    order      1  2  B  4  5        B is broadcast: 1 and 2 end before it, 4 and 5 begin after it, in every task

Broadcast state is stored once for all tasks, so all tasks must have processed the same records when they end. A run
that has to stop therefore processes the last broadcast record before its cut, and stops after that.

Context in which a broadcast record is processed: it has a time, but no key.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from headrace.api.functions import BROADCAST_METHOD
from headrace.api.graph import Process
from headrace.api.records import RowKind
from headrace.api.states import BroadcastState
from headrace.errors import HeadraceError, UserFunctionError
from headrace.execution.drain import BufferedRequest
from headrace.execution.element import Element, shown_record
from headrace.execution.process_context import Refused, check_reason
from headrace.interrupts import is_interrupt
from headrace.state.backend import EntryChange
from headrace.state.broadcast import BROADCAST_KEY, BroadcastRow, BroadcastStore
from headrace.state.values import SingleStore


class BroadcastAccess:
    """A broadcast record at its place in arrival order.

    Everything that needs a key, or that every task would emit, raises `RuntimeError`. Keyed state reads `key_json`
    first.
    """

    __slots__ = (
        "_visited_store",
        "expired_until",
        "processing_time",
        "reasons",
        "row_kind",
        "timestamp",
        "visited",
        "watermark",
    )

    def __init__(
        self, element: Element, watermark: int, processing_time: int, visited_store: Callable[[object], SingleStore]
    ) -> None:
        """Set its time: the last watermark before it, and the processing time of the micro-batch (ms).

        `visited_store` returns the store behind a handle whose keys may be visited, or raises.
        """
        self.timestamp = element.timestamp
        self.row_kind = RowKind(element.kind)
        self.watermark = self.expired_until = watermark
        self.processing_time = processing_time
        self.visited: list[SingleStore] = []
        """States whose keys the record visits."""
        self._visited_store = visited_store
        self.reasons: list[str] = []
        """Reasons why the function set the record aside."""

    def visit_keys(self, state: Any, /) -> None:
        """Visit the keys that have a value in `state`, once `process_broadcast` has ended. Errors are those of `BoundFunction.visited_store`."""
        self.visited.append(self._visited_store(state))

    def visited_keys(self) -> list[bytes]:
        """Return the keys that the record visits, in the order of their JSON."""
        return sorted(set().union(*(store.live_keys(self) for store in self.visited)))

    def quarantine(self, reason: str, /) -> None:
        """Move the record to the quarantine. Raises as `ProcessContext.quarantine`."""
        check_reason(reason)
        self.reasons.append(reason)

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
    return RuntimeError(
        f"process_broadcast() has no key, so it cannot use {what}: it may change broadcast state only. ctx.visit_keys(state) calls visit() for each key, which may use it"
    )


def _no_output(what: str) -> RuntimeError:
    return RuntimeError(
        f"process_broadcast() cannot use {what}: it runs in every task, and each of them would emit the record. Keep what "
        "is to be emitted in broadcast state, and emit it in process(), or in visit(), which ctx.visit_keys(state) calls for each key"
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

    def refused(self, element: Element, access: BroadcastAccess) -> list[Refused]:
        """Return a record that was set aside, in the one task that stores it for all."""
        return [
            Refused(element.order, BROADCAST_KEY, element.record, reason) for reason in access.reasons if self._owns
        ]

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
