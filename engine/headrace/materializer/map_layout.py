"""Ordered multiset as a map of linked nodes (FLIP-544, "Proposed Changes"): every change is O(1).

A node holds the numbers of the rows before and after it, of the next row of the same identity, and, where rows have a
lifetime, of the rows inserted before and after it. A row replaced in place moves to the end of that third chain, so
that the oldest row is always at its head, whatever its position in the list.

Nodes that are not in memory are read from a source: one by one when they are needed or, better, many at once before
that (`Histories.prefetch`). Without a source, all nodes are in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from headrace.materializer.ordered_multiset import ALL, LAST, NOTHING, OTHER, Identity, Removal, Row

RowNode = list[Any]
"""Identity, raw, kind, inserted at; then numbers of other nodes, or None. A list is cheap: every new row makes one."""

IDENTITY, RAW, KIND, INSERTED_AT, PREVIOUS, NEXT, SAME, OLDER, NEWER = range(9)
_LINKS, _RAW = itemgetter(slice(KIND, None)), itemgetter(RAW)

IdentityQueue = tuple[int, int]
"""Numbers of the first and the last row of an identity."""


class Head(msgspec.Struct):
    """Size and end nodes of a map. `oldest` and `newest` are None where rows have no lifetime."""

    size: int = 0
    first: int | None = None
    last: int | None = None
    oldest: int | None = None
    newest: int | None = None


class MapParts(NamedTuple):
    """A whole map as it is stored: what its nodes have in the order of `numbers`, and the first and last row of each identity."""

    numbers: Iterable[int]
    links: Iterable[Sequence[int | None]]
    """Kind, inserted at, and numbers of other nodes, in the order of a `RowNode`."""
    raws: Iterable[bytes]
    identities: Iterable[Identity]
    queues: Iterable[tuple[int | None, int | None]]


class NodeSource(Protocol):
    """Source of nodes that are not in memory."""

    def node(self, number: int, /) -> RowNode:
        """Return a node, which the caller may change. It must exist."""
        ...

    def queue(self, identity: Identity, /) -> IdentityQueue | None:
        """Return the first and last row of an identity; None if it has none."""
        ...


_UNKNOWN: Any = object()


class MapLayout:
    """Ordered multiset as linked nodes. With `ages` it keeps the chain of ages, and `inserted_at` must never decrease."""

    is_map: ClassVar[bool] = True

    __slots__ = (
        "_next_number",
        "_queues",
        "_tails",
        "ages",
        "first_number",
        "head_of_ages",
        "last_number",
        "nodes",
        "size",
        "source",
        "tail_of_ages",
    )

    def __init__(self, head: Head | None = None, source: NodeSource | None = None, *, ages: bool = False) -> None:
        """Make an empty map, or the one with this `head` in `source`."""
        head = head or Head()
        self.size = head.size
        self.first_number, self.last_number = head.first, head.last
        self._next_number = 0 if head.last is None else head.last + 1
        self.head_of_ages, self.tail_of_ages = head.oldest, head.newest
        self.ages = ages
        self.nodes: dict[int, RowNode] = {}
        """Nodes in memory."""
        self._queues: dict[Identity, int | None] = {}
        self._tails: dict[Identity, int] = {}
        self.source = source
        """Source of nodes that are not in memory; None: all are in memory."""

    @classmethod
    def of(cls, items: Iterable[tuple[Identity, Row]], *, ages: bool) -> MapLayout:
        """Make a map of rows in order of their numbers."""
        layout = cls(ages=False)
        for identity, (number, raw, kind, inserted_at) in items:
            layout._next_number = number
            layout.append(identity, raw, kind, inserted_at)
        layout.ages = ages
        if ages:
            for number in sorted(layout.nodes, key=lambda number: layout.nodes[number][INSERTED_AT]):
                layout._age(number)
        return layout

    def head(self) -> Head:
        """Return the head, which is stored beside the nodes."""
        return Head(self.size, self.first_number, self.last_number, self.head_of_ages, self.tail_of_ages)

    def queues(self) -> list[tuple[Identity, IdentityQueue | None]]:
        """Return the identities that were looked up, and their rows."""
        tails = self._tails
        return [
            (identity, None if first is None else (first, tails.get(identity, first)))
            for identity, first in self._queues.items()
        ]

    def parts(self) -> MapParts:
        """Return what the map is stored as. Only for one without a source."""
        nodes, firsts, tails = self.nodes.values(), self._queues, self._tails
        lasts = [tails.get(identity, first) for identity, first in firsts.items()] if tails else firsts.values()
        queues = zip(firsts.values(), lasts, strict=True)
        return MapParts(self.nodes, map(_LINKS, nodes), map(_RAW, nodes), firsts, queues)

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Add a row at the end, also if its identity is present."""
        nodes, last, number = self.nodes, self.last_number, self._next_number
        if last is None:
            self.first_number = number
        else:
            (nodes.get(last) or self.node(last))[NEXT] = number
        nodes[number] = [identity, raw, kind, inserted_at, last, None, None, None, None]
        self.last_number, self._next_number = number, number + 1
        self.size += 1
        if self.source is not None and identity not in self._queues:
            self.find(identity)
        first = self._queues.setdefault(identity, number)
        if first is None:
            self._queues[identity] = number
        elif first != number:
            self.node(self._tails.get(identity, first))[SAME] = number
            self._tails[identity] = number
        if self.ages:
            self._age(number)

    def put(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """Replace the first row of this identity in place, or add one at the end."""
        number = self.find(identity)
        if number is None:
            self.append(identity, raw, kind, inserted_at)
            return
        node = self.node(number)
        node[RAW], node[KIND], node[INSERTED_AT] = raw, kind, inserted_at
        if self.ages:
            self._forget_age(node)
            self._age(number)

    def remove(self, identity: Identity) -> Removal:
        """Remove the first row of this identity; return which position it had."""
        number = self.find(identity)
        return NOTHING if number is None else self._unlink(number)

    def find(self, identity: Identity) -> int | None:
        """Return the number of the first row of this identity; None without one."""
        first_number = self._queues.get(identity, _UNKNOWN)
        if first_number is _UNKNOWN:
            return None if self.source is None else self.know(identity, self.source.queue(identity))
        number: int | None = first_number
        return number

    def know(self, identity: Identity, queue: IdentityQueue | None) -> int | None:
        """Store the source's answer for an identity; return the number of its first row."""
        if queue is None:
            self._queues[identity] = None
            return None
        first, last = queue
        self._queues[identity] = first
        if last != first:
            self._tails[identity] = last
        return first

    def knows(self, identity: Identity) -> bool:
        """Return whether the identity is known without asking the source."""
        return self.source is None or identity in self._queues

    def get(self, number: int) -> Row:
        """Return the row of this number, which must exist."""
        return self._row(number)

    def first(self) -> Row:
        """Return the first row. There must be one."""
        return self._row(self.first_number)

    def last(self) -> Row:
        """Return the last row. There must be one."""
        return self._row(self.last_number)

    def before(self, number: int) -> Row | None:
        """Return the row before the one of this number, which must exist."""
        previous = self.node(number)[PREVIOUS]
        return None if previous is None else self._row(previous)

    def after(self, number: int) -> Row | None:
        """Return the row after the one of this number, which must exist."""
        following = self.node(number)[NEXT]
        return None if following is None else self._row(following)

    def renew(self, inserted_at: int) -> None:
        """Set the insertion time of the last row. There must be one."""
        number = self.last_number
        assert number is not None  # noqa: S101 - the caller's promise
        node = self.node(number)
        node[INSERTED_AT] = inserted_at
        if self.ages:
            self._forget_age(node)
            self._age(number)

    def oldest(self) -> int | None:
        """Return the earliest `inserted_at`; None without rows. Needs `ages`."""
        return None if self.head_of_ages is None else self._row(self.head_of_ages)[3]

    def newest(self) -> int | None:
        """Return the latest `inserted_at`; None without rows. Needs `ages`."""
        return None if self.tail_of_ages is None else self._row(self.tail_of_ages)[3]

    def expire(self, until: int) -> int:
        """Remove the rows inserted at or before `until`, the oldest first; return how many. Needs `ages`. Reads one row that stays."""
        before = self.size
        while self.head_of_ages is not None and self.node(self.head_of_ages)[INSERTED_AT] <= until:
            self._unlink(self.head_of_ages)
        return before - self.size

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """Iterate over all rows in order, each after its identity. Do not change the rows meanwhile."""
        number = self.first_number
        while number is not None:
            node = self.node(number)
            yield node[IDENTITY], (number, node[RAW], node[KIND], node[INSERTED_AT])
            number = node[NEXT]

    def in_memory(self) -> Iterator[Row]:
        """Return the rows in memory, in no particular order."""
        return ((number, node[RAW], node[KIND], node[INSERTED_AT]) for number, node in self.nodes.items())

    def node(self, number: int) -> RowNode:
        """Return the node of this number, which must exist."""
        node = self.nodes.get(number)
        if node is None:
            assert self.source is not None  # noqa: S101 - without a source all nodes are in memory
            self.nodes[number] = node = self.source.node(number)
        return node

    def _row(self, number: int | None) -> Row:
        assert number is not None  # noqa: S101 - the caller's promise
        node = self.node(number)
        return number, node[RAW], node[KIND], node[INSERTED_AT]

    def _unlink(self, number: int) -> Removal:
        nodes = self.nodes
        node = nodes.pop(number, None) or self._taken(number)
        identity, _, _, _, previous, following, same, _, _ = node
        if previous is None:
            self.first_number = following
        else:
            (nodes.get(previous) or self.node(previous))[NEXT] = following
        if following is None:
            self.last_number = previous
            self._next_number = 0 if previous is None else previous + 1
        else:
            (nodes.get(following) or self.node(following))[PREVIOUS] = previous
        if same is None and self.source is None and self._queues[identity] == number:
            del self._queues[identity]
        else:
            self._leave_queue(number, node)
        if self.ages:
            self._forget_age(node)
        self.size -= 1
        if following is not None:
            return OTHER
        return LAST if previous is not None else ALL

    def _taken(self, number: int) -> RowNode:
        node = self.node(number)
        del self.nodes[number]
        return node

    def _leave_queue(self, number: int, node: RowNode) -> None:
        identity, same = node[IDENTITY], node[SAME]
        queues = self._queues
        first = queues.get(identity, _UNKNOWN)
        if first is _UNKNOWN:
            first = self.find(identity)
        if first != number:
            # The row expired before the first row of its identity: that one was replaced in place, and so lives longer.
            row = first
            while self.node(row)[SAME] != number:
                row = self.node(row)[SAME]
            self.node(row)[SAME] = same
            if same is None:
                self._tails[identity] = row
        elif same is None:
            if self.source is None:
                del queues[identity]
            else:
                queues[identity] = None
        else:
            queues[identity] = same
        if self._tails and self._tails.get(identity) == queues.get(identity):
            self._tails.pop(identity, None)

    def _age(self, number: int) -> None:
        """Make a node the youngest of the chain of ages."""
        youngest, node = self.tail_of_ages, self.node(number)
        node[OLDER], node[NEWER] = youngest, None
        if youngest is None:
            self.head_of_ages = number
        else:
            self.node(youngest)[NEWER] = number
        self.tail_of_ages = number

    def _forget_age(self, node: RowNode) -> None:
        """Remove a node from the chain of ages."""
        older, newer = node[OLDER], node[NEWER]
        if older is None:
            self.head_of_ages = newer
        else:
            self.node(older)[NEWER] = newer
        if newer is None:
            self.tail_of_ages = older
        else:
            self.node(newer)[OLDER] = older
