"""A lag's partitions as plain lists, and the resulting table: a slow model that shares no code with the engine."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

Partition = list[tuple[Hashable, Any, int]]


@dataclass
class LagByHand:
    """Rows are found by name, and live for `ttl` ms by a clock that never goes back.

    With `legacy` a partition has one stamp, which additions and matched retractions renew.
    """

    offset: int = 1
    ttl: int | None = None
    legacy: bool = False
    partitions: dict[str, Partition] = field(default_factory=dict)
    table: dict[tuple[str, Hashable], tuple[Any, Any]] = field(default_factory=dict)
    """By partition and name: the row, and the one before it."""
    unmatched: int = 0

    def take(self, partition: str, name: Hashable, row: Any, *, retracts: bool, at: int, clock: int | None) -> None:
        """Add or retract a row at time `at`."""
        self.end(clock)
        rows = self.partitions.setdefault(partition, [])
        at = max([at, *(stamp for *_, stamp in rows)])
        place = next((number for number, row in enumerate(rows) if row[0] == name), None)
        if place is None and retracts:
            self.unmatched += 1
        elif place is None:
            rows.append((name, row, at))
            self._tell(partition, [len(rows) - 1])
        elif retracts:
            del rows[place]
            del self.table[partition, name]
            if self.legacy and rows:
                rows[-1] = (*rows[-1][:2], at)
            self._tell(partition, range(place, place + self.offset))
        else:
            rows[place] = (name, row, at)
            self._tell(partition, range(place, place + self.offset + 1))

    def end(self, clock: int | None) -> None:
        """Remove expired entries silently."""
        if self.ttl is None or clock is None:
            return
        for partition, rows in self.partitions.items():
            newest = max((stamp for *_, stamp in rows), default=0)
            self.partitions[partition] = [row for row in rows if (newest if self.legacy else row[2]) + self.ttl > clock]

    def _tell(self, partition: str, places: Iterable[int]) -> None:
        rows = self.partitions[partition]
        for place in places:
            if place < len(rows):
                name, row, _ = rows[place]
                before = rows[place - self.offset][1] if place >= self.offset else None
                self.table[partition, name] = (row, before)
