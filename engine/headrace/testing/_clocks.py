"""Clocks of harnesses: alone each has its own time; in a world all are at the world's time."""

from __future__ import annotations

import itertools

from headrace import clock

START = 1_577_836_800_000
"""Start time of a clock that follows the input: 1 January 2020 (ms)."""

_LATEST_START = 250_000_000_000_000
"""Latest start time of a clock that starts by itself (ms): in the year 9892, since times behind 9999 cannot be shown."""

_ids = itertools.count(1)


class JobClock(clock.VirtualClock):
    """A virtual clock whose ids are unique in this process: a restored folder has files of earlier harnesses.

    Without a start time, it follows the input: it is never behind the first event times of the files that a job was fed.
    """

    def __init__(self, now: int | None = None, seed: int | None = None) -> None:
        """Start at `now` (ms), by default on 1 January 2020."""
        super().__init__(START if now is None else now, seed)
        self.follows_input = now is None

    def unique_id(self) -> str:
        """Return an id that no other harness of this process returns."""
        number = next(_ids)
        return f"{number:012x}{number:020x}"

    def reach(self, time: int) -> None:
        """Advance to `time` (ms), if that is later than now, and not later than any time that can be shown."""
        self.advance(max(0, min(time, _LATEST_START) - self.now()))


class OperatorClock(clock.VirtualClock):
    """Clock of an operator's harness. In a world it is at the world's time, and advances the whole world."""

    world: WorldClock | None = None

    def advance(self, milliseconds: int) -> None:
        """Advance time (ms); what is due then happens before this returns."""
        if self.world is None:
            self.follow(milliseconds)
        else:
            self.world.advance(milliseconds)

    def follow(self, milliseconds: int) -> None:
        """Advance the time of this operator alone (ms)."""
        super().advance(milliseconds)

    def has_moved(self) -> None:
        """Make the world catch up with this clock, which its harness has advanced."""
        if self.world is not None:
            self.world.advance(max(0, self.now() - self.world.now()))


class WorldClock(JobClock):
    """Clock of a world: it advances the clocks of all its operators, one after the other.

    A restored snapshot may set it back. Operators wait then until it reaches their time again.
    """

    def __init__(self, now: int | None = None, seed: int | None = None) -> None:
        """Start at `now` (ms), by default on 1 January 2020."""
        super().__init__(now, seed)
        self._operators: list[OperatorClock] = []

    def lead(self, operator: OperatorClock) -> None:
        """Advance the clock of an operator from now on. The earlier of both clocks reaches the later one."""
        operator.world = self
        self._operators.append(operator)
        self.advance(max(0, operator.now() - self.now()))

    def advance(self, milliseconds: int) -> None:
        """Advance time (ms); what is due then in an operator happens before this returns. The next run of a job fires its timers."""
        super().advance(milliseconds)
        with clock.installed(self):
            for operator in self._operators:
                behind = self.now() - operator.now()
                if behind > 0:
                    operator.follow(behind)
