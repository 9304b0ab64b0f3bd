"""The one module that reads clocks, sleeps, rolls dice and makes identifiers.

Everything else asks here, so a test can put a virtual clock in place (`use`), and the linter can
forbid `time`, `datetime.now`, `random` and `uuid` everywhere else.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """What a clock can do. Times are milliseconds since the epoch (UTC), spans are seconds."""

    def now(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean something."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Let other coroutines run for `seconds`."""
        ...

    def unique_id(self) -> str:
        """A new identifier: 32 hexadecimal digits, never given twice."""
        ...

    def jitter(self) -> float:
        """A number in [0, 1)."""
        ...


class SystemClock:
    """The real thing."""

    def now(self) -> int:
        """See `Clock.now`."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`."""
        import asyncio  # 20 ms that `headrace --help` does without

        await asyncio.sleep(seconds)

    def unique_id(self) -> str:
        """See `Clock.unique_id`."""
        return uuid.uuid4().hex

    def jitter(self) -> float:
        """See `Clock.jitter`."""
        return random.random()


class VirtualClock:
    """A clock for tests: it stands still until `advance`; sleeping advances it; ids count up."""

    def __init__(self, start: int = 0) -> None:
        """Start at `start` milliseconds."""
        self._now = start
        self._ids = 0

    def advance(self, milliseconds: int) -> None:
        """Move time on."""
        self._now += milliseconds

    def now(self) -> int:
        """See `Clock.now`."""
        return self._now

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._now / 1000

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`; returns at once, `seconds` later."""
        self.advance(round(seconds * 1000))

    async def sleep_async(self, seconds: float) -> None:
        """See `Clock.sleep_async`; returns at once, `seconds` later."""
        self.advance(round(seconds * 1000))
        import asyncio

        await asyncio.sleep(0)

    def unique_id(self) -> str:
        """See `Clock.unique_id`."""
        self._ids += 1
        return f"{self._ids:032x}"

    def jitter(self) -> float:
        """See `Clock.jitter`; always the middle."""
        return 0.5


_clock: Clock = SystemClock()


def use(clock: Clock) -> Clock:
    """Put `clock` in place for this process and return the one that was there."""
    global _clock
    previous, _clock = _clock, clock
    return previous


def now() -> int:
    """Milliseconds since the epoch."""
    return _clock.now()


def monotonic() -> float:
    """Seconds that never go back."""
    return _clock.monotonic()


def sleep(seconds: float) -> None:
    """Block this thread."""
    _clock.sleep(seconds)


async def sleep_async(seconds: float) -> None:
    """Let other coroutines run for `seconds`."""
    await _clock.sleep_async(seconds)


def unique_id() -> str:
    """A new identifier of 32 hexadecimal digits."""
    return _clock.unique_id()


def jitter() -> float:
    """A number in [0, 1)."""
    return _clock.jitter()
