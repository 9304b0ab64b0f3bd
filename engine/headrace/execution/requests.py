"""Requests of state and of services, the buffers where they wait, and their batches (FLIP-425).

The controller knows neither state nor services ("Generalize the Async execution model"): it keeps records of a key in
order, collects requests into batches and runs callbacks. Only the executor understands a request's `action`: an
`Action` of a state backend, or a call to a service.

A request waits for its batch or for its key ("Async Execution Controller"). A batch of active requests starts when it
is full, or when its oldest request has waited long enough ("Batching").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace import clock
from headrace.options import AsyncStateOptions

if TYPE_CHECKING:
    from headrace.execution.record_context import RecordContext


class AsyncRequest:
    """One request of a record. `answered` is called in the task's thread, with the executor's answer."""

    __slots__ = ("action", "answer", "answered", "context", "error")

    def __init__(self, context: RecordContext, action: Any, answered: Callable[[Any], None]) -> None:
        """Make a request without an answer."""
        self.context = context
        self.action = action
        self.answered = answered
        self.answer: Any = None
        self.error: BaseException | None = None


class AsyncExecutor(Protocol):
    """Executes batches of requests, in threads or a loop of its own."""

    @property
    def in_flight(self) -> int:
        """Return the number of submitted batches that `completed` has not returned yet."""
        ...

    @property
    def has_completed(self) -> bool:
        """Return whether a call of `completed` without waiting may return requests. Called before every record."""
        ...

    @property
    def has_room(self) -> bool:
        """Return whether another batch would start at once."""
        ...

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
        ...

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
        ...

    def close(self) -> None:
        """Wait for running requests, and release threads."""
        ...


class Waiter(NamedTuple):
    """A record that waits for a key: not started, or started with `request` as its first request."""

    context: RecordContext
    request: AsyncRequest | None


class RequestBuffer:
    """Active buffer, whose requests may be executed, and blocking buffer, by key."""

    def __init__(self) -> None:
        """Start empty."""
        self.active: list[AsyncRequest] = []
        self._blocking: dict[bytes, deque[Waiter]] = {}
        self._joined: dict[RecordContext, list[AsyncRequest]] = {}
        self.blocked = 0

    def take_active(self, limit: int | None = None) -> list[AsyncRequest]:
        """Remove and return the first `limit` active requests, or all, in order."""
        if limit is None or len(self.active) <= limit:
            batch, self.active = self.active, []
        else:
            batch, self.active = self.active[:limit], self.active[limit:]
        return batch

    def block(self, context: RecordContext, request: AsyncRequest | None = None) -> None:
        """Queue a context behind all others of its key."""
        self._of(context.key_json).append(self._waiter(context, request))
        self.blocked += 1

    def block_first(self, context: RecordContext, request: AsyncRequest | None = None) -> None:
        """Queue a context before all others of its key."""
        self._of(context.key_json).appendleft(self._waiter(context, request))
        self.blocked += 1

    def join(self, request: AsyncRequest) -> bool:
        """Queue a request with its record's first one; return False if the record does not wait for its key."""
        joined = self._joined.get(request.context)
        if joined is None:
            return False
        joined.append(request)
        return True

    def take_joined(self, context: RecordContext) -> list[AsyncRequest]:
        """Remove and return the requests queued with the first one of `context`, in order."""
        return self._joined.pop(context, [])

    def unblock(self, key: bytes) -> Waiter | None:
        """Remove and return the first waiter for the key; None without one."""
        waiters = self._blocking.get(key)
        if waiters is None:
            return None
        self.blocked -= 1
        waiter = waiters.popleft()
        if not waiters:
            del self._blocking[key]
        return waiter

    def take_blocked(self) -> list[Waiter]:
        """Remove and return all waiters, key by key."""
        waiters = [waiter for queue in self._blocking.values() for waiter in queue]
        self._blocking, self.blocked = {}, 0
        return waiters

    def withdraw(self, may_wait: Callable[[Any], bool]) -> list[RecordContext]:
        """Remove the requests and waiters of each context for which `may_wait` is true; return these contexts. Contexts that wait for their key come first."""
        withdrawn: list[RecordContext] = []
        for context, request in self.take_blocked():
            if may_wait(context):
                withdrawn.append(context)
            else:
                self.block(context, request)
        for request in self.take_active():
            if may_wait(request.context):
                withdrawn.append(request.context)
            else:
                self.active.append(request)
        return withdrawn

    def _waiter(self, context: RecordContext, request: AsyncRequest | None) -> Waiter:
        if request is not None:
            self._joined.setdefault(context, [])
        return Waiter(context, request)

    def _of(self, key: bytes) -> deque[Waiter]:
        waiters = self._blocking.get(key)
        if waiters is None:
            waiters = self._blocking[key] = deque()
        return waiters


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
