"""Executes requests as coroutines on an asyncio loop, for a controller that runs in another thread."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from engine.execution.request import AsyncRequest


class AsyncioExecutor:
    """Calls `call(action)` for each request, at most `capacity` at once; a request is a batch of its own.

    The loop lives within `around`, which opens clients for it and closes them.
    """

    def __init__(
        self,
        call: Callable[[Any], Awaitable[Any]],
        capacity: int,
        around: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        """Start the loop, and wait until it is open. Raises what opening it raises."""
        self.in_flight = 0
        self._call = call
        self._capacity = capacity
        self._around = around
        self._done: queue.SimpleQueue[AsyncRequest] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._failed: BaseException | None = None
        self._loop = asyncio.new_event_loop()
        self._end = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="async-io", daemon=True)
        self._thread.start()
        failure = self._opened.get()
        if failure is not None:
            self._thread.join()
            raise failure

    @property
    def has_room(self) -> bool:
        """See `AsyncExecutor.has_room`."""
        return self.in_flight < self._capacity

    def submit(self, batch: Sequence[AsyncRequest], /) -> None:
        """See `AsyncExecutor.submit`."""
        for request in batch:
            self.in_flight += 1
            asyncio.run_coroutine_threadsafe(self._execute(request), self._loop)

    def completed(self, *, wait: bool) -> list[AsyncRequest]:
        """See `AsyncExecutor.completed`."""
        done: list[AsyncRequest] = []
        while self.in_flight:
            try:
                done.append(self._done.get(block=wait and not done))
            except queue.Empty:
                break
            self.in_flight -= 1
        return done

    def close(self) -> None:
        """Cancel what is running and end the loop. Raises what closing it raises."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end.set)
            self._thread.join()
        if self._failed is not None:
            failed, self._failed = self._failed, None
            raise failed

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:  # noqa: BLE001 - raised again in the task's thread
                self._failed = error
                self._opened.put(error)

    async def _serve(self) -> None:
        async with self._around():
            self._opened.put(None)
            await self._end.wait()

    async def _execute(self, request: AsyncRequest) -> None:
        try:
            request.answer = await self._call(request.action)
        except BaseException as error:  # noqa: BLE001 - raised again in the task's thread
            request.error = error
        self._done.put(request)
