"""Opening a function whose service is down: that fails as a call would, and calls make up for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.async_io.tasks import looked_at

AsyncCall = Callable[[Any], Awaitable[Any]]


class RefusedError(Exception):
    """A function could not be opened, for a `reason` that is worth a retry."""

    def __init__(self, reason: Exception) -> None:
        """Keep the reason as it is: a call fails with it."""
        super().__init__(str(reason))
        self.reason = reason


class Opening:
    """Opens one function in one task.

    A client that connects in `open` fails there when its service is down. If the retry strategy covers that, the function
    is opened by the first call instead, and a failure is that call's: it is retried, parked, and counted by the breaker.

        open refused ──> call: open again ──refused──> the call has failed
                                   └──────────> open: this call and all others go on
    """

    def __init__(self, open_: Callable[[], Awaitable[None]]) -> None:
        """`open_` raises `RefusedError` if another attempt is worth it."""
        self.is_open = False
        self._open = open_
        self._under_way: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Open the function, unless its service refuses that for now. Raises what opening it raises otherwise."""
        try:
            await self._open()
        except RefusedError:
            return
        self.is_open = True

    def before(self, call: AsyncCall) -> AsyncCall:
        """`call`, with the opening before it if that was refused. Calls that begin meanwhile share an attempt, and its failure."""
        if self.is_open:
            return call

        async def opened_first(asked: Any) -> Any:
            if not self.is_open:
                await self._again()
            return await call(asked)

        return opened_first

    async def close(self) -> None:
        """Cancel an attempt that nobody waits for any more."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _again(self) -> None:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._attempt())
            self._under_way.add_done_callback(looked_at)
        # A call that runs into its timeout must not take the opening from the others that wait for it.
        await asyncio.shield(self._under_way)

    async def _attempt(self) -> None:
        try:
            await self._open()
        except RefusedError as error:
            raise error.reason from None
        finally:
            self._under_way = None
        self.is_open = True
