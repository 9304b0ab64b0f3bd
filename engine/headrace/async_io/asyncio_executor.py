"""Executes requests as coroutines on an asyncio loop that runs whenever the controller waits.

Controller and loop take turns in one thread. With a thread of its own, the loop would compete with the controller for
the interpreter, and each switch would cost more than processing a record.
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
"""Number of requests that start before the loop gets a turn: a turn costs some 10 microseconds."""


class AsyncioExecutor(Generic[T]):
    """Calls `call(client)(action, task)` for each request, at most `capacity` at once; `task` is the task that awaits it.

    Each request is a batch of its own.

    As many requests again wait for one of the `capacity` workers: a worker that finds its next request waiting
    costs a third less than a new task for each.
    """

    def __init__(
        self,
        capacity: int,
        around: Callable[[], AbstractAsyncContextManager[T]],
        call: Callable[[T], Callable[[Any, asyncio.Task[None] | None], Awaitable[Any]]],
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """Enter `around` in the loop: it opens clients, and `close` closes them. Raises the errors of `around`."""
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
        """Return whether another batch would start at once."""
        return self.in_flight < 2 * self._capacity

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """Start executing a batch: set `answer` or `error` of each request."""
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
        """Return the requests answered since the last call; with `wait`, block for one, if any is in flight."""
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
        """Cancel running requests, and end the loop. Raises the errors of `around` when it closes."""
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
        async with around() as client:
            opened.set_result(client)
            await self._end

    async def _first(self, opened: asyncio.Future[T]) -> T:
        await asyncio.wait((opened, self._serving), return_when=asyncio.FIRST_COMPLETED)
        if not opened.done():
            self._serving.result()  # raises its error
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
                        raise  # cancelled by `close`
                self._done.append(request)
                if self._is_waiting:
                    self._loop.stop()
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle
