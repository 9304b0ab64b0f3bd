"""Virtual clock of a harness."""

from __future__ import annotations

from collections.abc import Callable

from headrace import clock


class HarnessClock(clock.VirtualClock):
    """A clock that calls its harness when time advances."""

    def __init__(self, advanced: Callable[[int], None]) -> None:
        """Start at 0. `advanced` is called with the new time (ms)."""
        super().__init__()
        self._advanced = advanced
        self.use()

    def use(self) -> None:
        """Install this clock as the active one: of several harnesses, the one in use has its clock installed."""
        before = clock.use(self)
        self.replaced: clock.Clock = before.replaced if isinstance(before, HarnessClock) else before

    def start_at(self, now: int) -> None:
        """Set another start time (ms), without firing timers."""
        super().advance(now - self.now())

    def advance(self, milliseconds: int) -> None:
        """Advance time (ms); timers of processing time that are due then fire."""
        super().advance(milliseconds)
        self._advanced(self.now())
