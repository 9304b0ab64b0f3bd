"""Call for one record: the user's function, behind its cache, its groups and the limits of its service.

record ──> cache, equal calls in flight ──> groups ──> rate and concurrency ──> counting ──> opening ──> the function
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.api import AsyncWait, LookupFunction
from headrace.async_io.batched_calls import BatchedCalls
from headrace.async_io.counted_calls import counted
from headrace.async_io.lookup_cache import CachedCalls
from headrace.async_io.misuse import awaited
from headrace.async_io.opening import Opening
from headrace.async_io.service_limit import ServiceLimit
from headrace.async_io.service_metrics import ServiceMetrics

Invoke = Callable[[Any], Awaitable[Any]]


class Invocation:
    """Call chain of one operator. Create it within the loop, after the first attempt to open the function; `ask` returns an answer."""

    def __init__(self, wait: AsyncWait, metrics: ServiceMetrics, limit: ServiceLimit | None, opening: Opening) -> None:
        """Wrap the function as the operator's options say."""
        function: Any = wait.function
        self._function = function
        self._is_joined = False
        self._batched: BatchedCalls | None = None
        self._cached: CachedCalls | None = None
        is_lookup = isinstance(wait.function, LookupFunction)
        name = "look_up" if is_lookup and wait.cache is not None else "invoke"
        call: Invoke = counted(opening.before(awaited(getattr(function, name), name)), metrics)
        if wait.batch is not None:
            many = counted(opening.before(awaited(function.invoke_many, "invoke_many")), metrics)
            self._batched = BatchedCalls(limit.over(many) if limit else many, wait.batch, metrics)
            call = self._batched.ask
        elif limit is not None:
            call = limit.over(call)
        if wait.cache is not None:
            self._cached = CachedCalls(call, wait.cache, metrics)
            self._is_joined = is_lookup and wait.batch is None
            call = self._look_up if self._is_joined else self._by_record
        self.ask = call

    def known(self, record: Any) -> Any:
        """Return the results for a record if the cache has its answer; None if not. Raises the errors of the function."""
        if self._cached is None or (known := self._cached.known(self._function.cache_key(record))) is None:
            return None
        return self._function.join(record, known.answer) if self._is_joined else known.answer

    def forget(self, record: Any) -> None:
        """Remove the answer for a record from the cache: it was rejected."""
        if self._cached is not None:
            self._cached.forget(self._function.cache_key(record))

    async def close(self) -> None:
        """Cancel calls that nothing waits for any more."""
        if self._cached is not None:
            await self._cached.close()
        if self._batched is not None:
            await self._batched.close()

    async def _by_record(self, record: Any) -> Any:
        assert self._cached is not None  # noqa: S101 - set with it
        return await self._cached.ask(self._function.cache_key(record), record)

    async def _look_up(self, record: Any) -> Any:
        assert self._cached is not None  # noqa: S101 - set with it
        key = self._function.cache_key(record)
        return self._function.join(record, await self._cached.ask(key, key))
