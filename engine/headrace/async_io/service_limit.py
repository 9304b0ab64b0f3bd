"""Load limits of a service for one task, shared by all operators of the task that call it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any


class ServiceLimit:
    """Limits of calls per second and of calls at once. Waiting for either counts towards the element's timeout."""

    def __init__(self, rate: float | None = None, concurrency: int | None = None) -> None:
        """Take the limits; None means no limit. `rate` is calls per second, evenly spaced."""
        self._seconds_between = 1 / rate if rate is not None else 0.0
        self._next = 0.0
        self._room = asyncio.Semaphore(concurrency) if concurrency is not None else None

    def over(self, call: Callable[[Any], Awaitable[Any]]) -> Callable[[Any], Awaitable[Any]]:
        """Return `call` within the limits."""
        if self._room is None and not self._seconds_between:
            return call

        async def limited(asked: Any) -> Any:
            if self._room is None:
                await self._turn()
                return await call(asked)
            async with self._room:
                await self._turn()
                return await call(asked)

        return limited

    async def _turn(self) -> None:
        if not self._seconds_between:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        mine = max(now, self._next)
        self._next = mine + self._seconds_between
        if mine > now:
            turn = loop.create_future()
            timer = loop.call_at(mine, _wake, turn)
            try:
                await turn
            finally:
                timer.cancel()


def _wake(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
