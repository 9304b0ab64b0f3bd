"""Records grouped by size and wait, for services with a bulk call."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from engine.api import Batching
from engine.async_io.service_metrics import ServiceMetrics

CallMany = Callable[[list[Any]], Awaitable[list[Any]]]


class BatchedCalls:
    """Turns calls for one record each into calls for many."""

    def __init__(self, call: CallMany, policy: Batching, metrics: ServiceMetrics) -> None:
        """`call` gets up to `policy.size` records, and answers for each, in their order."""
        self._call = call
        self._size = policy.size
        self._wait = policy.wait.total_seconds()
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._gathered: list[tuple[Any, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, record: Any) -> Any:
        """The answer for one record, from the call that it becomes part of."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._gathered.append((record, answer))
        if len(self._gathered) >= self._size:
            self._start()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._wait, self._start)
        return await answer

    async def close(self) -> None:
        """Cancel what is under way."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._under_way:
            call.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _start(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # Records whose time is up, or whose run has to stop, no longer wait for an answer.
        group = [one for one in self._gathered if not one[1].done()]
        self._gathered = []
        if group:
            call = self._loop.create_task(self._ask_for(group))
            self._under_way.add(call)
            call.add_done_callback(self._under_way.discard)

    async def _ask_for(self, group: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        self._metrics.batches += 1
        try:
            answers: Any = await self._call([record for record, _ in group])
            if not isinstance(answers, list | tuple) or len(answers) != len(group):
                raise WrongAnswersError(f"invoke_many() got {len(group)} records and answered with {answers!r:.200}")  # noqa: TRY301
        except BaseException as error:
            for _, answer in group:
                if not answer.done():
                    answer.set_exception(error) if isinstance(error, Exception) else answer.cancel()
            if not isinstance(error, Exception):
                raise
        else:
            for (_, answer), results in zip(group, answers, strict=True):
                if not answer.done():
                    answer.set_result(results)


class WrongAnswersError(Exception):
    """`invoke_many` did not answer with one list for each record. Calling again would not help."""
