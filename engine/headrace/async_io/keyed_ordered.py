"""Calls in order of keys: the second use of the controller (FLIP-425, "Generalize the Async execution model").

A call for a key begins when the previous one for the key has its response; calls for other keys overtake. A key whose
element is parked is blocked: its later elements wait in `async_requests` as well, behind it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from heapq import merge
from typing import Any

from headrace.async_io.async_wait import AsyncWaitOperator, in_arrival_order, is_due
from headrace.async_io.attempts import Attempts
from headrace.async_io.executor import AsyncioExecutor
from headrace.async_io.pending_call import PendingCall
from headrace.execution.controller import AsyncExecutionController
from headrace.execution.element import Emitted
from headrace.execution.record_context import RecordContext
from headrace.options import AsyncStateOptions

_HANDED_OVER_AT_ONCE = 256
"""Number of calls handed over at once. Each hand-over gives the loop a turn, which costs some 100 microseconds. Records wait
for less than a millisecond, and all that have arrived are handed over before the controller waits."""

KeyedElement = tuple[bytes, Emitted]
"""A record, and its key as JSON."""


class KeyedOrderedWait:
    """One `AsyncWait` operator in one task, in mode keyed-ordered."""

    def __init__(
        self, wait: AsyncWaitOperator, *, in_flight_limit: int = 6000, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Take `wait`, which makes the calls. At most `in_flight_limit` records are accepted at once, most of them waiting.

        Raises `UserFunctionError` when the function cannot be opened.
        """
        self._wait = wait
        self._blocked: set[bytes] = set()
        self._takes_some = wait.needs_no_call_for_some
        executor = AsyncioExecutor(wait.operator.capacity, wait.opened, _settle, loop)
        options = AsyncStateOptions(
            buffer_size=_HANDED_OVER_AT_ONCE,
            buffer_timeout=timedelta(seconds=1),
            in_flight_records_limit=max(in_flight_limit, wait.operator.capacity),
        )
        self.controller = AsyncExecutionController(self, executor, options)

    def run(self, elements: Iterable[KeyedElement], resumed: Sequence[PendingCall] = ()) -> list[Emitted]:
        """Process new elements, and those of `resumed` that are due; as `AsyncWaitOperator.run_async`."""
        return self.run_arrived(merge(self._wait.taken_up(resumed), map(_element, elements), key=_order_of))

    def run_arrived(self, arriving: Iterable[PendingCall]) -> list[Emitted]:
        """Process new and resumed elements, in arrival order."""
        with self._wait.guarded():
            return self._run_arrived(arriving)

    def _run_arrived(self, arriving: Iterable[PendingCall]) -> list[Emitted]:
        arrived: list[PendingCall] = []
        try:
            for element in arriving:
                arrived.append(element)
                if not element.is_done:
                    self.controller.process(RecordContext(element.key_json, element))
            self.controller.drain()
        except BaseException:
            self._end_calls()
            with suppress(BaseException):  # the first error is the one to report
                self.controller.close()
            raise
        self._end_calls()
        self.controller.close()
        taken = [element for element in arrived if element.is_done]
        self._wait.keep(taken, [element for element in arrived if not element.is_done], arrived)
        return self._wait.emitted

    def _end_calls(self) -> None:
        if self._wait.attempts is not None:
            self._wait.attempts.is_ending = True

    def call(self, context: RecordContext) -> None:
        """Start the user code of a record: return its coroutine, or None if it has run to its end."""
        element: PendingCall = context.record
        # Most elements are new, and so are due.
        if self._takes_some and element.key_json not in self._blocked and self._wait.take(element):
            return
        if element.key_json in self._blocked or (element.next_attempt_at is not None and not is_due(element)):
            self._blocked.add(element.key_json)
        else:
            self.controller.request(context, element, self._answered)

    def _answered(self, element: PendingCall) -> None:
        if not element.is_done:
            self._blocked.add(element.key_json)

    due = ()

    def before(self, _: Any) -> None:
        """Return None: nothing runs before a record."""

    def after(self, _: Any) -> None:
        """Return None: nothing runs after a record."""

    def failed(self, _: Any, error: BaseException) -> BaseException:
        """Return the error that the task fails with when the user code of a record raised `error`."""
        return error


def run_keyed_ordered(
    wait: AsyncWaitOperator, elements: Iterable[KeyedElement], resumed: Sequence[PendingCall] = ()
) -> list[Emitted]:
    """Process new elements, and those of `resumed` that are due; as `AsyncWaitOperator.run_async`.

    If all elements have kept responses, does not open the function: its service may be down.
    """
    if not wait.has_responses:
        return KeyedOrderedWait(wait).run(elements, resumed)
    arrived = in_arrival_order(map(_element, elements), wait.taken_up(resumed))
    if not wait.look_up(arrived):
        return KeyedOrderedWait(wait).run_arrived(arrived)
    for element in arrived:
        wait.take(element)
    wait.keep(arrived, [], arrived)
    return wait.emitted


def _settle(attempts: Attempts) -> Any:
    return attempts.settle


def _element(keyed: KeyedElement) -> PendingCall:
    element = PendingCall(keyed[1])
    element.key_json = keyed[0]
    return element


def _order_of(element: PendingCall) -> bytes:
    return element.emitted.order
