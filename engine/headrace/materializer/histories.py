"""Histories of one operator in one task: loaded when a key first occurs, changed in memory, written back at the end.

So a key with a thousand changes in a micro-batch is read and written once. A list is loaded and written whole. Of a
map, only some nodes are loaded: those of the batch's rows, their neighbours, and the last one. That takes three reads,
each for all keys of the batch at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import NamedTuple

from headrace.materializer.dict_layout import DictLayout
from headrace.materializer.identities import IdentityOf, projection
from headrace.materializer.map_layout import NEWER, NEXT, OLDER, PREVIOUS, SAME, MapLayout
from headrace.materializer.ordered_multiset import Identity, ListLayout, Row
from headrace.materializer.stored_history import (
    StoredMap,
    head_of,
    history_entry,
    key_of_history,
    rows_of,
    stored_head,
    stored_list,
)
from headrace.options import Layouts
from headrace.state.backend import HISTORY_PREFIX, StateBackend, Write

Layout = ListLayout | DictLayout | MapLayout


class HistoryChange(NamedTuple):
    """Change of a row in a key's history: inserted, replaced, or removed (`row` is None)."""

    key_json: bytes
    sequence_number: int
    row: bytes | None
    row_kind: int
    inserted_at: int


_make_change = partial(tuple.__new__, HistoryChange)
"""Make a change from a tuple of all fields: a named tuple's own constructor is Python code."""


class _Stored:
    """A key's history as the backend had it when it was loaded."""

    __slots__ = ("first", "last", "list", "map", "rows", "size", "value")

    def __init__(self, value: bytes | None, rows: dict[int, Row], map_: StoredMap | None, size: int) -> None:
        self.value = value
        self.rows = rows
        self.map = map_
        self.size = size
        self.first: Row | None = None
        self.last: Row | None = None


