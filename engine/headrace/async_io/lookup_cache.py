"""Cache of a service's responses, and the first element of each key in flight.

    arrival order   a1 a2 b1 a3 b2 c1 c2 d1 e1
    with window 2   a1 b1 c1 d1 a2 a3 b2 e1 c2

While a call is in flight, each further element with its key would wait for it in a task of its own, which takes ten times as long
as a response from the cache. Elements with a key that was asked for already therefore come after the first elements of the next
`window` keys: by then the cache mostly has the response. Results keep arrival order: the queue sees to it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.api.services import LookupCache
from headrace.async_io.executor import contained, is_cancelled, looked_at
from headrace.async_io.metrics import ServiceMetrics
from headrace.async_io.pending_call import PendingCall
from headrace.interrupts import is_interrupt


@dataclass(slots=True, eq=False)
class _Call:
    """A call in flight, and the number of records that wait for it."""

    task: asyncio.Task[Any]
    waiting: int = 0


class Known(NamedTuple):
    """A response, and the loop's time until which it may be used."""

    until: float
    response: Any


class CachedCalls:
    """Calls by key, through a cache: LRU with a time to live."""

    def __init__(self, call: Callable[[Any], Awaitable[Any]], policy: LookupCache, metrics: ServiceMetrics) -> None:
        """Take `call`, which runs with the argument of `ask` unless the response is cached or in flight."""
        self._call = call
        self._size = policy.size
        forever = float("inf")
        self._ttl = policy.ttl.total_seconds() if policy.ttl is not None else forever
        self._negative_ttl = policy.negative_ttl.total_seconds() if policy.negative_ttl is not None else self._ttl
        self._metrics = metrics
        self._responses: OrderedDict[Hashable, Known] = OrderedDict()
        self._in_flight: dict[Hashable, _Call] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    def known(self, key: Hashable) -> Known | None:
        """Return the cached response for a key; None if there is none."""
        known = self._responses.get(key)
        if known is None or known.until <= self._loop.time():
            return None
        self._responses.move_to_end(key)
        self._metrics.cache_hits += 1
        return known

    async def ask(self, key: Hashable, asked: Any) -> Any:
        """Return the response for a key. Callers during a call share its response, or its failure."""
        if (known := self.known(key)) is not None:
            return known.response
        call = self._in_flight.get(key)
        if call is None:
            call = self._in_flight[key] = self._begun(key, asked)
        else:
            self._metrics.coalesced += 1
        call.waiting += 1
        try:
            # A caller that times out must not cancel the call for the others that wait for it.
            return await asyncio.shield(call.task)
        finally:
            call.waiting -= 1
            if not call.waiting and not call.task.done():
                # Later callers must not join a call that never returns, and it must not take up the service's concurrency.
                call.task.cancel()
                self._ended(key, call)

    def forget(self, key: Hashable) -> None:
        """Remove a response from the cache."""
        self._responses.pop(key, None)

    async def close(self) -> None:
        """Cancel the calls in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._responses.clear()

    def _begun(self, key: Hashable, asked: Any) -> _Call:
        call = _Call(self._loop.create_task(self._make(key, asked)))
        self._tasks.add(call.task)
        call.task.add_done_callback(self._tasks.discard)
        call.task.add_done_callback(lambda _: self._ended(key, call))
        call.task.add_done_callback(looked_at)
        return call

    def _ended(self, key: Hashable, call: _Call) -> None:
        if self._in_flight.get(key) is call:
            del self._in_flight[key]

    async def _make(self, key: Hashable, asked: Any) -> Any:
        try:
            response = await self._call(asked)
        except BaseException as error:
            if isinstance(error, Exception) or is_cancelled():
                raise
            raise contained(error) from error
        if is_cancelled():
            raise asyncio.CancelledError  # by the function's own code, or since nobody waits any more
        ttl = self._ttl if response else self._negative_ttl
        if ttl > 0:
            self._responses[key] = Known(self._loop.time() + ttl, response)
            self._responses.move_to_end(key)
            if len(self._responses) > self._size:
                self._responses.popitem(last=False)
        return response


def first_of_keys_first(
    elements: Iterable[PendingCall], key_of: Callable[[PendingCall], Hashable], window: int
) -> Iterator[PendingCall]:
    """Yield elements; those with a key of the last two windows of keys come after the window behind that of its first element.

    An element without a key, because `key_of` fails, comes at once: its call fails in the same way.
    """
    earlier: set[Hashable] = set()
    current: set[Hashable] = set()
    ready: list[PendingCall] = []
    held: list[PendingCall] = []
    for element in elements:
        try:
            key = key_of(element)
            asked_lately = key in current
            asked_before = asked_lately or key in earlier
        except BaseException as error:
            if is_interrupt(error):
                raise
            yield element
            continue
        if asked_before:
            (held if asked_lately else ready).append(element)
            continue
        yield element
        current.add(key)
        if len(current) >= window:
            yield from ready
            earlier, current, ready, held = current, set(), held, []
    yield from ready
    yield from held
