"""Buffers of requests that wait: for their batch, or for their key (FLIP-425, "Async Execution Controller")."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.execution.record_context import RecordContext
    from headrace.execution.request import AsyncRequest


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
