"""Clock: the only module that reads clocks, sleeps, draws random numbers and makes identifiers.

All other modules use this one, so that a test can install a virtual clock (`use`), and the linter can forbid `time`,
`datetime.now`, `random` and `uuid` everywhere else.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Clock(Protocol):
    """Interface of clocks. Times are milliseconds since the epoch (UTC), spans are seconds."""

    def now(self) -> int:
        """Return the milliseconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go back. Only differences have a meaning."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block this thread."""
        ...

    async def sleep_async(self, seconds: float) -> None:
        """Let other coroutines run for `seconds`."""
        ...

    def unique_id(self) -> str:
        """Return a new identifier: 32 hexadecimal digits, never given twice."""
        ...

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class SystemClock:
    """Clock of the operating system."""

    def now(self) -> int:
        """Return the time in milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block this thread for `seconds`."""
        time.sleep(seconds)

    async def sleep_async(self, seconds: float) -> None:
        """Let other coroutines run for `seconds`."""
        import asyncio  # 20 ms that `headrace --help` does without

        await asyncio.sleep(seconds)

    def unique_id(self) -> str:
        """Return a new identifier."""
        return uuid.uuid4().hex

    def jitter(self) -> float:
        """Return a random number in [0, 1)."""
        return random.random()


class VirtualClock:
    """Clock for tests: it stands still until `advance`; sleeping advances it; ids count up."""

    def __init__(self, start: int = 0, seed: int | None = None) -> None:
        """Start at `start` milliseconds. `seed` draws the random numbers (None: each is 0.5)."""
        self._now = start
        self._ids = 0
        self._chance = None if seed is None else random.Random(seed)

    def advance(self, milliseconds: int) -> None:
        """Advance the time."""
        self._now += milliseconds

    def now(self) -> int:
        """Return the time of this clock (ms)."""
        return self._now

    def monotonic(self) -> float:
        """Return the time of this clock (s)."""
        return self._now / 1000

    def sleep(self, seconds: float) -> None:
        """Advance this clock by `seconds`; return at once."""
        self.advance(round(seconds * 1000))

    async def sleep_async(self, seconds: float) -> None:
        """Advance this clock by `seconds`; let other coroutines run once."""
        self.advance(round(seconds * 1000))
        import asyncio

        await asyncio.sleep(0)

    def unique_id(self) -> str:
        """Return the next number, as an identifier."""
        self._ids += 1
        return f"{self._ids:032x}"

    def jitter(self) -> float:
        """Return the next random number of the seed."""
        return 0.5 if self._chance is None else self._chance.random()


_clock: Clock = SystemClock()


def shift_wall_clock(seconds: int) -> None:
    """Make `time`, `datetime.now` and `date.today` of this process show another time, also to modules that are imported later.

    For a process that tries user code on another day. It cannot be undone.
    """
    import ctypes
    import datetime as dt
    import gc

    real_time, real_ns, local, utc = time.time, time.time_ns, time.localtime, time.gmtime
    time.time = lambda: real_time() + seconds
    time.time_ns = lambda: real_ns() + seconds * 1_000_000_000
    time.localtime = lambda at=None: local(time.time() if at is None else at)
    time.gmtime = lambda at=None: utc(time.time() if at is None else at)
    names = gc.get_referents(dt.datetime.__dict__)[0]  # the attributes of a class in C, which refuses to set them
    for name in ("now", "utcnow"):
        real = getattr(dt.datetime, name)
        names[name] = classmethod(lambda _, *zone, _real=real, **tz: _real(*zone, **tz) + dt.timedelta(seconds=seconds))
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(dt.datetime))


def use(clock: Clock) -> Clock:
    """Install `clock` for this process; return the former one."""
    global _clock
    previous, _clock = _clock, clock
    return previous


@contextmanager
def installed(clock: Clock) -> Iterator[None]:
    """Install `clock` for the length of a block."""
    before = use(clock)
    try:
        yield
    finally:
        use(before)


def now() -> int:
    """Return the milliseconds since the epoch."""
    return _clock.now()


def monotonic() -> float:
    """Return seconds that never go back."""
    return _clock.monotonic()


def sleep(seconds: float) -> None:
    """Block this thread."""
    _clock.sleep(seconds)


async def sleep_async(seconds: float) -> None:
    """Let other coroutines run for `seconds`."""
    await _clock.sleep_async(seconds)


def unique_id() -> str:
    """Return a new identifier of 32 hexadecimal digits."""
    return _clock.unique_id()


def named_uuid(name: str) -> str:
    """Return the UUID of a name: the same for each call."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def jitter() -> float:
    """Return a random number in [0, 1)."""
    return _clock.jitter()
