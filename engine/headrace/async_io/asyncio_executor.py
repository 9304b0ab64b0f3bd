"""Executes requests as coroutines on an asyncio loop that runs whenever the controller waits.

Controller and loop take turns in one thread. A thread of its own for the loop would fight with the controller over the
interpreter, and each hand-over would cost more than the whole way of a record.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from headrace.execution.request import AsyncRequest

T = TypeVar("T")

_BEGUN_BEFORE_A_TURN = 64
"""So many requests are begun before the loop gets a turn: a turn costs some 10 microseconds."""


class AsyncioExecutor(Generic[T]):
    """Calls `call(opened)(action, task)` for each request, where `task` is the one that awaits it, at most `capacity` at once.

    A request is a batch of its own.

    It takes in as many requests again that wait for one of the `capacity` workers: a worker that finds the next one at hand
    costs a third less than a task for each.
    """

    def __init__(
        self,
        capacity: int,
        around: Callable[[], AbstractAsyncContextManager[T]],
        call: Callable[[T], Callable[[Any, asyncio.Task[None] | None], Awaitable[Any]]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Enter `around` in the loop: it opens clients, and closes them in `close`. Raises what it raises."""
        self.in_flight = 0
        self.has_completed = False
        self._capacity = capacity
        self._done: list[AsyncRequest] = []
        self._workers: list[asyncio.Task[None]] = []
        self._idle: list[asyncio.Future[None]] = []
        self._waiting: deque[AsyncRequest] = deque()
        self._begun = 0
        self._is_waiting = False
        self._runner = asyncio.Runner(loop_factory=None if loop is None else lambda: loop)
        self._loop = self._runner.get_loop()
        self._end = self._loop.create_future()
        opened: asyncio.Future[T] = self._loop.create_future()
        self._serving = self._loop.create_task(self._serve(around, opened))
        try:
            self._call = call(self._loop.run_until_complete(self._first(opened)))
        except BaseException:
            self._runner.close()
            raise

    @property
    def has_room(self) -> bool:
        """See `AsyncExecutor.has_room`."""
        return self.in_flight < 2 * self._capacity

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """See `AsyncExecutor.submit`."""
        self.in_flight += len(batch)
        self._begun += len(batch)
        self.has_completed = self._begun >= _BEGUN_BEFORE_A_TURN
        self._waiting.extend(batch)
        for _ in batch:
            if self._idle:
                self._idle.pop().set_result(None)
            elif len(self._workers) < self._capacity:
                self._workers.append(self._loop.create_task(self._work()))

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """See `AsyncExecutor.completed`."""
        if self.in_flight and not self._done:
            if wait:
                self._is_waiting = True
                self._loop.run_forever()
                self._is_waiting = False
            else:
                self._loop.call_soon(self._loop.stop)
                self._loop.run_forever()
        self._begun = 0
        self.has_completed = False
        done, self._done = self._done, []
        self.in_flight -= len(done)
        return done

    def close(self) -> None:
        """Cancel what is running and end the loop. Raises what closing it raises."""
        if self._loop.is_closed():
            return
        try:
            self._waiting.clear()
            for worker in self._workers:
                worker.cancel()
            if self._workers:
                self._loop.run_until_complete(asyncio.gather(*self._workers, return_exceptions=True))
            if not self._serving.done():
                self._end.set_result(None)
            self._loop.run_until_complete(self._serving)
        finally:
            self._runner.close()

    async def _serve(self, around: Callable[[], AbstractAsyncContextManager[T]], opened: asyncio.Future[T]) -> None:
        async with around() as found:
            opened.set_result(found)
            await self._end

    async def _first(self, opened: asyncio.Future[T]) -> T:
        await asyncio.wait((opened, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            self._serving.result()  # it raises
        return opened.result()

    async def _work(self) -> None:
        waiting, call, task = self._waiting, self._call, asyncio.current_task()
        while True:
            while waiting:
                request = waiting.popleft()
                try:
                    request.answer = await call(request.action, task)
                except BaseException as error:
                    request.error = error
                    if isinstance(error, asyncio.CancelledError):
                        raise  # by `close`
                self._done.append(request)
                if self._is_waiting:
                    self._loop.stop()
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle
