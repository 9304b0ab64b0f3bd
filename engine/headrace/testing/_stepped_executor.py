"""Answers batches of state requests one at a time, on the test's command."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.execution.request import AsyncRequest
from headrace.execution.state_executor import answer
from headrace.state.backend import StateBackend


class SteppedExecutor:
    """Holds started batches until `finish` answers the first one, or the task must wait for it."""

    def __init__(self, backend: StateBackend, batches: int) -> None:
        """Read from `backend`; have room for `batches` batches at once."""
        self._backend = backend
        self._batches = batches
        self._started: deque[Sequence[AsyncRequest]] = deque()
        self._done: list[AsyncRequest] = []

    @property
    def in_flight(self) -> int:
        """Return the number of submitted batches that `completed` has not returned yet."""
        return len(self._started) + bool(self._done)

    @property
    def has_completed(self) -> bool:
        """Return whether a call of `completed` without waiting may return requests."""
        return bool(self._done)

    @property
    def has_room(self) -> bool:
        """Return whether another batch would start at once."""
        return len(self._started) < self._batches

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
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
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        if wait and not self._done:
            self.finish()
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """Wait for running requests, and release resources."""
