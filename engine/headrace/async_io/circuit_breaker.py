"""Notices that a service is plainly down, so that it is probed and not called for each element."""

from __future__ import annotations

import asyncio
import enum
from collections import deque

from headrace import clock
from headrace.api import CircuitBreaker

_REMEMBERED = 64
"""Failures that are told from each other."""


class BreakerState(enum.Enum):
    """Whether calls are made."""

    CLOSED = "closed"
    """They are."""

    OPEN = "open"
    """They are not, until the next probe."""

    HALF_OPEN = "half_open"
    """One is under way: the probe."""


class Breaker:
    """The breaker of one operator in one task.

    closed ──failures in a row──> open ──time for a probe──> half open ──success──> closed
                                    ^────────failure, twice the time────────┘
    """

    def __init__(self, policy: CircuitBreaker, open_until: int | None = None) -> None:
        """Start closed; or open with the next probe at `open_until` (ms), as an earlier micro-batch has left it."""
        self._policy = policy
        self._failures = 0
        self._counted: deque[BaseException] = deque(maxlen=_REMEMBERED)
        self._interval = policy.probe_after
        self._changed = asyncio.Event()
        self.state = BreakerState.CLOSED if open_until is None else BreakerState.OPEN
        # A clock that was put back since must not keep it open for longer than it ever would be.
        longest = clock.now() + round(policy.longest.total_seconds() * 1000)
        self.open_until = None if open_until is None else min(open_until, longest)
        """When the next probe is due (ms); None while it is closed."""
        self.opened = 0
        """How often it has opened."""

    @property
    def is_open(self) -> bool:
        """Whether it is not closed: `admits` has to be asked."""
        return self.state is not BreakerState.CLOSED

    def admits(self) -> bool:
        """Whether a call may begin now. If it is the probe, `succeeded`, `failed` or `gave_way` must follow."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and clock.now() >= (self.open_until or 0):
            self.state = BreakerState.HALF_OPEN
            return True
        return False

    def seconds_to_probe(self) -> float:
        """How long until the next probe is due; 0 while one is under way."""
        return max(0.0, ((self.open_until or 0) - clock.now()) / 1000)

    async def change(self) -> None:
        """Wait for what comes of the probe."""
        await self._changed.wait()

    def succeeded(self) -> None:
        """A call has been answered."""
        self._failures = 0
        if self.state is not BreakerState.CLOSED:
            self._interval = self._policy.probe_after
            self.open_until = None
            self._become(BreakerState.CLOSED)

    def failed(self, error: BaseException, *, is_probe: bool) -> None:
        """A call has failed in a way that is worth a retry.

        Records that share a call share its failure, the very object: fifty of them do not make fifty failures.
        """
        if not is_probe and any(error is one for one in self._counted):
            return
        self._counted.append(error)
        self._failures += 1
        if is_probe:
            self._interval = min(2 * self._interval, self._policy.longest)
            self._open()
        elif self.state is BreakerState.CLOSED and self._failures >= self._policy.failures:
            self.opened += 1
            self._open()

    def gave_way(self) -> None:
        """A call was interrupted: if it was the probe, another one may be."""
        if self.state is BreakerState.HALF_OPEN:
            self._become(BreakerState.OPEN)

    def _open(self) -> None:
        self.open_until = clock.now() + round(self._interval.total_seconds() * 1000)
        self._become(BreakerState.OPEN)

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
