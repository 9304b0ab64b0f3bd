"""Iteration over a snapshot of one group: pages of the backend, merged with the task's changes up to the start.

    backend, page by page    a1   b2   d4 | e5
    changed by the task      b-   c3
    the iteration            a1   c3   d4   e5

The backend does not change while a task runs, so only the task's changes are copied at the start. A group that is
smaller than a page stays in the task's cells: the next iteration asks no backend. Of a larger group, visited entries are
not added to the cells, unless the visit changes them: a lifetime that is renewed, or has ended.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.state.backend import Page, after, end_of_group
from headrace.state.cells import Cell, Cells

if TYPE_CHECKING:
    from headrace.state.state_store import StateStore
    from headrace.state.state_task import Moment

PAGE = 1000
"""Number of entries in a page."""


class WalkedEntry(NamedTuple):
    """An entry that the iteration returns."""

    name: bytes
    value: Any


class _End(enum.Enum):
    END = enum.auto()


END = _End.END
"""End of the iteration."""


class _Noted(NamedTuple):
    """An entry as it was at the start; `value` is None if it had been removed."""

    name: bytes
    value: Any
    stamp: int
    own_ttl: int
    clean: bool
    """True: it equals the backend's entry."""


def first_page(cells: Cells, limit: int | None = PAGE) -> Sequence[Page]:
    """Return the first page of a group, or all of it for None; no page where the cells have all entries."""
    return () if cells.at_hand else (Page(cells.prefix, end_of_group(cells.prefix), limit),)


class ReadyCursor:
    """Position of an iteration over entries that are at hand and cannot expire. It takes a third of the time of a `GroupCursor`."""

    __slots__ = ("_entries",)

    def __init__(self, entries: Iterable[WalkedEntry]) -> None:
        """Take the visible entries, in order."""
        self._entries = iter(entries)

    def next(self, _: Moment) -> WalkedEntry | _End:
        """Return the next entry, or END."""
        return next(self._entries, END)


class GroupCursor:
    """Position of an iteration."""

    __slots__ = ("_cells", "_changed", "_further", "_page", "_store")

    def __init__(self, store: StateStore, cells: Cells, pages: Sequence[Any], limit: int | None = PAGE) -> None:
        """Copy the current changes. `pages` has the answer to `first_page` of the same limit, if there was one."""
        self._store = store
        self._cells = cells
        is_whole = cells.whole
        changed = [
            _Noted(name, c.value, c.stamp, c.own_ttl, not c.dirty)
            for name, c in cells.by_name.items()
            if c.dirty or is_whole
        ]
        self._changed = deque(sorted(changed, key=_name_of))
        self._page: deque[tuple[bytes, bytes]] = deque()
        self._further: Page | None = None
        if pages and not cells.at_hand:
            self.feed(pages[0], limit)

    def feed(self, page: Sequence[tuple[bytes, bytes]], limit: int | None = PAGE) -> None:
        """Add the page that `next` asked for."""
        self._page.extend(page)
        is_full = len(page) == limit
        self._further = Page(after(page[-1][0]), end_of_group(self._cells.prefix), limit) if is_full else None

    def next(self, moment: Moment, *, is_read: bool = True) -> WalkedEntry | Page | _End:
        """Return the next visible entry; or the page that is needed to continue, for `feed`; or END.

        `is_read` says that user code gets the entry, which renews its lifetime or, if it is expired, removes it.
        """
        while True:
            if not self._page and self._further is not None:
                return self._further
            noted = self._step()
            if noted is None:
                return END
            value = self._passed(moment, noted, is_read=is_read)
            if value is not None:
                return WalkedEntry(noted.name, value)

    def _step(self) -> _Noted | None:
        """Return the next entry in order."""
        if not self._page:
            return self._changed.popleft() if self._changed else None
        entry, stored = self._page[0]
        name = entry[len(self._cells.prefix) :]
        if self._changed and self._changed[0].name <= name:
            if self._changed[0].name == name:
                self._page.popleft()
            return self._changed.popleft()
        self._page.popleft()
        cell = self._store.decode(stored)
        return _Noted(name, cell.value, cell.stamp, cell.own_ttl, clean=True)

    def _passed(self, moment: Moment, noted: _Noted, *, is_read: bool) -> Any:
        """Return the visible value of an entry. Remove an expired entry; renew a live one, if reads do so."""
        store = self._store
        ttl = store.ttl_logic
        if ttl is None or noted.value is None:
            return noted.value
        is_dead = ttl.is_dead(moment, noted.stamp, noted.own_ttl)
        is_seen = not is_dead or ttl.returns_expired
        if (is_dead and (is_read or not is_seen)) or (is_read and ttl.renews_on_read):
            cell = self._cells.by_name.get(noted.name)
            if cell is None and noted.clean and not self._cells.at_hand:
                cell = self._cell(noted, changes=is_dead or noted.stamp < ttl.stamp(moment))
            if cell is not None:
                store.alive(moment, cell)
        return noted.value if is_seen else None

    def _cell(self, noted: _Noted, *, changes: bool) -> Cell | None:
        """Return a cell for an entry that is about to change; None for other entries, which leave no trace."""
        if not changes:
            return None
        cell = self._cells.by_name[noted.name] = Cell(noted.value, noted.stamp, noted.own_ttl, stored=True)
        return cell


_name_of = attrgetter("name")
