"""Cache of answers, and merging of equal calls in flight."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.api import LookupCache
from headrace.async_io.misuse import contained
from headrace.async_io.service_metrics import ServiceMetrics
from headrace.async_io.tasks import is_cancelled, looked_at


@dataclass(slots=True, eq=False)
class _Call:
    """A call in flight, and the number of records that wait for it."""

    task: asyncio.Task[Any]
    waiting: int = 0


class Known(NamedTuple):
    """An answer, and the loop's time until which it may be used."""

    until: float
    answer: Any


class CachedCalls:
    """Calls by key, through a cache: LRU with a time to live."""

    def __init__(self, call: Callable[[Any], Awaitable[Any]], policy: LookupCache, metrics: ServiceMetrics) -> None:
        """Take `call`, which runs with the argument of `ask` unless the answer is cached or in flight."""
        self._call = call
        self._size = policy.size
        forever = float("inf")
        self._ttl = policy.ttl.total_seconds() if policy.ttl is not None else forever
        self._negative_ttl = policy.negative_ttl.total_seconds() if policy.negative_ttl is not None else self._ttl
        self._metrics = metrics
        self._answers: OrderedDict[Hashable, Known] = OrderedDict()
        self._in_flight: dict[Hashable, _Call] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loop = asyncio.get_running_loop()

    def known(self, key: Hashable) -> Known | None:
        """Return the cached answer for a key; None if there is none."""
        known = self._answers.get(key)
        if known is None or known.until <= self._loop.time():
            return None
        self._answers.move_to_end(key)
        self._metrics.cache_hits += 1
        return known

    async def ask(self, key: Hashable, asked: Any) -> Any:
        """Return the answer for a key. Callers during a call share its answer, or its failure."""
        if (known := self.known(key)) is not None:
            return known.answer
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
                # Later callers must not join a call that never answers, and it must not take up the service's concurrency.
                call.task.cancel()
                self._ended(key, call)

    def forget(self, key: Hashable) -> None:
        """Remove an answer from the cache."""
        self._answers.pop(key, None)

    async def close(self) -> None:
        """Cancel the calls in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._answers.clear()

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
            answer = await self._call(asked)
        except BaseException as error:
            if isinstance(error, Exception) or is_cancelled():
                raise
            raise contained(error) from error
        if is_cancelled():
            raise asyncio.CancelledError  # by the function's own code, or since nobody waits any more
        ttl = self._ttl if answer else self._negative_ttl
        if ttl > 0:
            self._answers[key] = Known(self._loop.time() + ttl, answer)
            self._answers.move_to_end(key)
            if len(self._answers) > self._size:
                self._answers.popitem(last=False)
        return answer
