"""Records grouped by size and wait, for services with a bulk call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.api import Batching
from headrace.async_io.misuse import MisuseError, contained
from headrace.async_io.service_metrics import ServiceMetrics
from headrace.async_io.tasks import is_cancelled
from headrace.names import counted

CallMany = Callable[[list[Any]], Awaitable[list[Any]]]


class BatchedCalls:
    """Combines calls for single records into calls for many."""

    def __init__(self, call: CallMany, policy: Batching, metrics: ServiceMetrics) -> None:
        """Take `call`, which gets at most `policy.size` records, and returns an answer for each, in their order."""
        self._call = call
        self._size = policy.size
        self._wait = policy.wait.total_seconds()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Any, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: dict[asyncio.Task[None], list[asyncio.Future[Any]]] = {}

    async def ask(self, record: Any) -> Any:
        """Return the answer for one record, from the call that contains it."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._gathered.append((record, answer))
        if len(self._gathered) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait, self._start)
        try:
            return await answer
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
        # Expired records, and those of a stopped run, no longer wait for an answer.
        group = [call for call in self._gathered if not call[1].done()]
        self._gathered = []
        if group:
            call = self._loop.create_task(self._ask_for(group))
            self._under_way[call] = [answer for _, answer in group]
            call.add_done_callback(self._under_way.pop)

    def _cancel_expired(self) -> None:
        """Cancel calls whose records have all expired: they would exceed the limit beside the calls that replace them."""
        for call, answers in self._under_way.items():
            if all(answer.done() for answer in answers):
                call.cancel()

    async def _ask_for(self, group: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        self._metrics.batches += 1
        try:
            answers = self._checked(group, await self._call([record for record, _ in group]))
        except BaseException as error:
            answers = [asyncio.CancelledError() if is_cancelled() else contained(error)] * len(group)
            if is_cancelled():  # by the function's own code, or since nobody waits any more
                _give(group, answers)
                raise
        _give(group, answers)

    def _checked(self, group: list[tuple[Any, asyncio.Future[Any]]], answers: Any) -> list[Any]:
        if is_cancelled():
            raise asyncio.CancelledError
        if not isinstance(answers, list | tuple) or len(answers) != len(group):
            raise MisuseError(f"invoke_many() got {counted(len(group), 'record')} and answered with {answers!r:.200}")
        self._metrics.failures += sum(isinstance(results, BaseException) for results in answers)
        return [contained(results) if isinstance(results, BaseException) else results for results in answers]


def _give(group: list[tuple[Any, asyncio.Future[Any]]], answers: list[Any]) -> None:
    """Give each record that still waits its results, or its failure."""
    for (_, answer), results in zip(group, answers, strict=True):
        if answer.done():
            continue
        if isinstance(results, BaseException):
            answer.set_exception(results)
        else:
            answer.set_result(results)