class Histories:
    """Histories of one operator. `live` holds those of the loaded keys."""

    def __init__(
        self,
        backend: StateBackend,
        layouts: Layouts,
        identity_of: IdentityOf,
        *,
        by: tuple[str, ...] = (),
        ages: bool = False,
        linked: bool = True,
    ) -> None:
        """Identify rows by the fields `by`, or as a whole; `ages` if they have a lifetime.

        Without `linked`, callers read no rows of a long history but the changed ones and the last.
        """
        self.live: dict[bytes, Layout] = {}
        self._backend = backend
        self._layouts = layouts
        self._identity_of = identity_of
        self._by = by
        self._ages = ages
        self._linked = linked or ages
        self._starts_as_map = layouts.wants_map(0, is_map=False)
        self._stored: dict[bytes, _Stored] = {}
        self._partial: dict[bytes, StoredMap] = {}

    def load(self, keys: Iterable[bytes]) -> None:
        """Load the histories of `keys` that are not in `live`."""
        live = self.live
        missing = [key for key in keys if key not in live]
        if not missing:
            return
        values = self._backend.get_many([history_entry(key) for key in missing])
        for key, value in zip(missing, values, strict=True):
            if value is None:
                live[key] = self._map_of(()) if self._starts_as_map else ListLayout()
                self._stored[key] = _Stored(None, {}, None, 0)
            else:
                live[key] = self._loaded(key, value)
        if self._partial:
            self._load_nodes([(key, number) for key in missing for number in self._ends(key)])
        for key in missing:
            self._settle(key)

    @property
    def is_partial(self) -> bool:
        """Return whether a loaded history is only partly in memory."""
        return bool(self._partial)

    @property
    def are_short(self) -> bool:
        """Return whether each loaded history has the row number 0 or none, and stays a list with one row."""
        if self._layouts.wants_map(1, is_map=False):
            return False
        return all(not layout.is_map and (not layout.size or layout.last()[0] == 0) for layout in self.live.values())

    def prefetch(self, wanted: Iterable[tuple[bytes, Identity]]) -> None:
        """Load the nodes of maps that changes to these rows will need."""
        partial, live = self._partial, self.live
        if not partial:
            return
        asked = [
            (key, identity)
            for key, identity in dict.fromkeys(wanted)
            if key in partial and isinstance(live[key], MapLayout) and not live[key].knows(identity)  # type: ignore[union-attr]
        ]
        values = self._backend.get_many([partial[key].queue_entry(identity) for key, identity in asked])
        first: list[tuple[bytes, int]] = []
        for (key, identity), value in zip(asked, values, strict=True):
            layout = live[key]
            assert isinstance(layout, MapLayout)  # noqa: S101 - as chosen above
            queue = partial[key].admit_queue(identity, value)
            layout.know(identity, queue)
            first += [(key, number) for number in set(queue or ())]
        self._load_nodes(first)
        self._load_nodes([(key, number) for key, node in first for number in self._neighbours(key, node)])

    def switch(self, key: bytes) -> Layout:
        """Change a history to the layout for its current size."""
        layout = self.live[key]
        if self._layouts.wants_map(layout.size, is_map=layout.is_map) is not layout.is_map:
            layout = ListLayout(layout.entries()) if layout.is_map else self._map_of(layout.entries())
            self.live[key] = layout
        return layout

    def replace(self, key: bytes, items: Iterable[tuple[Identity, Row]]) -> None:
        """Keep only some of the rows of a history, all of which are in memory."""
        self.live[key] = ListLayout(items)
        self.switch(key)

    def size_before(self, key: bytes) -> int:
        """Return the number of rows that the key had when the task began."""
        return self._stored[key].size

    def ends_before(self, key: bytes) -> tuple[Row | None, Row | None]:
        """Return the first and the last row that the key had when the task began."""
        stored = self._stored[key]
        return stored.first, stored.last

    def sizes(self, entries: Iterable[bytes]) -> list[tuple[int, bool]]:
        """Return the size of each history among a backend's entries, and whether it is stored as a map."""
        heads = [
            entry for entry in entries if entry[:1] == HISTORY_PREFIX and entry == history_entry(key_of_history(entry))
        ]
        sizes = []
        for value in self._backend.get_many(heads):
            assert value is not None  # noqa: S101 - the entries are the backend's own
            head = head_of(value)
            sizes.append((len(rows_of(value)), False) if head is None else (head.size, True))
        return sizes

    def changes(self) -> list[HistoryChange]:
        """Return the differences from the backend, row by row."""
        return [change for key, layout in self.live.items() for change in self._changes(key, layout)]

    def writes(self) -> Iterator[Write]:
        """Return the differences from the backend, as writes."""
        return chain.from_iterable(part for key, layout in self.live.items() for part in self._writes(key, layout))

    def _loaded(self, key: bytes, value: bytes) -> Layout:
        head = head_of(value)
        if head is None:
            rows = rows_of(value)
            self._stored[key] = _Stored(value, {row[0]: row for row in rows}, None, len(rows))
            return ListLayout((self._identity_of(row[1]), row) for row in rows)
        identity_of = self._identity_of if head.by == self._by else projection(head.by)
        stored = StoredMap(self._backend, key, identity_of)
        layout = MapLayout(head, stored, ages=head.oldest is not None)
        self._stored[key] = _Stored(value, stored.rows, stored, head.size)
        if identity_of is self._identity_of and layout.ages is self._ages:
            self._partial[key] = stored
            return layout
        # It was stored with rows identified by other fields, or with another kind of lifetime: build it anew.
        return self._map_of((self._identity_of(row[1]), row) for _, row in layout.entries())

    def _map_of(self, items: Iterable[tuple[Identity, Row]]) -> DictLayout | MapLayout:
        """Make a map of rows that are all in memory."""
        return MapLayout.of(items, ages=self._ages) if self._linked else DictLayout(items)

    def _settle(self, key: bytes) -> None:
        """Store the ends of the loaded history; then change it to the layout for its size."""
        layout = self.live[key]
        if layout.size:
            stored = self._stored[key]
            stored.first, stored.last = layout.first(), layout.last()
            if self.switch(key) is not layout:
                self._partial.pop(key, None)

    def _ends(self, key: bytes) -> set[int]:
        layout = self.live[key]
        if key not in self._partial or not isinstance(layout, MapLayout):
            return set()
        ends = (layout.first_number, layout.last_number, layout.head_of_ages, layout.tail_of_ages)
        return {number for number in ends if number is not None}

    def _neighbours(self, key: bytes, number: int) -> set[int]:
        layout = self.live[key]
        assert isinstance(layout, MapLayout)  # noqa: S101 - as chosen by `prefetch`
        node = layout.node(number)
        return {node[link] for link in (PREVIOUS, NEXT, SAME, OLDER, NEWER) if node[link] is not None}

    def _load_nodes(self, wanted: Iterable[tuple[bytes, int]]) -> None:
        missing = []
        for key, number in dict.fromkeys(wanted):
            layout = self.live[key]
            assert isinstance(layout, MapLayout)  # noqa: S101 - only maps have nodes
            if number not in layout.nodes and not self._partial[key].has_read(number):
                missing.append((key, number))
        values = self._backend.get_many([self._partial[key].node_entry(number) for key, number in missing])
        for (key, number), value in zip(missing, values, strict=True):
            layout = self.live[key]
            assert isinstance(layout, MapLayout)  # noqa: S101 - as chosen above
            layout.nodes[number] = self._partial[key].admit_node(number, value)

    def _changes(self, key: bytes, layout: Layout) -> Iterator[HistoryChange]:
        before = self._stored[key].rows
        if before:
            now = {row[0] for row in layout.in_memory()}
            for number, (_, _, kind, inserted_at) in before.items():
                if number not in now:
                    yield HistoryChange(key, number, None, kind, inserted_at)
        for row in layout.in_memory():
            if before.get(row[0]) != row:
                yield _make_change((key, *row))

    def _writes(self, key: bytes, layout: Layout) -> Iterator[Iterable[Write]]:
        stored = self._stored[key]
        if not isinstance(layout, ListLayout) and layout.size and self._layouts.stores_maps:
            value: bytes | None = stored_head(layout.head(), self._by)
            if isinstance(layout, MapLayout) and stored.map is not None and layout.source is stored.map:
                yield stored.map.writes(layout)
            else:
                yield () if stored.map is None else stored.map.removal()
                yield StoredMap(self._backend, key, self._identity_of).whole(layout.parts())
        else:
            value = stored_list(row for _, row in layout.entries()) if layout.size else None
            if stored.map is not None:
                yield stored.map.removal()
        if value != stored.value:
            yield ((history_entry(key), value),)
