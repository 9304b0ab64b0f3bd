"""Circuit breaker: detects that a service is down, so that one probe tests it instead of a call for each element."""

from __future__ import annotations

import asyncio
import enum
from collections import deque

from headrace import clock
from headrace.api import CircuitBreaker

_REMEMBERED = 64
"""Number of failures that are kept to recognise a shared one."""


class BreakerState(enum.Enum):
    """State of a breaker."""

    CLOSED = "closed"
    """Calls are made."""

    OPEN = "open"
    """No calls are made until the next probe."""

    HALF_OPEN = "half_open"
    """One call is in flight: the probe."""


CLOSED = BreakerState.CLOSED  # Python 3.11 makes a call for each look at an enum's member


class Breaker:
    """Breaker of one operator in one task.

    closed ──failures in a row──> open ──time for a probe──> half open ──success──> closed
                                    ^────────failure, twice the time────────┘
    """

    def __init__(self, policy: CircuitBreaker, open_until: int | None = None) -> None:
        """Start closed; or open with the next probe at `open_until` (ms), as an earlier micro-batch left it."""
        self._policy = policy
        self._failures = 0
        self._counted: deque[BaseException] = deque(maxlen=_REMEMBERED)
        self._interval = policy.probe_after
        self._changed = asyncio.Event()
        self.state = BreakerState.CLOSED if open_until is None else BreakerState.OPEN
        # A clock that was set back must not keep the breaker open for longer than its longest wait.
        longest = clock.now() + round(policy.longest.total_seconds() * 1000)
        self.open_until = None if open_until is None else min(open_until, longest)
        """When the next probe is due (ms); None while closed."""
        self.opened = 0
        """Number of times that it opened."""

    @property
    def is_open(self) -> bool:
        """Return whether it is not closed: callers must then ask `admits`."""
        return self.state is not BreakerState.CLOSED

    def admits(self) -> bool:
        """Return whether a call may begin now. After a probe, call `succeeded`, `failed` or `probe_cancelled`."""
        if self.state is BreakerState.CLOSED:
            return True
        if self.state is BreakerState.OPEN and clock.now() >= (self.open_until or 0):
            self.state = BreakerState.HALF_OPEN
            return True
        return False

    def seconds_to_probe(self) -> float:
        """Return the seconds until the next probe is due; 0 while one is in flight."""
        return max(0.0, ((self.open_until or 0) - clock.now()) / 1000)

    async def change(self) -> None:
        """Wait for the outcome of the probe."""
        await self._changed.wait()

    def succeeded(self) -> None:
        """Count an answered call, and close the breaker."""
        self._failures = 0
        if self.state is not CLOSED:
            self._interval = self._policy.probe_after
            self.open_until = None
            self._become(BreakerState.CLOSED)

    def failed(self, error: BaseException, *, is_probe: bool) -> None:
        """Count a failed call that is worth a retry; open the breaker after too many in a row.

        Records that share a call share its failure, the same exception object: fifty of them count as one failure.
        """
        if not is_probe and any(error is counted for counted in self._counted):
            return
        self._counted.append(error)
        self._failures += 1
        if is_probe:
            self._interval = min(2 * self._interval, self._policy.longest)
            self._open()
        elif self.state is BreakerState.CLOSED and self._failures >= self._policy.failures:
            self.opened += 1
            self._open()

    def probe_cancelled(self) -> None:
        """Admit another probe: the current one was interrupted. Does nothing after other calls."""
        if self.state is BreakerState.HALF_OPEN:
            self._become(BreakerState.OPEN)

    def _open(self) -> None:
        self.open_until = clock.now() + round(self._interval.total_seconds() * 1000)
        self._become(BreakerState.OPEN)

    def _become(self, state: BreakerState) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()
