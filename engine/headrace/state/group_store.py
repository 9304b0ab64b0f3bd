"""State with a group of entries for each key and namespace: maps and lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

from headrace.api import StateFuture
from headrace.api.namespace import check_namespace
from headrace.state.backend import Page, end_of_group
from headrace.state.cells import Cell, Cells
from headrace.state.entry import entry_group
from headrace.state.group_cursor import END, GroupCursor, WalkedEntry, first_page
from headrace.state.state_iterator import LiveIterator
from headrace.state.state_store import StateStore
from headrace.state.state_task import Moment
from headrace.state.waiting_calls import More


class GroupStore(StateStore):
    """Store with a `Cells` for each key and namespace, by user key."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(*arguments, **options)
        self._groups: dict[tuple[bytes, str], Cells] = {}

    def groups(self) -> Iterable[Cells]:
        """Return all cells of the task."""
        return self._groups.values()

    def group(self, key_json: bytes, namespace: str) -> Cells:
        """Return the cells of a key's group."""
        name = (key_json, namespace)
        cells = self._groups.get(name)
        if cells is None:
            cells = self._groups[name] = Cells(entry_group(self.name, key_json, namespace), key_json, namespace)
        return cells

    def clear(self, cells: Cells) -> StateFuture[None]:
        """Remove all entries of a group, which costs a scan of it when the task ends."""

        def finish(*_: Any) -> None:
            cells.clear()

        return cast("StateFuture[None]", self._act(finish))

    def _act(self, finish: Callable[[Moment, Sequence[Any]], Any]) -> Any:
        """Run an action that needs no entries."""
        moment = self.moment
        return self.answer(finish(moment, ())) if self.may_act(moment) else self.ask(moment, (), finish)

    def put(self, cells: Cells, entries: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Write some entries of a group. It reads nothing, unless TTL needs their creation times."""
        if not self._creation_counts:
            return cast("StateFuture[None]", self._act(partial(self._set_all, cells, entries, own_ttl)))
        actions = [cells.prefix + name for name, _ in entries]
        return cast(
            "StateFuture[None]", self.ask(self.moment, actions, partial(self._set_known, cells, entries, own_ttl))
        )

    def _set_all(
        self, cells: Cells, entries: Sequence[tuple[bytes, Any]], own_ttl: int, moment: Moment, _: Sequence[Any]
    ) -> None:
        for name, value in entries:
            self.set(moment, cells.by_name.get(name) or cells.blank(name), value, own_ttl)

    def _set_known(
        self,
        cells: Cells,
        entries: Sequence[tuple[bytes, Any]],
        own_ttl: int,
        moment: Moment,
        stored_values: Sequence[Any],
    ) -> None:
        for (name, _), stored in zip(entries, stored_values, strict=True):
            if name not in cells.by_name and not cells.cleared:
                cells.by_name[name] = self.decode(stored)
        self._set_all(cells, entries, own_ttl, moment, ())

    # ------------------------------------------------------------------------------------------------ whole groups

    def iterator(self, cells: Cells, convert: Callable[[WalkedEntry], Any]) -> LiveIterator[Any]:
        """Iterate over a snapshot of a group; `convert` makes the value for user code from an entry."""
        return LiveIterator(self, cells, convert)

    def whole(self, cells: Cells, convert: Callable[[WalkedEntry], Any]) -> StateFuture[list[Any]]:
        """Read all live entries of a group."""

        def finish(moment: Moment, pages: Sequence[Any]) -> list[Any]:
            cursor = GroupCursor(self, cells, pages, None)
            return [convert(cast("WalkedEntry", entry)) for entry in iter(partial(cursor.next, moment), END)]

        return cast(
            "StateFuture[list[Any]]",
            self.ask(self.moment, first_page(cells, None), finish, resumes=not cells.namespace),
        )

    def is_empty(self, cells: Cells) -> StateFuture[bool]:
        """Return whether a group has no live entry; read pages until there is one."""

        def finish(moment: Moment, pages: Sequence[Any]) -> Any:
            return go_on(GroupCursor(self, cells, pages), moment)

        def go_on(cursor: GroupCursor, moment: Moment) -> Any:
            entry = cursor.next(moment, is_read=False)
            if not isinstance(entry, Page):
                return entry is END

            def feed(moment: Moment, pages: Sequence[Any]) -> Any:
                cursor.feed(pages[0])
                return go_on(cursor, moment)

            return More((entry,), feed)

        return cast("StateFuture[bool]", self.ask(self.moment, first_page(cells), finish))

    def peek_entries(self, key_json: bytes, namespace: str) -> list[tuple[bytes, Any]]:
        """Return the current user keys and values of a group, without TTL. For tests and tools."""
        cells = self.group(key_json, namespace)
        stored = self._backend.scan(cells.prefix, end_of_group(cells.prefix)) if not cells.cleared else ()
        current = {entry[len(cells.prefix) :]: self.decode(value) for entry, value in stored} | cells.by_name
        return [(name, current[name].value) for name in sorted(current) if current[name].value is not None]

    def moved(
        self, cells: Cells, stored_entries: Sequence[tuple[bytes, bytes]], moment: Moment
    ) -> list[tuple[bytes, Cell]]:
        """Clear a group, and return its live entries as cells for another group. `stored_entries` are all that the backend has."""
        held = {
            entry[len(cells.prefix) :]: self.decode(stored) for entry, stored in stored_entries if not cells.cleared
        }
        held |= cells.by_name
        cells.clear()
        return [
            (name, Cell(cell.value, cell.stamp, cell.own_ttl, stored=None, dirty=True))
            for name, cell in held.items()
            if cell.value is not None and not self.is_dead(moment, cell.stamp, cell.own_ttl)
        ]


class GroupHandle:
    """Base of the handles of groups."""

    _store: GroupStore

    def __init__(self, store: GroupStore, namespace: str = "") -> None:
        """Make a handle for one namespace."""
        self._store = store
        self.name = store.name
        self._namespace = namespace

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        check_namespace(namespace)
        return type(self)(self._store, namespace)

    def clear(self) -> StateFuture[None]:
        """Remove all entries of the key in this namespace."""
        return self._store.clear(self._here)

    @property
    def _here(self) -> Cells:
        return self._store.group(self._store.moment.key_json, self._namespace)
