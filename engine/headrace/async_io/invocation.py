"""Invocation of a service: bulk calls, counts, and one call behind its cache and its limits.

The counts have only calls that reach the user's function: those behind the cache, the groups and the limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.api.graph import AsyncWait
from headrace.api.services import Batching, LookupFunction
from headrace.async_io.executor import MisuseError, awaited, contained, is_cancelled
from headrace.async_io.limits import Opening, ServiceLimit
from headrace.async_io.lookup_cache import CachedCalls
from headrace.async_io.metrics import ServiceMetrics
from headrace.async_io.traced_calls import AsyncCall, CallNotes
from headrace.names import counted

CallMany = Callable[[list[Any]], Awaitable[list[Any]]]


class BatchedCalls:
    """Combines calls for single records into calls for many."""

    def __init__(self, call: CallMany, policy: Batching, metrics: ServiceMetrics) -> None:
        """Take `call`, which gets at most `policy.size` records, and returns a response for each, in their order."""
        self._call = call
        self._size = policy.size
        self._wait = policy.wait.total_seconds()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Any, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: dict[asyncio.Task[None], list[asyncio.Future[Any]]] = {}

    async def ask(self, record: Any) -> Any:
        """Return the response for one record, from the call that contains it."""
        response: asyncio.Future[Any] = self._loop.create_future()
        self._gathered.append((record, response))
        if len(self._gathered) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait, self._start)
        try:
            return await response
        except asyncio.CancelledError:
            self._cancel_expired()
            raise

    async def close(self) -> None:
        """Cancel the calls in flight."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._under_way:
            call.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Expired records, and those of a stopped run, no longer wait for a response.
        group = [call for call in self._gathered if not call[1].done()]
        self._gathered = []
        if group:
            call = self._loop.create_task(self._ask_for(group))
            self._under_way[call] = [response for _, response in group]
            call.add_done_callback(self._under_way.pop)

    def _cancel_expired(self) -> None:
        """Cancel calls whose records have all expired: they would exceed the limit beside the calls that replace them."""
        for call, responses in self._under_way.items():
            if all(response.done() for response in responses):
                call.cancel()

    async def _ask_for(self, group: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        self._metrics.batches += 1
        try:
            responses = self._checked(group, await self._call([record for record, _ in group]))
        except BaseException as error:
            responses = [asyncio.CancelledError() if is_cancelled() else contained(error)] * len(group)
            if is_cancelled():  # by the function's own code, or since nobody waits any more
                _give(group, responses)
                raise
        _give(group, responses)

    def _checked(self, group: list[tuple[Any, asyncio.Future[Any]]], responses: Any) -> list[Any]:
        if is_cancelled():
            raise asyncio.CancelledError
        if not isinstance(responses, list | tuple) or len(responses) != len(group):
            raise MisuseError(f"invoke_many() got {counted(len(group), 'record')} and answered with {responses!r:.200}")
        self._metrics.failures += sum(isinstance(results, BaseException) for results in responses)
        return [contained(results) if isinstance(results, BaseException) else results for results in responses]


def _give(group: list[tuple[Any, asyncio.Future[Any]]], responses: list[Any]) -> None:
    """Give each record that still waits its results, or its failure."""
    for (_, response), results in zip(group, responses, strict=True):
        if response.done():
            continue
        if isinstance(results, BaseException):
            response.set_exception(results)
        else:
            response.set_result(results)


def counted_calls(call: AsyncCall, metrics: ServiceMetrics) -> AsyncCall:
    """Return `call` with counting, and timing of answered calls."""
    time = asyncio.get_running_loop().time

    async def counting(asked: Any) -> Any:
        metrics.calls += 1
        began = time()
        try:
            response = await call(asked)
        except Exception:
            metrics.failures += 1
            raise
        metrics.took(time() - began)
        return response

    return counting


Invoke = Callable[[Any], Awaitable[Any]]


class Invocation:
    """Call chain of one operator. Create it within the loop, after the first attempt to open the function; `ask` returns a response."""

    def __init__(
        self,
        wait: AsyncWait,
        metrics: ServiceMetrics,
        limit: ServiceLimit | None,
        opening: Opening,
        notes: CallNotes | None = None,
    ) -> None:
        """Wrap the function as the operator's options say. `notes` are those for the task's trace; None without one."""
        function: Any = wait.function
        self._function = function
        self._is_joined = False
        self._batched: BatchedCalls | None = None
        self._cached: CachedCalls | None = None
        is_lookup = isinstance(wait.function, LookupFunction)
        name = "look_up" if is_lookup and wait.cache is not None else "invoke"
        call: Invoke = counted_calls(opening.before(awaited(getattr(function, name), name)), metrics)
        self.is_traced = notes is not None
        if notes is not None:
            call = notes.noted(call)
        if wait.batch is not None:
            many = counted_calls(opening.before(awaited(function.invoke_many, "invoke_many")), metrics)
            if notes is not None:
                many = notes.noted(many, takes_many=True)
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
        """Return the results for a record if the cache has its response; None if not. Raises the errors of the function."""
        if self._cached is None or (known := self._cached.known(self._function.cache_key(record))) is None:
            return None
        return self._function.join(record, known.response) if self._is_joined else known.response

    def forget(self, record: Any) -> None:
        """Remove the response for a record from the cache: it was rejected."""
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
