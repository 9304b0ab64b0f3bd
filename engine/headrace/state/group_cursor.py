"""A walk over one group as it was at one moment: pages of the backend, merged with what the task had changed by then.

    backend, page by page    a1   b2   d4 | e5
    changed by the task      b-   c3
    the walk                 a1   c3   d4   e5

The backend stands still while a task runs, so what was changed need only be noted at the start. Nothing that is passed goes
into the task's cells, unless passing changes it: a life that is renewed, or has ended.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.state.backend import Page, after, end_of_group
from headrace.state.cells import Cell, Cells

if TYPE_CHECKING:
    from headrace.state.state_store import StateStore
    from headrace.state.state_task import Moment

PAGE = 1000
"""Entries that are read at once."""


class Found(NamedTuple):
    """An entry that the walk has come to."""

    name: bytes
    value: Any


class _End(enum.Enum):
    END = enum.auto()


END = _End.END
"""There is nothing more."""


class _Noted(NamedTuple):
    """An entry as it was at the start; `value` is None where it had been removed."""

    name: bytes
    value: Any
    stamp: int
    own_ttl: int


def first_page(cells: Cells, limit: int | None = PAGE) -> Sequence[Page]:
    """The first page of a group, or all of it with None; no page where what the backend has counts no more."""
    return () if cells.cleared else (Page(cells.prefix, end_of_group(cells.prefix), limit),)


class GroupCursor:
    """The place of a walk."""

    __slots__ = ("_cells", "_changed", "_further", "_page", "_store")

    def __init__(self, store: StateStore, cells: Cells, found: Sequence[Any], limit: int | None = PAGE) -> None:
        """Note what is changed now. `found` has the answer to `first_page` of the same limit, if there was one."""
        self._store = store
        self._cells = cells
        changed = [_Noted(name, c.value, c.stamp, c.own_ttl) for name, c in cells.by_name.items() if c.dirty]
        self._changed = deque(sorted(changed))
        self._page: deque[tuple[bytes, bytes]] = deque()
        self._further: Page | None = None
        if found and not cells.cleared:
            self.feed(found[0], limit)

    def feed(self, page: Sequence[tuple[bytes, bytes]], limit: int | None = PAGE) -> None:
        """Take in the page that `next` has asked for."""
        self._page.extend(page)
        is_full = len(page) == limit
        self._further = Page(after(page[-1][0]), end_of_group(self._cells.prefix), limit) if is_full else None

    def next(self, moment: Moment, *, is_read: bool = True) -> Found | Page | _End:
        """The next entry that may be seen; or the page that is needed to go on, to be given to `feed`; or END.

        `is_read` says that user code gets the entry: that renews its life, or ends it.
        """
        while True:
            if not self._page and self._further is not None:
                return self._further
            noted, clean = self._step()
            if noted is None:
                return END
            value = self._passed(moment, noted, clean=clean, is_read=is_read)
            if value is not None:
                return Found(noted.name, value)

    def _step(self) -> tuple[_Noted | None, bool]:
        """The next entry in order, and whether it is as the backend has it."""
        if not self._page:
            return (self._changed.popleft(), False) if self._changed else (None, False)
        entry, stored = self._page[0]
        name = entry[len(self._cells.prefix) :]
        if self._changed and self._changed[0].name <= name:
            if self._changed[0].name == name:
                self._page.popleft()
            return self._changed.popleft(), False
        self._page.popleft()
        cell = self._store.decode(stored)
        return _Noted(name, cell.value, cell.stamp, cell.own_ttl), True

    def _passed(self, moment: Moment, noted: _Noted, *, clean: bool, is_read: bool) -> Any:
        """What may be seen of an entry. If it is dead, it is removed; if it is alive, its life is renewed, if reads do so."""
        store = self._store
        ttl = store.ttl_logic
        if ttl is None or noted.value is None:
            return noted.value
        is_dead = ttl.is_dead(moment, noted.stamp, noted.own_ttl)
        is_seen = not is_dead or ttl.returns_expired
        if (is_dead and (is_read or not is_seen)) or (is_read and ttl.renews_on_read):
            cell = self._cells.by_name.get(noted.name)
            if cell is None and clean and not self._cells.cleared:
                cell = self._cell(noted, changes=is_dead or noted.stamp < ttl.stamp(moment))
            if cell is not None:
                store.alive(moment, cell)
        return noted.value if is_seen else None

    def _cell(self, noted: _Noted, *, changes: bool) -> Cell | None:
        """A cell for an entry that is about to change; others are passed without a trace."""
        if not changes:
            return None
        cell = self._cells.by_name[noted.name] = Cell(noted.value, noted.stamp, noted.own_ttl, stored=True)
        return cell
