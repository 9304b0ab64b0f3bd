"""Look-ups in order of keys: the second use of the controller (FLIP-425, "Generalize the Async execution model").

For one key a call begins when the one before it has ended; calls for other keys overtake.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from operator import attrgetter
from typing import Any

import msgspec

from engine.async_io.async_wait import AsyncWaitOperator, results_of
from engine.async_io.asyncio_executor import AsyncioExecutor
from engine.execution.controller import AsyncExecutionController
from engine.execution.element import Emitted
from engine.execution.options import AsyncStateOptions
from engine.execution.record_context import RecordContext

KeyedElement = tuple[bytes, Emitted]
"""A record, and its key as JSON."""


class KeyedOrderedWait:
    """One `AsyncWait` operator in one task, in mode keyed-ordered."""

    def __init__(self, wait: AsyncWaitOperator, *, in_flight_limit: int = 6000) -> None:
        """`wait` knows how to call; up to `in_flight_limit` records are taken in at once, most of them waiting."""
        self._wait = wait
        self._emitted: list[Emitted] = []
        executor = AsyncioExecutor(wait.answer, wait.operator.capacity, wait.opened)
        options = AsyncStateOptions(
            buffer_size=1,
            buffer_timeout=timedelta(0),
            in_flight_records_limit=max(in_flight_limit, wait.operator.capacity),
        )
        self.controller = AsyncExecutionController(self, executor, options)

    def run(self, elements: Iterable[KeyedElement]) -> list[Emitted]:
        """Answer every element; return the results in the elements' order. Errors as in `AsyncWaitOperator.run`."""
        try:
            for key_json, element in elements:
                self.controller.process(RecordContext(self.controller, key_json, element))
            self.controller.drain()
        except BaseException:
            with suppress(Exception):  # the first error is the one to report
                self.controller.close()
            raise
        self.controller.close()
        return sorted(self._emitted, key=attrgetter("order"))

    def call(self, context: RecordContext) -> None:
        """See `KeyedWork.call`."""
        element: Emitted = context.record

        def answered(answers: list[msgspec.Struct]) -> None:
            self._emitted += results_of(element, answers)

        self.controller.request(context, element.record, answered)

    def before(self, _: Any) -> None:
        """See `KeyedWork.before`."""

    def after(self, _: Any) -> None:
        """See `KeyedWork.after`."""

    def failed(self, _: Any, error: Exception) -> Exception:
        """See `KeyedWork.failed`."""
        return error
