"""A multiset of rows in order (FLIP-544, "Proposed Changes"): what it promises, and its layout as a list.

Every row has a sequence number, one above that of the last row when it came. Numbers name positions: a row that is
replaced keeps its own, and with it its place. Rows are found by their identity: the whole row, or its upsert key.
Several may share one (it is a multiset); then the first is meant.

    append a, b, a      0:a 1:b 2:a
    remove a                1:b 2:a      Removal.OTHER: what is last did not change
    put b'                  1:b'2:a      replaced in place
    remove a                1:b'         Removal.LAST: b' is last now
    append c                1:b'2:c      numbers go on from the last row's

Two layouts keep the same promise. `ListLayout` is searched from the front: nothing is faster while it is short.
`MapLayout` takes as long for a million rows as for ten, and need not have all of them in memory.
"""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Iterator
from typing import ClassVar, Protocol

Identity = Hashable
"""What makes two rows the same: the row's JSON, or the value of its upsert key."""

Row = tuple[int, bytes, int, int]
"""Sequence number, row as JSON, row kind, and when it was inserted (ms). A plain tuple: one is made for every change."""


class Removal(enum.Enum):
    """What a removal has done."""

    NOTHING = "nothing"
    """No row has this identity."""
    OTHER = "other"
    """A row went that was not the last."""
    LAST = "last"
    """The last row went; another one is last now."""
    ALL = "all"
    """The only row went."""


NOTHING, OTHER, LAST, ALL = Removal


_FEW = 16
"""Rows up to which a list is searched as fast as a set."""


class OrderedMultiset(Protocol):
    """Rows in order. All but `entries` and `expire` take time that does not depend on how many there are, in a map."""

    is_map: ClassVar[bool]
    size: int

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Add a row at the end, whatever is there."""
        ...

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Replace the first row of this identity in place, or add one at the end."""
        ...

    def remove(self, identity: Identity) -> Removal:
        """Remove the first row of this identity."""
        ...

    def find(self, identity: Identity) -> int | None:
        """The number of the first row of this identity."""
        ...

    def get(self, number: int) -> Row:
        """The row of this number, which must be there."""
        ...

    def first(self) -> Row:
        """The first row. There must be one."""
        ...

    def last(self) -> Row:
        """The last row. There must be one."""
        ...

    def before(self, number: int) -> Row | None:
        """The row before the one of this number, which must be there."""
        ...

    def after(self, number: int) -> Row | None:
        """The row after the one of this number, which must be there."""
        ...

    def renew(self, inserted_at: int) -> None:
        """Let the last row have been inserted at `inserted_at`. There must be one."""
        ...

    def oldest(self) -> int | None:
        """The earliest `inserted_at`; None without rows."""
        ...

    def newest(self) -> int | None:
        """The latest `inserted_at`; None without rows."""
        ...

    def expire(self, until: int) -> int:
        """Remove the rows inserted at or before `until`, the oldest first; return how many. A list looks at all rows."""
        ...

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """All rows in order, each behind its identity. Not to be changed meanwhile."""
        ...


class ListLayout:
    """An ordered multiset as a list, searched from the front."""

    is_map: ClassVar[bool] = False

    __slots__ = ("_identities", "_known", "_rows", "size")

    def __init__(self, items: Iterable[tuple[Identity, Row]] = ()) -> None:
        """Take over rows in order of their numbers."""
        self._identities: list[Identity] = []
        self._rows: list[Row] = []
        for identity, row in items:
            self._identities.append(identity)
            self._rows.append(row)
        self.size = len(self._rows)
        self._known: set[Identity] | None = None
        """All identities, and some that are gone, once there are more than a few rows: tells that one is new without a search."""

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """See `OrderedMultiset.append`."""
        rows = self._rows
        rows.append((rows[-1][0] + 1 if rows else 0, raw, kind, inserted_at))
        self._identities.append(identity)
        self.size += 1
        if self._known is not None:
            self._known.add(identity)

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """See `OrderedMultiset.put`."""
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
        """See `OrderedMultiset.remove`."""
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
        """See `OrderedMultiset.find`."""
        return self._rows[self._identities.index(identity)][0] if identity in self._identities else None

    def get(self, number: int) -> Row:
        """See `OrderedMultiset.get`."""
        return next(row for row in self._rows if row[0] == number)

    def first(self) -> Row:
        """See `OrderedMultiset.first`."""
        return self._rows[0]

    def last(self) -> Row:
        """See `OrderedMultiset.last`."""
        return self._rows[-1]

    def before(self, number: int) -> Row | None:
        """See `OrderedMultiset.before`."""
        return next((row for row in reversed(self._rows) if row[0] < number), None)

    def after(self, number: int) -> Row | None:
        """See `OrderedMultiset.after`."""
        return next((row for row in self._rows if row[0] > number), None)

    def renew(self, inserted_at: int) -> None:
        """See `OrderedMultiset.renew`."""
        number, raw, kind, _ = self._rows[-1]
        self._rows[-1] = (number, raw, kind, inserted_at)

    def oldest(self) -> int | None:
        """See `OrderedMultiset.oldest`."""
        return min((row[3] for row in self._rows), default=None)

    def newest(self) -> int | None:
        """See `OrderedMultiset.newest`."""
        return max((row[3] for row in self._rows), default=None)

    def expire(self, until: int) -> int:
        """See `OrderedMultiset.expire`."""
        before = self.size
        alive = [item for item in self.entries() if item[1][3] > until]
        if len(alive) < before:
            self._identities[:] = [identity for identity, _ in alive]
            self._rows[:] = [row for _, row in alive]
            self.size = len(alive)
        return before - len(alive)

    def in_memory(self) -> Iterator[Row]:
        """All rows: a list is in memory as a whole."""
        return iter(self._rows)

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """See `OrderedMultiset.entries`."""
        return zip(self._identities, self._rows, strict=True)
