"""Executor of coroutines: its asyncio loop, its tasks, and errors of functions that misuse them.

Controller and loop take turns in one thread. With a thread of its own, the loop would compete with the controller for
the interpreter, and each switch would cost more than processing a record.
"""

from __future__ import annotations

import asyncio
import inspect
import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, cast

from headrace.execution.requests import AsyncRequest

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
        self._is_closing = False
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
        self._is_closing = True
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
                try:
                    await turn()
                except asyncio.CancelledError:
                    if task is None or self._is_closing:
                        raise
                    take_back(task)
            if self._is_closing:  # a call may take no notice of its cancellation
                return
            idle = self._loop.create_future()
            self._idle.append(idle)
            await idle


def is_cancelled() -> bool:
    """Return whether the current task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def looked_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that several others may wait for; use it as a done callback.

    If all waiting tasks were cancelled, nothing else retrieves the exception, and asyncio reports that.
    """
    if not task.cancelled():
        task.exception()


@types.coroutine
def continued(call: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Await a coroutine that has been started with `send(None)`, which returned `waits_for`; return its result."""
    try:
        yield waits_for
    except BaseException as error:  # noqa: BLE001 - cancellations above all: they are the coroutine's, as in an await
        try:
            waits_for = call.throw(error)
        except StopIteration as response:
            return response.value
        return (yield from continued(call, waits_for))
    return (yield from cast("Generator[Any, Any, Any]", call))  # not `call.__await__()`: that makes a further object


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Give the loop a turn.

    Between two calls of a task it pays: the loop then runs each phase of many calls together, and the code of a phase stays in the CPU's
    cache (10 to 17 of 120 us of CPU a call over HTTP).
    """
    yield


async def own_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back what the current task's own code has cancelled it for. Raises the `CancelledError` if it was not raised yet."""
    await turn()  # a task that is to be cancelled gets its `CancelledError`
    take_back(task)


def take_back(task: asyncio.Task[Any]) -> None:
    """Take back all cancellations of a task: they came from code of the user, whose call has ended."""
    while task.uncancel():
        pass


async def returned(result: Any) -> Any:
    """Return the result of a coroutine that has ended."""
    return result


async def raised(error: BaseException) -> Any:
    """Raise the error of a coroutine that has ended."""
    raise error


class MisuseError(Exception):
    """A violation of the function's contract. This is no failure of the service, so the retry strategy does not apply."""


def awaited(method: Callable[[Any], Any], name: str) -> Callable[[Any], Awaitable[Any]]:
    """Return `method`; if it is no `async def`, a wrapper that raises `MisuseError` where its result cannot be awaited."""
    if inspect.iscoroutinefunction(method):
        return method

    async def checked(asked: Any) -> Any:
        result = method(asked)
        if not inspect.isawaitable(result):
            raise MisuseError(f"{name}() must be an 'async def' without a yield; it gave {result!r:.200}")
        return await result

    return checked


class CallCancelledError(Exception):
    """A call that was cancelled by its own code: it raised `CancelledError`, or cancelled its task. A failed call like another."""


def cancelled(error: asyncio.CancelledError) -> CallCancelledError:
    """Return the failure of a call that raised `CancelledError`."""
    failure = CallCancelledError("the function's own code cancelled the call")
    failure.__cause__ = error
    return failure


def contained(error: BaseException) -> BaseException:
    """Return an exception of a call's own task as one that can be raised in the tasks that wait for its response.

    SystemExit and the like would end the loop, and StopIteration cannot be raised by a future. A CancelledError stays: it is a failed call.
    """
    if isinstance(error, asyncio.CancelledError) or (
        isinstance(error, Exception) and not isinstance(error, StopIteration)
    ):
        return error
    misuse = MisuseError(f"it raised {type(error).__name__}: {error}")
    misuse.__cause__ = error
    return misuse
