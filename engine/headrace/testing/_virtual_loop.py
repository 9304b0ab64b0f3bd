"""Asyncio loop with virtual time: timers wait until a test advances the clock."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from headrace import clock
from headrace.testing._clocks import OperatorClock

T = TypeVar("T")


_SAME_TIME = 1e-6
"""Timestamps closer than this (seconds) count as one: a float of a hundred years in seconds is no more precise."""


class _Selector(selectors.DefaultSelector):
    """Calls the loop's owner when the loop can only wait."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: Callable[[float | None], None] = lambda _: None

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Poll for events without waiting."""
        events = super().select(0)
        if not events and timeout != 0:
            self.idle(timeout)
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose time advances only in `run_until` and `run_whole`, from one timer to the next."""

    def __init__(self) -> None:
        """Start at 0."""
        self._virtual = 0.0
        self._until = 0.0
        selector = _Selector()
        selector.idle = self._idle
        super().__init__(selector)
        # Resolution with which the loop compares timestamps. A real clock's nanosecond is lost in a float of 194 days, and a timer at
        # the present timestamp would never become due.
        self._clock_resolution = _SAME_TIME

    def time(self) -> float:
        """Return the seconds since the start."""
        return self._virtual

    def run_until(self, seconds: float) -> None:
        """Run everything that is due up to this time. For the present time: everything that can run at once."""
        self._until = seconds
        self.run_forever()
        self._virtual = max(self._virtual, seconds)

    def run_whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, however long it takes."""
        self.let_time_run()
        return self.run_until_complete(work)

    def let_time_run(self) -> None:
        """From now on advance time automatically, whoever runs the loop, as long as there is a timer."""
        self._until = float("inf")

    def run_to_next_timer(self, until: float = float("inf")) -> bool:
        """Advance time to the next timer, and run it; return whether there was one up to `until`."""
        before, self._until = self._virtual, -1.0
        self.run_forever()
        self._virtual = before
        if self._next is None or self._next > until + _SAME_TIME:
            return False
        self.run_until(self._next)
        return True

    def run_in_executor(  # type: ignore[override] # typeshed: with type variables for the arguments
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call at once, in this thread: another thread does not know the virtual time."""
        del executor
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the code that awaits the future gets it
            future.set_exception(error)
        return future

    def _idle(self, timeout: float | None) -> None:
        self._next = None if timeout is None else self._virtual + timeout
        if self._next is not None and self._next <= self._until + _SAME_TIME:
            self._virtual = self._next
        elif self._until == float("inf"):
            raise RuntimeError("it waits for something that no timer will bring about")
        else:
            self.stop()

    _next: float | None = None


class LoopClock(OperatorClock):
    """Clock of a virtual loop: `advance` runs the loop."""

    def __init__(self, loop: VirtualLoop, advanced: Callable[[], None]) -> None:
        """Take the loop. `advanced` is called in each `advance`, at each timestamp at which a timer was due."""
        super().__init__()
        self._loop = loop
        self._advanced = advanced
        before = clock.use(self)
        self.replaced: clock.Clock = before.replaced if isinstance(before, LoopClock) else before

    def start_at(self, now: int) -> None:
        """Set another start time than 0 (ms)."""
        self._now = now - round(self._loop.time() * 1000)

    def follow(self, milliseconds: int) -> None:
        """Advance time (ms) and run due timers in order. An error on the way is raised, and time stops there."""
        clock.use(self)
        until = self._loop.time() + milliseconds / 1000
        while self._loop.run_to_next_timer(until):
            self._advanced()
        self._loop.run_until(until)
        self._advanced()

    def now(self) -> int:
        """Return the time (ms since the epoch)."""
        return self._now + int((self._loop.time() + _SAME_TIME) * 1000)

    def monotonic(self) -> float:
        """Return the loop's time (s)."""
        return self._loop.time()

    async def sleep_async(self, seconds: float) -> None:
        """Sleep for `seconds` on the virtual loop."""
        await asyncio.sleep(seconds)  # noqa: TID251 - on the virtual loop
