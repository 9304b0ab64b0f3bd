"""Opens a function whose service is down: the failure counts like that of a call, and calls open it later."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from headrace.async_io.tasks import looked_at

AsyncCall = Callable[[Any], Awaitable[Any]]


class RefusedError(Exception):
    """A function could not be opened, for a `reason` that is worth a retry."""

    def __init__(self, reason: Exception) -> None:
        """Keep the reason unchanged: calls fail with it."""
        super().__init__(str(reason))
        self.reason = reason


class Opening:
    """Opens one function in one task.

    A client that connects in `open` fails there when its service is down. If the retry strategy covers the failure, the
    first call opens the function instead, and a failure is that call's: it is retried, parked, and counted by the
    breaker.

        open refused ──> call: open again ──refused──> the call has failed
                                                                      └──────────> open: this call and all others continue
    """

    def __init__(self, open_: Callable[[], Awaitable[None]]) -> None:
        """Take `open_`, which raises `RefusedError` if another attempt is worth it."""
        self.is_open = False
        self._open = open_
        self._under_way: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Open the function, unless its service refuses for now. Raises any other error of `open`."""
        try:
            await self._open()
        except RefusedError:
            return
        self.is_open = True

    def before(self, call: AsyncCall) -> AsyncCall:
        """Return `call`, which first opens the function if that was refused. Calls that begin meanwhile share an attempt and its failure."""
        if self.is_open:
            return call

        async def opened_first(asked: Any) -> Any:
            if not self.is_open:
                await self._again()
            return await call(asked)

        return opened_first

    async def close(self) -> None:
        """Cancel an attempt that nothing waits for any more."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    async def _again(self) -> None:
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._attempt())
            self._under_way.add_done_callback(looked_at)
        # A call that times out must not cancel the opening for the others that wait for it.
        await asyncio.shield(self._under_way)

    async def _attempt(self) -> None:
        try:
            await self._open()
        except RefusedError as error:
            raise error.reason from None
        finally:
            self._under_way = None
        self.is_open = True
