"""How much trouble a seed has, and of which kinds."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True)
class Weather:
    """The frequency of each event, in a thousand steps. Each seed draws its weather."""

    failing: int = 0
    """A step of the disk is refused."""

    unheard: int = 0
    """A commit lands, and its writer gets an error, or hears that another writer was first."""

    late: int = 0
    """A commit is refused, and lands later."""

    kills: int = 0
    power: int = 0
    """All processes die, and what was not synced is lost."""

    suspensions: int = 0
    """A process sleeps, for seconds or for days."""

    places: int = 0
    """A process dies or sleeps for days at a named place of the protocol, of a thousand times that one gets there."""

    days: int = 0
    """A day passes."""

    users: int = 0
    """Somebody vacuums or brings back a sink, or brings back a copy of the job's folder."""

    has_lifetimes: bool = False
    """Somebody begins the job anew in place, and brings back the sinks of its former life."""

    has_regrets: bool = False
    """A nightly vacuum sleeps before it deletes, and somebody goes back to a checkpoint from before a compaction meanwhile."""

    retention_hours: int = 168

    @classmethod
    def drawn(cls, chance: Random) -> Weather:
        """Draw the weather: each kind of trouble occurs in half of the seeds, the rarer kinds in a quarter."""

        def often(most: int) -> int:
            return chance.randrange(1, most + 1) if chance.random() < 0.5 else 0

        if chance.random() < 0.1:  # fair weather else, so that they get there
            return cls(days=often(4), has_regrets=True, retention_hours=24)
        return cls(
            failing=often(10),
            unheard=often(60),
            late=often(60),
            kills=often(8),
            power=often(2),
            suspensions=often(4),
            places=often(100),
            days=often(4),
            users=often(3),
            has_lifetimes=chance.random() < 0.25,
            retention_hours=chance.choice([24, 168, 168]),
        )
