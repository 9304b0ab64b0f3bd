"""Starts batches of active requests: one that is full, or whose oldest request has waited long enough (FLIP-425, "Batching")."""

from __future__ import annotations

from headrace import clock
from headrace.execution.options import AsyncStateOptions
from headrace.execution.request import AsyncExecutor, AsyncRequest
from headrace.execution.request_buffer import RequestBuffer


class RequestBatches:
    """Batches of one controller."""

    def __init__(self, buffer: RequestBuffer, executor: AsyncExecutor, options: AsyncStateOptions) -> None:
        """Take active requests from `buffer`, and submit them to `executor`."""
        self.started = 0
        self.fires_by_itself = True
        """True: a batch that is full, or has waited long enough, starts by itself. False: only `fire` starts it, when
        the task waits for room or for the end."""
        self._buffer = buffer
        self._executor = executor
        self._size = options.buffer_size
        # A microsecond less: differences of floats are slightly smaller than the real time span.
        self._timeout = options.buffer_timeout.total_seconds() - 1e-6
        self._oldest_request = 0.0

    def activate(self, request: AsyncRequest) -> None:
        """Add a request to the next batch, and start the batch if it is full."""
        active = self._buffer.active
        if not active:
            self._oldest_request = clock.monotonic()
        active.append(request)
        if len(active) >= self._size and self.fires_by_itself and self._executor.has_room:
            self.fire()

    def is_due(self) -> bool:
        """Return whether the next batch should start, and the executor has room for it. There must be active requests."""
        is_full = len(self._buffer.active) >= self._size
        return (is_full or clock.monotonic() - self._oldest_request >= self._timeout) and self._executor.has_room

    def fire(self) -> bool:
        """Start executing a batch of active requests; return whether there were any."""
        batch = self._buffer.take_active(self._size)
        if not batch:
            return False
        self.started += 1
        self._executor.submit(batch)
        return True
