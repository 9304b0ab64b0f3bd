"""Live iterator over a list or map."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from headrace.api import StateFuture, StateIterator
from headrace.state.backend import Page
from headrace.state.group_cursor import END, GroupCursor, WalkedEntry

if TYPE_CHECKING:
    from headrace.state.state_store import StateStore

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
        if not self._cursor.done or self._store.moment.callbacks:
            return self._next()
        entry = self._cursor.answer.next(self._store.moment)
        if entry is END:
            raise StopAsyncIteration
        # A complete future costs a third of a coroutine.
        return (
            self._next() if isinstance(entry, Page) else cast("Awaitable[T]", self._store.answer(self._convert(entry)))
        )

    async def _next(self) -> T:
        # It awaits for each entry, so that callbacks run in the same order wherever a page ends.
        cursor: Any = await self._cursor  # only a `GroupCursor` asks for pages
        while isinstance(entry := cursor.next(self._store.moment), Page):
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
        while isinstance(entry := cursor.next(self._store.moment), Page):
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
        entry = cursor.next(self._store.moment)
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
        return self._store.ask(self._store.moment, (page,), lambda _, pages: cursor.feed(pages[0]))

    def _check_style(self, *, blocking: bool) -> None:
        if blocking is not self._store.blocking:
            where, use = ("a plain 'def'", "for") if self._store.blocking else ("an 'async def'", "async for")
            msg = f"{self._store.what} is used in {where}: iterate with '{use}', or with on_next()"
            raise TypeError(msg)
