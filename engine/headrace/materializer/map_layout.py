"""An ordered multiset as a map of linked nodes (FLIP-544, "Proposed Changes"): O(1) for every change.

A node knows the numbers of the rows before and after it, of the next row of the same identity, and, where rows have a
life, of those inserted before and after it: a row replaced in place moves to the end of that third chain, so that the
oldest row is always at its head, wherever in the list it stands.

Nodes that are not in memory are asked of a source, one by one as they are needed or, better, many at once before
(`wanted`). Without a source all that there is is in memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any, ClassVar, Protocol

import msgspec

from headrace.materializer.ordered_multiset import ALL, LAST, NOTHING, OTHER, Identity, Removal, Row

RowNode = list[Any]
"""Identity, raw, kind, inserted at; then numbers of other nodes, or None. A list, since one is made for every new row."""

IDENTITY, RAW, KIND, INSERTED_AT, PREVIOUS, NEXT, SAME, OLDER, NEWER = range(9)

IdentityQueue = tuple[int, int]
"""The numbers of the first and the last row of an identity."""


class Head(msgspec.Struct):
    """What a map knows of itself. `oldest` and `newest` are None where rows have no life."""

    size: int = 0
    first: int | None = None
    last: int | None = None
    oldest: int | None = None
    newest: int | None = None


class NodeSource(Protocol):
    """Where nodes are that are not in memory."""

    def node(self, number: int, /) -> RowNode:
        """A node of its own for the caller. It has to be there."""
        ...

    def queue(self, identity: Identity, /) -> IdentityQueue | None:
        """The rows of an identity; None if there are none."""
        ...


_UNKNOWN: Any = object()


class MapLayout:
    """An ordered multiset as linked nodes. With `ages`, it keeps the chain of ages, and `inserted_at` must never go back."""

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
        """An empty one, or the one that `source` has."""
        head = head or Head()
        self.size = head.size
        self.first_number, self.last_number = head.first, head.last
        self._next_number = 0 if head.last is None else head.last + 1
        self.head_of_ages, self.tail_of_ages = head.oldest, head.newest
        self.ages = ages
        self.nodes: dict[int, RowNode] = {}
        """The nodes in memory."""
        self._queues: dict[Identity, int | None] = {}
        self._tails: dict[Identity, int] = {}
        self.source = source
        """Where the nodes are that are not in memory; None: there are no others."""

    @classmethod
    def of(cls, items: Iterable[tuple[Identity, Row]], *, ages: bool) -> MapLayout:
        """Take over rows in order of their numbers."""
        made = cls(ages=False)
        for identity, (number, raw, kind, inserted_at) in items:
            made._next_number = number
            made.append(identity, raw, kind, inserted_at)
        made.ages = ages
        if ages:
            for number in sorted(made.nodes, key=lambda number: made.nodes[number][INSERTED_AT]):
                made._age(number)
        return made

    def head(self) -> Head:
        """What is to be stored beside the nodes."""
        return Head(self.size, self.first_number, self.last_number, self.head_of_ages, self.tail_of_ages)

    def queues(self) -> list[tuple[Identity, IdentityQueue | None]]:
        """The identities that were looked for, and their rows."""
        tails = self._tails
        return [
            (identity, None if first is None else (first, tails.get(identity, first)))
            for identity, first in self._queues.items()
        ]

    def all_queues(self) -> tuple[Collection[Identity], Iterable[tuple[int | None, int | None]]]:
        """All identities, and the rows of each: of a map without a source."""
        firsts, tails = self._queues, self._tails
        lasts = [tails.get(identity, first) for identity, first in firsts.items()] if tails else firsts.values()
        return firsts, zip(firsts.values(), lasts, strict=True)

    def append(self, identity: Identity, raw: bytes, kind: int, inserted_at: int) -> None:
        """See `OrderedMultiset.append`."""
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
        """See `OrderedMultiset.put`."""
        number = self._queues.get(identity) if self.source is None else self.find(identity)
        if number is None:
            # `append` for an identity that is known to be new, written out: most rows of a changelog come this way.
            nodes, last, number = self.nodes, self.last_number, self._next_number
            if last is None:
                self.first_number = number
            else:
                (nodes.get(last) or self.node(last))[NEXT] = number
            nodes[number] = [identity, raw, kind, inserted_at, last, None, None, None, None]
            self._queues[identity] = self.last_number = number
            self._next_number = number + 1
            self.size += 1
            if self.ages:
                self._age(number)
            return
        node = self.node(number)
        node[RAW], node[KIND], node[INSERTED_AT] = raw, kind, inserted_at
        if self.ages:
            self._forget_age(node)
            self._age(number)

    def remove(self, identity: Identity) -> Removal:
        """See `OrderedMultiset.remove`."""
        number = self._queues.get(identity) if self.source is None else self.find(identity)
        return NOTHING if number is None else self._unlink(number)

    def find(self, identity: Identity) -> int | None:
        """See `OrderedMultiset.find`."""
        found = self._queues.get(identity, _UNKNOWN)
        if found is _UNKNOWN:
            return None if self.source is None else self.know(identity, self.source.queue(identity))
        number: int | None = found
        return number

    def know(self, identity: Identity, queue: IdentityQueue | None) -> int | None:
        """Take in what the source has of an identity; return the first number."""
        if queue is None:
            self._queues[identity] = None
            return None
        first, last = queue
        self._queues[identity] = first
        if last != first:
            self._tails[identity] = last
        return first

    def knows(self, identity: Identity) -> bool:
        """Whether the source need not be asked for an identity."""
        return self.source is None or identity in self._queues

    def get(self, number: int) -> Row:
        """See `OrderedMultiset.get`."""
        return self._row(number)

    def first(self) -> Row:
        """See `OrderedMultiset.first`."""
        return self._row(self.first_number)

    def last(self) -> Row:
        """See `OrderedMultiset.last`."""
        return self._row(self.last_number)

    def before(self, number: int) -> Row | None:
        """See `OrderedMultiset.before`."""
        previous = self.node(number)[PREVIOUS]
        return None if previous is None else self._row(previous)

    def after(self, number: int) -> Row | None:
        """See `OrderedMultiset.after`."""
        following = self.node(number)[NEXT]
        return None if following is None else self._row(following)

    def renew(self, inserted_at: int) -> None:
        """See `OrderedMultiset.renew`."""
        number = self.last_number
        assert number is not None  # noqa: S101 - the caller's promise
        node = self.node(number)
        node[INSERTED_AT] = inserted_at
        if self.ages:
            self._forget_age(node)
            self._age(number)

    def oldest(self) -> int | None:
        """See `OrderedMultiset.oldest`. Needs `ages`."""
        return None if self.head_of_ages is None else self._row(self.head_of_ages)[3]

    def newest(self) -> int | None:
        """See `OrderedMultiset.newest`. Needs `ages`."""
        return None if self.tail_of_ages is None else self._row(self.tail_of_ages)[3]

    def expire(self, until: int) -> int:
        """See `OrderedMultiset.expire`. Needs `ages`; looks at no row that stays but one."""
        before = self.size
        while self.head_of_ages is not None and self.node(self.head_of_ages)[INSERTED_AT] <= until:
            self._unlink(self.head_of_ages)
        return before - self.size

    def entries(self) -> Iterator[tuple[Identity, Row]]:
        """See `OrderedMultiset.entries`."""
        number = self.first_number
        while number is not None:
            node = self.node(number)
            yield node[IDENTITY], (number, node[RAW], node[KIND], node[INSERTED_AT])
            number = node[NEXT]

    def in_memory(self) -> Iterator[Row]:
        """The rows that are in memory, in no particular order."""
        return ((number, node[RAW], node[KIND], node[INSERTED_AT]) for number, node in self.nodes.items())

    def node(self, number: int) -> RowNode:
        """The node of this number, which must be there."""
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
            # Only a row that died before the first of its kind: one that was replaced in place, and so lives longer.
            one = first
            while self.node(one)[SAME] != number:
                one = self.node(one)[SAME]
            self.node(one)[SAME] = same
            if same is None:
                self._tails[identity] = one
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
        """Let a node be the youngest."""
        youngest, node = self.tail_of_ages, self.node(number)
        node[OLDER], node[NEWER] = youngest, None
        if youngest is None:
            self.head_of_ages = number
        else:
            self.node(youngest)[NEWER] = number
        self.tail_of_ages = number

    def _forget_age(self, node: RowNode) -> None:
        """Take a node out of the chain of ages."""
        older, newer = node[OLDER], node[NEWER]
        if older is None:
            self.head_of_ages = newer
        else:
            self.node(older)[NEWER] = newer
        if newer is None:
            self.tail_of_ages = older
        else:
            self.node(newer)[OLDER] = older
