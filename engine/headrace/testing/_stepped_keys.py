"""Keyed-ordered wait of jobs, single-stepped: it advances as far as possible without time passing."""

from __future__ import annotations

from headrace.async_io.async_wait import AsyncWaitOperator
from headrace.async_io.element import AsyncElement
from headrace.async_io.keyed_ordered import KeyedOrderedWait
from headrace.execution.record_context import RecordContext
from headrace.testing._virtual_loop import VirtualLoop


class SteppedKeys(KeyedOrderedWait):
    """Accepts elements one by one, whereas a micro-batch has them all; the controller does the rest, as in a job."""

    def __init__(self, wait: AsyncWaitOperator, loop: VirtualLoop) -> None:
        """Open the function on `loop`, which only `step` and the loop's owner advance afterwards."""
        loop.let_time_run()
        super().__init__(wait, loop=loop)
        self._loop = loop
        self._waiting: list[AsyncElement] = []

    def take_in(self, element: AsyncElement) -> None:
        """Begin the call for an element, or let it wait for its key."""
        self._waiting.append(element)
        self.controller.process(RecordContext(element.key_json, element))

    def step(self) -> list[AsyncElement]:
        """Do everything possible now: submit calls, and process answers, until nothing more follows.

        Returns the elements that are done now, each of them once. Raises errors that fail a run.
        """
        controller = self.controller
        while True:
            while controller.batches.fire():
                pass
            self._loop.run_until(self._loop.time())
            controller.poll()
            if not controller.buffer.active:
                break
        done = [element for element in self._waiting if element.is_done]
        if done:
            self._waiting = [waiting for waiting in self._waiting if not waiting.is_done]
        return done

    def blocking(self) -> list[AsyncElement]:
        """Return the elements that are parked, or not due yet, and block their keys."""
        first = {element.key_json: element for element in reversed(self._waiting)}
        return [record for key, record in first.items() if key in self._blocked]

    def take_up(self, element: AsyncElement) -> None:
        """Resume an element that blocks its key: call for it, and for those behind it, as the next micro-batch would."""
        key = element.key_json
        self._blocked.discard(key)
        for waiting in self._waiting:
            if waiting.key_json == key:
                self.controller.process(RecordContext(key, waiting))

    def close(self) -> None:
        """Close the function, and the loop."""
        self._loop.let_time_run()
        self.controller.close()
