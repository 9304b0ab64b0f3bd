"""Answers batches of state requests one at a time, when a test says so."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.execution.request import AsyncRequest
from headrace.execution.state_executor import answer
from headrace.state.backend import StateBackend


class SteppedExecutor:
    """Keeps the batches that have started, until `finish` answers the first one, or the task can do nothing but wait for it."""

    def __init__(self, backend: StateBackend, batches: int) -> None:
        """Read from `backend`; have room for so many batches at once."""
        self._backend = backend
        self._batches = batches
        self._started: deque[Sequence[AsyncRequest]] = deque()
        self._done: list[AsyncRequest] = []

    @property
    def in_flight(self) -> int:
        """See `AsyncExecutor.in_flight`."""
        return len(self._started) + bool(self._done)

    @property
    def has_completed(self) -> bool:
        """See `AsyncExecutor.has_completed`."""
        return bool(self._done)

    @property
    def has_room(self) -> bool:
        """See `AsyncExecutor.has_room`."""
        return len(self._started) < self._batches

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """See `AsyncExecutor.submit`."""
        self._started.append(batch)

    def finish(self) -> bool:
        """Answer the batch that started first; return whether there was one."""
        if not self._started:
            return False
        batch = self._started.popleft()
        answer(self._backend, batch)
        self._done += batch
        return True

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """See `AsyncExecutor.completed`."""
        if wait and not self._done:
            self.finish()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """See `AsyncExecutor.close`."""
