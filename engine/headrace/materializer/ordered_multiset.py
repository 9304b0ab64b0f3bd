"""Ordered multiset of rows (FLIP-544, "Proposed Changes"): its interface, and its layout as a list.

Every row has a sequence number, one higher than that of the last row when it arrived. Numbers denote positions: a row
that is replaced keeps its number, and with it its position. Rows are found by their identity: the whole row, or its
upsert key. Several rows may share an identity (it is a multiset); operations then take the first of them.

    append a, b, a      0:a 1:b 2:a
        remove a                1:b 2:a      Removal.OTHER: the last row did not change
    put b'                  1:b'2:a      replaced in place
        remove a                1:b'         Removal.LAST: b' is the last row now
        append c                1:b'2:c      numbers continue from the last row's

Two layouts implement the interface. `ListLayout` searches from the front, which is fastest while it is short.
`MapLayout` takes as long for a million rows as for ten, and need not hold all of them in memory.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator, Reversible
from typing import ClassVar, Protocol

Identity = Hashable
"""Identity of a row: its JSON, or the value of its upsert key."""

Row = tuple[int, bytes, int, int]
"""Sequence number, row as JSON, row kind, and insertion time (ms). A plain tuple is cheap: every change makes one."""


class Removal(enum.Enum):
    """Result of a removal."""

    NOTHING = "nothing"
    """No row has this identity."""
    OTHER = "other"
    """A row was removed that was not the last."""
    LAST = "last"
    """The last row was removed; another row is the last now."""
    ALL = "all"
    """The only row was removed."""


NOTHING, OTHER, LAST, ALL = Removal


_FEW = 16
"""Number of rows up to which searching a list is as fast as a set."""


class OrderedMultiset(Protocol):
    """Rows in order. In a map, the cost of all methods but `entries` and `expire` does not depend on the number of rows."""

    is_map: ClassVar[bool]
    size: int

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Add a row at the end, also if its identity is present."""
        ...

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Replace the first row of this identity in place, or add one at the end."""
        ...

    def remove(self, identity: Identity) -> Removal:
        """Remove the first row of this identity; return which position it had."""
        ...

    def find(self, identity: Identity) -> int | None:
        """Return the number of the first row of this identity; None without one."""
        ...

    def get(self, number: int) -> Row:
        """Return the row of this number, which must exist."""
        ...

    def first(self) -> Row:
        """Return the first row. There must be one."""
        ...

    def last(self) -> Row:
        """Return the last row. There must be one."""
        ...

    def before(self, number: int) -> Row | None:
        """Return the row before the one of this number, which must exist."""
        ...

    def after(self, number: int) -> Row | None:
        """Return the row after the one of this number, which must exist."""
        ...

    def renew(self, inserted_at: int) -> None:
        """Set the insertion time of the last row. There must be one."""
        ...

    def oldest(self) -> int | None:
        """Return the earliest `inserted_at`; None without rows."""
        ...

    def newest(self) -> int | None:
        """Return the latest `inserted_at`; None without rows."""
        ...

    def expire(self, until: int) -> int:
        """Remove the rows inserted at or before `until`, the oldest first; return how many. A list checks all rows."""
        ...

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """Iterate over all rows in order, each after its identity. Do not change the rows meanwhile."""
        ...


class ScannedLayout:
    """Rows in memory, in order: what looks at one after the other, from either end."""

    __slots__ = ()

    def in_memory(self) -> Reversible[Row]:
        """Return all rows, in order."""
        raise NotImplementedError

    def get(self, number: int) -> Row:
        """Return the row of this number, which must exist."""
        return next(row for row in self.in_memory() if row[0] == number)

    def first(self) -> Row:
        """Return the first row. There must be one."""
        return next(iter(self.in_memory()))

    def before(self, number: int) -> Row | None:
        """Return the row before the one of this number, which must exist."""
        return next((row for row in reversed(self.in_memory()) if row[0] < number), None)

    def after(self, number: int) -> Row | None:
        """Return the row after the one of this number, which must exist."""
        return next((row for row in self.in_memory() if row[0] > number), None)

    def oldest(self) -> int | None:
        """Return the earliest `inserted_at`; None without rows."""
        return min((row[3] for row in self.in_memory()), default=None)

    def newest(self) -> int | None:
        """Return the latest `inserted_at`; None without rows."""
        return max((row[3] for row in self.in_memory()), default=None)


class ListLayout(ScannedLayout):
    """Ordered multiset as a list, searched from the front."""

    is_map: ClassVar[bool] = False

    __slots__ = ("_identities", "_known", "_rows", "size")

    def __init__(self, items: Iterable[tuple[Identity, Row]] = ()) -> None:
        """Take rows in order of their numbers."""
        self._identities: list[Identity] = []
        self._rows: list[Row] = []
        for identity, row in items:
            self._identities.append(identity)
            self._rows.append(row)
        self.size = len(self._rows)
        self._known: set[Identity] | None = None
        """All identities, and some removed ones, once there are more than a few rows: an absent identity is new without a search."""

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Add a row at the end, also if its identity is present."""
        rows = self._rows
        rows.append((rows[-1][0] + 1 if rows else 0, raw, kind, inserted_at))
        self._identities.append(identity)
        self.size += 1
        if self._known is not None:
            self._known.add(identity)

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Replace the first row of this identity in place, or add one at the end."""
        if (self.size <= _FEW or self._may_hold(identity)) and identity in self._identities:
            position = self._identities.index(identity)
            self._rows[position] = (self._rows[position][0], raw, kind, inserted_at)
        else:
            self.append(identity, raw, kind, inserted_at)

    def _may_hold(self, identity: Identity) -> bool:
        if self._known is None or len(self._known) > 2 * self.size:
            self._known = set(self._identities)
        return identity in self._known

    def remove(self, identity: Identity) -> Removal:
        """Remove the first row of this identity; return which position it had."""
        identities = self._identities
        if identity not in identities:
            return NOTHING
        position = identities.index(identity)
        del identities[position]
        del self._rows[position]
        self.size = size = self.size - 1
        if position < size:
            return OTHER
        return LAST if size else ALL

    def find(self, identity: Identity) -> int | None:
        """Return the number of the first row of this identity; None without one."""
        return self._rows[self._identities.index(identity)][0] if identity in self._identities else None

    def last(self) -> Row:
        """Return the last row. There must be one."""
        return self._rows[-1]

    def renew(self, inserted_at: int) -> None:
        """Set the insertion time of the last row. There must be one."""
        number, raw, kind, _ = self._rows[-1]
        self._rows[-1] = (number, raw, kind, inserted_at)

    def expire(self, until: int) -> int:
        """Remove the rows inserted at or before `until`, the oldest first; return how many."""
        before = self.size
        alive = [item for item in self.entries() if item[1][3] > until]
        if len(alive) < before:
            self._identities[:] = [identity for identity, _ in alive]
            self._rows[:] = [row for _, row in alive]
            self.size = len(alive)
        return before - len(alive)

    def in_memory(self) -> Reversible[Row]:
        """Return all rows, in order: all are in memory."""
        return self._rows

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """Iterate over all rows in order, each after its identity. Do not change the rows meanwhile."""
        return zip(self._identities, self._rows, strict=True)
