"""Ordered multiset as dicts: rows by number, and numbers by identity. Nearly every change is one look-up in each.

A dict keeps its entries in the order in which they were added. A new row is added with the highest number, and a row that
is replaced keeps its place and its number: so the order of the dict is that of the numbers, and rows need no links to
each other. They get these when they are stored as a map.

    append a, b, a      rows 0:a 1:b 2:a    numbers a:0 b:1    copies a: 2
        remove a        rows 1:b 2:a        numbers b:1 a:2
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Reversible
from itertools import chain, pairwise, repeat
from operator import itemgetter
from typing import ClassVar

from headrace.materializer.map_layout import Head, MapParts
from headrace.materializer.ordered_multiset import ALL, LAST, NOTHING, OTHER, Identity, Removal, Row, ScannedLayout

_RAW, _KIND, _INSERTED_AT = map(itemgetter, (1, 2, 3))


class DictLayout(ScannedLayout):
    """Ordered multiset as dicts, all in memory. It is stored as a map."""

    is_map: ClassVar[bool] = True
    __slots__ = ("copies", "last_number", "numbers", "rows", "size")

    def __init__(self, items: Iterable[tuple[Identity, Row]] = ()) -> None:
        """Take rows in order of their numbers."""
        self._take(items)

    def _take(self, items: Iterable[tuple[Identity, Row]]) -> None:
        self.rows: dict[int, Row] = {}
        self.numbers: dict[Identity, int] = {}
        """Number of the first row of each identity."""
        self.copies: dict[Identity, deque[int]] = {}
        """Numbers of the other rows of identities that have several."""
        self.last_number = -1
        self.size = 0
        for identity, (number, raw, kind, inserted_at) in items:
            self.last_number = number - 1
            self.append(identity, raw, kind, inserted_at)

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Add a row at the end, also if its identity is present."""
        self.last_number = number = self.last_number + 1
        self.rows[number] = (number, raw, kind, inserted_at)
        self.size += 1
        if self.numbers.setdefault(identity, number) != number:
            self.copies.setdefault(identity, deque()).append(number)

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Replace the first row of this identity in place, or add one at the end."""
        number = self.numbers.get(identity)
        if number is None:
            self.last_number = self.numbers[identity] = number = self.last_number + 1
            self.size += 1
        self.rows[number] = (number, raw, kind, inserted_at)

    def remove(self, identity: Identity) -> Removal:
        """Remove the first row of this identity; return which position it had."""
        number = self.numbers.pop(identity, None)
        if number is None:
            return NOTHING
        del self.rows[number]
        self.size = size = self.size - 1
        if self.copies:
            self._find_copy(identity)
        if number != self.last_number:
            return OTHER
        self.last_number = self.last()[0] if size else -1
        return LAST if size else ALL

    def find(self, identity: Identity) -> int | None:
        """Return the number of the first row of this identity; None without one."""
        return self.numbers.get(identity)

    def get(self, number: int) -> Row:
        """Return the row of this number, which must exist."""
        return self.rows[number]

    def last(self) -> Row:
        """Return the last row. There must be one."""
        # A look from the end would pass over the places of removed rows again and again. `popitem` gives them up.
        number, row = self.rows.popitem()
        self.rows[number] = row
        return row

    def renew(self, inserted_at: int) -> None:
        """Set the insertion time of the last row. There must be one."""
        number, raw, kind, _ = self.last()
        self.rows[number] = (number, raw, kind, inserted_at)

    def expire(self, until: int) -> int:
        """Remove the rows inserted at or before `until`, the oldest first; return how many."""
        before = self.size
        self._take([item for item in self.entries() if item[1][3] > until])
        return before - self.size

    def in_memory(self) -> Reversible[Row]:
        """Return all rows, in order: all are in memory."""
        return self.rows.values()

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """Iterate over all rows in order, each after its identity. Do not change the rows meanwhile."""
        identities = {number: identity for identity, number in self.numbers.items()}
        identities |= {number: identity for identity, copies in self.copies.items() for number in copies}
        return ((identities[number], row) for number, row in self.rows.items())

    def head(self) -> Head:
        """Return the head of the map as which the rows are stored."""
        return Head(self.size, self.first()[0], self.last()[0])

    def parts(self) -> MapParts:
        """Return what the map is stored as."""
        numbers, rows, firsts, nothing = list(self.rows), self.rows.values(), self.numbers, repeat(None)
        before, after = chain((None,), numbers), chain(numbers[1:], (None,))
        same = map(self._next_copies().get, numbers) if self.copies else nothing
        links = zip(map(_KIND, rows), map(_INSERTED_AT, rows), before, after, same, nothing, nothing, strict=False)
        lasts = firsts | {identity: copies[-1] for identity, copies in self.copies.items()} if self.copies else firsts
        queues = zip(firsts.values(), lasts.values(), strict=True)
        return MapParts(numbers, links, map(_RAW, rows), firsts, queues)

    def _next_copies(self) -> dict[int, int]:
        """Return the next number of the same identity, by number."""
        chains = (pairwise((self.numbers[identity], *copies)) for identity, copies in self.copies.items())
        return dict(chain.from_iterable(chains))

    def _find_copy(self, identity: Identity) -> None:
        """Let the first copy of the removed row be found."""
        copies = self.copies.get(identity)
        if copies is None:
            return
        self.numbers[identity] = copies.popleft()
        if not copies:
            del self.copies[identity]
