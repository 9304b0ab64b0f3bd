"""The virtual clock of a harness."""

from __future__ import annotations

from collections.abc import Callable

from headrace import clock


class HarnessClock(clock.VirtualClock):
    """A clock that tells its harness when time moves on."""

    def __init__(self, advanced: Callable[[int], None]) -> None:
        """Start at 0. `advanced` is called with the new time."""
        super().__init__()
        self._advanced = advanced
        self.use()

    def use(self) -> None:
        """Install this clock as the active one: of several harnesses, the one which is being used has its clock in place."""
        before = clock.use(self)
        self.replaced: clock.Clock = before.replaced if isinstance(before, HarnessClock) else before

    def start_at(self, now: int) -> None:
        """Begin at another time: no timer fires on the way."""
        super().advance(now - self.now())

    def advance(self, milliseconds: int) -> None:
        """Move time on; timers of processing time that are due then fire."""
        super().advance(milliseconds)
        self._advanced(self.now())
