"""Async functions over blocking clients: each call in a thread (Flink Async I/O, synchronous clients in a thread pool)."""

from __future__ import annotations

import abc
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import ClassVar, TypeVar

import msgspec

from headrace import clock
from headrace.api.functions import AsyncFunction

_SECONDS_BETWEEN_LOOKS = 0.02

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class BlockingFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` over a client that blocks.

    Implement `call` in place of `invoke`. It runs in one of `threads` threads, so everything it shares must be
    thread-safe. A thread cannot be interrupted: a call that exceeds the timeout is abandoned, but keeps its thread
    until it returns.
    """

    threads: ClassVar[int] = 16
    """Calls at once; further calls wait for a thread while their timeout runs."""

    patience: ClassVar[timedelta] = timedelta(seconds=5)
    """Longest time that `close` waits for abandoned calls, so that a call that hangs cannot block the run."""

    _pool: ThreadPoolExecutor | None = None

    @abc.abstractmethod
    def call(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`; as `AsyncFunction.invoke`, but blocking. Called in a thread."""

    async def open(self, services: dict[str, str], /) -> None:
        """Start the threads. A method that overrides this one must call it."""
        await super().open(services)
        self._calls: set[object] = set()
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=type(self).__name__)

    async def close(self) -> None:
        """Stop the threads after their calls end, at most `patience` later. A method that overrides this one must call it."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
            until = clock.monotonic() + self.patience.total_seconds()
            while self._calls and clock.monotonic() < until:
                await clock.sleep_async(_SECONDS_BETWEEN_LOOKS)
        await super().close()

    async def invoke(self, record: In, /) -> list[Out]:
        """Return the records to emit for `record`: none, one or many. Raises `RuntimeError` before `open`."""
        if self._pool is None:
            raise RuntimeError(f"{type(self).__name__} was called before open(); does its open() call super().open()?")
        import asyncio  # commands that read state run no function; with ssl and logging, asyncio takes 15 ms to import

        return await asyncio.get_running_loop().run_in_executor(self._pool, self._called, record)

    def _called(self, record: In) -> list[Out]:
        self._calls.add(call := object())
        try:
            return self.call(record)
        except StopIteration as error:
            # A future cannot carry StopIteration: code that waits for the answer would wait for ever.
            raise RuntimeError(f"{type(self).__name__}.call() raised StopIteration") from error
        finally:
            self._calls.discard(call)
