"""Clients that block: each call in a thread (Flink Async I/O, synchronous clients in a thread pool)."""

from __future__ import annotations

import abc
import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar, TypeVar

import msgspec

from engine.api._functions import AsyncFunction

In = TypeVar("In", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class BlockingFunction(AsyncFunction[In, Out]):
    """An `AsyncFunction` over a client that blocks.

    Write `call` in place of `invoke`. It runs in one of `threads` threads, so what it shares must be safe for that. A
    thread cannot be interrupted: a call that runs into the timeout is given up on, but takes its thread until it returns.
    """

    threads: ClassVar[int] = 16
    """Calls at once; more wait for a thread, and their timeout runs."""

    _pool: ThreadPoolExecutor | None = None

    @abc.abstractmethod
    def call(self, record: In, /) -> list[Out]:
        """Answer with the records to emit for `record`; as `AsyncFunction.invoke`, but blocking."""

    async def open(self, services: dict[str, str], /) -> None:
        """Start the threads. Whoever overrides this calls it as well."""
        await super().open(services)
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=type(self).__name__)

    async def close(self) -> None:
        """End the threads, after the calls that they are in. Whoever overrides this calls it as well."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await asyncio.get_running_loop().run_in_executor(None, lambda: pool.shutdown(cancel_futures=True))
        await super().close()

    async def invoke(self, record: In, /) -> list[Out]:
        """See `AsyncFunction.invoke`. Raises `RuntimeError` before `open`."""
        if self._pool is None:
            raise RuntimeError(f"{type(self).__name__} was called before open(); does its open() call super().open()?")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.call, record)
