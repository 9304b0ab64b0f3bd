"""Executes state requests: a batch is one call to the backend for all entries, and one for each page."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from headrace.state.backend import answers

if TYPE_CHECKING:
    from headrace.execution.requests import AsyncExecutor, AsyncRequest
    from headrace.options import AsyncStateOptions
    from headrace.state.backend import StateBackend


class InlineStateExecutor:
    """Reads at once in the task's own thread: a batch saves calls to the backend."""

    has_room = True

    def __init__(self, backend: StateBackend) -> None:
        """Read from `backend`."""
        self._backend = backend
        self._done: list[AsyncRequest] = []
        self.in_flight = 0
        self.has_completed = False

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        answer(self._backend, batch)
        self._done += batch
        self.in_flight = 1
        self.has_completed = True

    def completed(self, *, wait: bool) -> list[AsyncRequest]:  # noqa: ARG002 - nothing is ever in flight
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        done, self._done = self._done, []
        self.in_flight = 0
        self.has_completed = False
        return done

    def close(self) -> None:
        """Wait for running requests, and release resources."""


class ThreadedStateExecutor:
    """Reads in threads, while the task's thread processes other records."""

    def __init__(self, backend: StateBackend, threads: int) -> None:
        """Read from `backend`, which must allow reads from several threads."""
        self._backend = backend
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="state-io")
        self._done: queue.SimpleQueue[Sequence[AsyncRequest]] = queue.SimpleQueue()
        self.in_flight = 0

    @property
    def has_completed(self) -> bool:
        """Return whether a call of `completed` without waiting may return requests."""
        return not self._done.empty()

    @property
    def has_room(self) -> bool:
        """Return whether another batch would start at once."""
        return self.in_flight < self._threads

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        self.in_flight += 1
        self._pool.submit(self._execute, batch)

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        done: list[AsyncRequest] = []
        while self.in_flight:
            try:
                done += self._done.get(block=wait and not done)
            except queue.Empty:
                break
            self.in_flight -= 1
        return done

    def close(self) -> None:
        """Wait for running requests, and release resources."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _execute(self, batch: Sequence[AsyncRequest]) -> None:
        answer(self._backend, batch)
        self._done.put(batch)


def answer(backend: StateBackend, batch: Sequence[AsyncRequest]) -> None:
    """Answer each request with the backend's value for its action, or all of them with the error."""
    try:
        for request, stored in zip(batch, answers(backend, [request.action for request in batch]), strict=True):
            request.answer = stored
    except BaseException as error:  # noqa: BLE001 - raised again by the task's loop
        for request in batch:
            request.error = error


def executor_for(backend: StateBackend, options: AsyncStateOptions) -> AsyncExecutor:
    """Return the executor for a backend and the options."""
    if backend.is_in_memory or not options.enabled:
        return InlineStateExecutor(backend)
    return ThreadedStateExecutor(backend, options.io_parallelism)
