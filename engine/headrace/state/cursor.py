"""Iteration over a snapshot of one group of entries, for user code.

Iteration over a snapshot of one group: pages of the backend, merged with the task's changes up to the start.

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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from headrace.api.future import StateFuture
from headrace.api.states import StateIterator
from headrace.native import Cell
from headrace.state.backend import Page, after, end_of_group
from headrace.state.cells import Cells

if TYPE_CHECKING:
    from headrace.state.store import StateStore
    from headrace.state.waiting_calls import Access


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

    def next(self, _: Access) -> WalkedEntry | _End:
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

    def next(self, access: Access, *, is_read: bool = True) -> WalkedEntry | Page | _End:
        """Return the next visible entry; or the page that is needed to continue, for `feed`; or END.

        `is_read` says that user code gets the entry, which renews its lifetime or, if it is expired, removes it.
        """
        while True:
            if not self._page and self._further is not None:
                return self._further
            noted = self._step()
            if noted is None:
                return END
            value = self._passed(access, noted, is_read=is_read)
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

    def _passed(self, access: Access, noted: _Noted, *, is_read: bool) -> Any:
        """Return the visible value of an entry. Remove an expired entry; renew a live one, if reads do so."""
        store = self._store
        ttl = store.ttl_logic
        if ttl is None or noted.value is None:
            return noted.value
        is_dead = ttl.is_dead(access, noted.stamp, noted.own_ttl)
        is_seen = not is_dead or ttl.returns_expired
        if (is_dead and (is_read or not is_seen)) or (is_read and ttl.renews_on_read):
            cell = self._cells.by_name.get(noted.name)
            if cell is None and noted.clean and not self._cells.at_hand:
                cell = self._cell(noted, changes=is_dead or noted.stamp < ttl.stamp(access))
            if cell is not None:
                store.alive(access, cell)
        return noted.value if is_seen else None

    def _cell(self, noted: _Noted, *, changes: bool) -> Cell | None:
        """Return a cell for an entry that is about to change; None for other entries, which leave no trace."""
        if not changes:
            return None
        cell = self._cells.by_name[noted.name] = Cell(noted.value, noted.stamp, noted.own_ttl, stored=True)
        return cell


_name_of = attrgetter("name")


T = TypeVar("T")


class LiveIterator(StateIterator[T]):
    """Iterator whose first page was requested when it was made, to show the state at that time; it reads further pages when needed."""

    def __init__(self, store: StateStore, cursor: Any, convert: Callable[[WalkedEntry], T]) -> None:
        """`cursor` is an answer with a `GroupCursor` or a `ReadyCursor`; `convert` makes the value for user code from an entry."""
        self._store = store
        self._convert = convert
        self._cursor = cursor

    def __aiter__(self) -> AsyncIterator[T]:
        """Return itself. Raises `TypeError` in a plain `def`."""
        self._check_style(blocking=False)
        return self

    def __anext__(self) -> Awaitable[T]:
        """Return the next entry."""
        if not self._cursor.done or self._store.access.callbacks:
            return self._next()
        entry = self._cursor.answer.next(self._store.access)
        if entry is END:
            raise StopAsyncIteration
        # A complete future costs a third of a coroutine.
        return (
            self._next() if isinstance(entry, Page) else cast("Awaitable[T]", self._store.answer(self._convert(entry)))
        )

    async def _next(self) -> T:
        # It awaits for each entry, so that callbacks run in the same order wherever a page ends.
        cursor: Any = await self._cursor  # only a `GroupCursor` asks for pages
        while isinstance(entry := cursor.next(self._store.access), Page):
            await self._further(cursor, entry)
        if entry is END:
            raise StopAsyncIteration
        return self._convert(entry)

    def __iter__(self) -> Iterator[T]:
        """Return itself. Raises `TypeError` in an `async def`."""
        self._check_style(blocking=True)
        return self

    def __next__(self) -> T:
        """Return the next entry."""
        cursor: Any = self._cursor
        while isinstance(entry := cursor.next(self._store.access), Page):
            self._further(cursor, entry)
        if entry is END:
            raise StopIteration
        return self._convert(entry)

    def on_next(self, function: Callable[[T], object], /) -> StateFuture[None]:
        """Call `function` with each remaining entry, in order; the future completes after the last one."""
        if self._store.blocking:
            for entry in self:
                function(entry)
            return cast("StateFuture[None]", None)
        done: StateFuture[None] = self._cursor.derived()
        self._cursor.then_accept(lambda cursor: self._give(cursor, function, done))
        return done

    def _give(self, cursor: GroupCursor, function: Callable[[T], object], done: StateFuture[None]) -> None:
        # Each callback handles one entry, so that callbacks that `function` chains run before the next entry, wherever a page
        # ends; without nested futures, since a large map would nest them too deep.
        entry = cursor.next(self._store.access)
        if entry is END:
            done.complete(None)
            return
        if isinstance(entry, Page):
            following = self._further(cursor, entry)
        else:
            function(self._convert(entry))
            following = self._store.answer(None)
        following.then_accept(lambda _: self._give(cursor, function, done))

    def _further(self, cursor: GroupCursor, page: Page) -> Any:
        return self._store.ask(self._store.access, (page,), lambda _, pages: cursor.feed(pages[0]))

    def _check_style(self, *, blocking: bool) -> None:
        if blocking is not self._store.blocking:
            where, use = ("a plain 'def'", "for") if self._store.blocking else ("an 'async def'", "async for")
            msg = f"{self._store.what} is used in {where}: iterate with '{use}', or with on_next()"
            raise TypeError(msg)
