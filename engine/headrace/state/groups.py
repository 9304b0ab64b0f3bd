"""State with a group of entries for each key and namespace: maps and lists."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, cast

from headrace.api.future import StateFuture
from headrace.native import Cell
from headrace.state.backend import Page, end_of_group, entry_group, entry_groups
from headrace.state.cells import Cells
from headrace.state.cursor import END, PAGE, GroupCursor, LiveIterator, ReadyCursor, WalkedEntry, first_page
from headrace.state.store import Handle, StateStore
from headrace.state.waiting_calls import Access, More


class GroupStore(StateStore):
    """Store with a `Cells` for each key and namespace, by user key."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Take the declaration and the arguments of `StateStore`."""
        super().__init__(*arguments, **options)
        self._groups: dict[tuple[bytes, str], Cells] = {}
        self._grouped_keys: set[bytes] = set()
        """Keys of these groups."""
        self._known_keys: set[bytes] = set()
        """Keys whose entries of all namespaces are cached."""
        self._large_keys: set[bytes] = set()
        """Keys whose entries of all namespaces fill a page."""
        self._made = 0
        self._nothing: LiveIterator[Any] = LiveIterator(self, self.answer(ReadyCursor(())), _unchanged_entry)

    def groups(self) -> Iterable[Cells]:
        """Return all cells of the task."""
        return self._groups.values()

    def group(self, key_json: bytes, namespace: str) -> Cells:
        """Return the cells of a key's group."""
        name = (key_json, namespace)
        cells = self._groups.get(name)
        if cells is None:
            cells = self._groups[name] = Cells(entry_group(self.name, key_json, namespace), key_json, namespace)
            cells.whole = key_json in self._known_keys
            self._grouped_keys.add(key_json)
            self._made += 1
        return cells

    def here(self, namespace: str) -> Cells:
        """Return the cells of a group of the key whose code runs."""
        name = (self._task.context.key_json, namespace)
        return self._groups.get(name) or self.group(*name)

    def prefetch(self, keys: Iterable[bytes]) -> None:
        """Find out which keys have no entry in the backend: their lists and maps are not read."""
        if not (self._backend.is_in_memory and self._backend.scans_keys):
            return  # a read from disk would be in vain for code that only writes
        prefixes = {entry_groups(self.name, key): key for key in keys if key not in self._known_keys}
        ordered = sorted(prefixes)
        answers = zip(ordered, self._backend.may_have(ordered), strict=True)
        absent = [prefixes[prefix] for prefix, may_exist in answers if not may_exist]
        self._known_keys.update(absent)
        self._made += len(absent)

    def read_groups(self, keys: Iterable[bytes]) -> None:
        """Cache the groups of some keys outside of namespaces."""
        self.read_all([self.group(key, "") for key in keys])

    def read_all(self, groups: Iterable[Cells]) -> None:
        """Cache some groups."""
        unread = {cells.prefix: cells for cells in groups if not cells.at_hand}
        ordered = sorted(unread)
        for prefix, may_exist in zip(ordered, self._backend.may_have(ordered), strict=True):
            self.keep(unread[prefix], [*self._backend.scan(prefix, end_of_group(prefix))] if may_exist else ())

    @property
    def is_full(self) -> bool:
        """Return whether `cache_limit` entries have been cached since the last trim, or groups since the last `release`."""
        return self._loaded >= self.cache_limit or self._made >= self.cache_limit

    def make_room(self) -> None:
        """Trim a full cache; the groups stay until `release`, since calls that wait refer to them."""
        if self._loaded >= self.cache_limit:
            self.trim()

    def trim(self) -> None:
        """Drop cells that equal the backend's entries."""
        self._known_keys.clear()
        super().trim()

    def release(self) -> None:
        """Drop everything that equals the backend, groups included."""
        self.trim()
        self._made = 0
        self._large_keys.clear()
        self._groups = {name: cells for name, cells in self._groups.items() if cells.by_name or cells.cleared}
        self._grouped_keys = {key_json for key_json, _ in self._groups}

    def forget(self, keys: Collection[bytes]) -> None:
        """Drop the cells of some keys, none of which was changed but in place."""
        self._known_keys.difference_update(keys)
        for cells in self._groups.values():
            if cells.key_json in keys:
                cells.trim()

    def clear(self, cells: Cells) -> StateFuture[None]:
        """Remove all entries of a group, which costs a scan of it when the task ends."""

        def finish(*_: Any) -> None:
            cells.clear()

        return cast("StateFuture[None]", self._act(finish))

    def _act(self, finish: Callable[[Access, Sequence[Any]], Any]) -> Any:
        """Run an action that needs no entries."""
        access = self.access
        return self.answer(finish(access, ())) if self.may_act(access) else self.ask(access, (), finish)

    def put(self, cells: Cells, entries: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Write some entries of a group. It reads nothing, unless TTL needs their stamps."""
        if not self._stamp_counts:
            return cast("StateFuture[None]", self._act(partial(self._set_all, cells, entries, own_ttl)))
        actions = [cells.prefix + name for name, _ in entries]
        return cast(
            "StateFuture[None]", self.ask(self.access, actions, partial(self._set_known, cells, entries, own_ttl))
        )

    def _set_all(
        self, cells: Cells, entries: Sequence[tuple[bytes, Any]], own_ttl: int, access: Access, _: Sequence[Any]
    ) -> None:
        for name, value in entries:
            self.set(access, cells.by_name.get(name) or cells.blank(name), value, own_ttl)

    def _set_known(
        self,
        cells: Cells,
        entries: Sequence[tuple[bytes, Any]],
        own_ttl: int,
        access: Access,
        stored_values: Sequence[Any],
    ) -> None:
        for (name, _), stored in zip(entries, stored_values, strict=True):
            if name not in cells.by_name and not cells.cleared:
                self.load(cells, name, stored)
        self._set_all(cells, entries, own_ttl, access, ())

    # ------------------------------------------------------------------------------------------------ whole groups

    def iterator(self, cells: Cells, convert: Callable[[WalkedEntry], Any]) -> LiveIterator[Any]:
        """Iterate over a snapshot of a group; `convert` makes the value for user code from an entry."""
        if self._ttl is not None or not (cells.whole or cells.cleared) or not self.may_act(self.access):
            return LiveIterator(self, self.walk(cells, _unchanged), convert)
        self.hits += 1
        by_name = cells.by_name
        entries = [WalkedEntry(name, cell.value) for name, cell in by_name.items() if cell.value is not None]
        if not entries:
            return self._nothing  # a join meets an empty side in most calls: this costs a third
        if len(entries) > 1:
            entries.sort(key=_name_of)
        return LiveIterator(self, self.answer(ReadyCursor(entries)), convert)

    def whole(self, cells: Cells) -> StateFuture[list[Any]]:
        """Read the values of all live entries of a group."""
        if cells.at_hand and self._ttl is None and self.may_act(self.access):
            self.hits += 1
            return cast("StateFuture[list[Any]]", self.answer(cells.values()))

        def finish(access: Access, cursor: GroupCursor) -> list[Any]:
            return [cast("WalkedEntry", entry).value for entry in iter(partial(cursor.next, access), END)]

        return cast("StateFuture[list[Any]]", self.walk(cells, finish, None, resumes=not cells.namespace))

    def walk(
        self,
        cells: Cells,
        begin: Callable[[Access, GroupCursor], Any],
        limit: int | None = PAGE,
        *,
        resumes: bool = False,
    ) -> Any:
        """Return the result of `begin` with an iteration that has its first page; for the limit None, all entries."""
        access = self.access
        if (cells.whole or cells.cleared) and self.may_act(access):
            self.hits += 1
            return self.answer(begin(access, GroupCursor(self, cells, (), limit)))

        def finish(access: Access, pages: Sequence[Any]) -> Any:
            if not pages and not cells.at_hand:  # it was cached, and was evicted meanwhile
                return More(first_page(cells, limit), finish)
            if pages and not cells.at_hand and len(pages[0]) < PAGE:
                self.keep(cells, pages[0])
            return begin(access, GroupCursor(self, cells, pages, limit))

        def finish_of_key(access: Access, pages: Sequence[Any]) -> Any:
            self._keep_key(cells.key_json, pages[0])
            if cells.key_json in self._known_keys and not cells.at_hand:  # the backend has no entry of this key
                cells.keep({})
            return finish(access, ())

        if cells.at_hand or not self._reads_key_of(cells):
            return self.ask(access, first_page(cells, limit), finish, resumes=resumes)
        groups = entry_groups(self.name, cells.key_json)
        return self.ask(access, (Page(groups, end_of_group(groups), PAGE),), finish_of_key, resumes=resumes)

    def _reads_key_of(self, cells: Cells) -> bool:
        """Return whether to read all namespaces of the key: code that uses one of them will probably use others."""
        return self._backend.scans_keys and bool(cells.namespace) and cells.key_json not in self._large_keys

    def _keep_key(self, key_json: bytes, page: Sequence[tuple[bytes, bytes]]) -> None:
        """Cache all entries of a key, of all namespaces, unless they fill a page."""
        if len(page) == PAGE:
            self._large_keys.add(key_json)
            return
        if key_json not in self._known_keys:
            size = len(entry_groups(self.name, key_json))
            groups: dict[bytes, list[tuple[bytes, bytes]]] = {}
            for entry, stored in page:
                groups.setdefault(entry[size : entry.rindex(b"\x00")], []).append((entry, stored))
            for namespace, entries in groups.items():
                cells = self.group(key_json, namespace.decode())
                if not cells.at_hand:
                    self.keep(cells, entries)
            self._known_keys.add(key_json)
            self._made += 1

    def keep(self, cells: Cells, page: Sequence[tuple[bytes, bytes]]) -> None:
        """Cache all entries of a group."""
        size = len(cells.prefix)
        self._loaded += len(page)
        cells.keep({entry[size:]: self.decode(stored) for entry, stored in page})

    def in_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, list[Any]]]:
        """Read the values of all live entries of a key's groups in these namespaces; empty groups are left out."""
        access = self.access
        key_json = access.key_json
        if key_json in self._known_keys and self.may_act(access):
            self.hits += 1
            answer = self.answer(self._known_lists(access, namespaces) if key_json in self._grouped_keys else {})
        elif self._backend.scans_keys and key_json not in self._large_keys:
            answer = self.ask(access, *self._reading_key(key_json, namespaces))
        else:
            answer = self.ask(access, *self._reading_groups(key_json, namespaces))
        return cast("StateFuture[dict[str, list[Any]]]", answer)

    def _reading_key(self, key_json: bytes, namespaces: Iterable[str]) -> More:
        prefix = entry_groups(self.name, key_json)

        def finish(access: Access, pages: Sequence[Any]) -> Any:
            self._keep_key(key_json, pages[0])
            if key_json in self._known_keys:
                return self._known_lists(access, namespaces)
            return self._reading_groups(key_json, namespaces)

        return More([Page(prefix, end_of_group(prefix), PAGE)], finish)

    def _reading_groups(self, key_json: bytes, namespaces: Iterable[str], *, again: bool = False) -> More:
        """Return the groups that must be read, and the end of the call. `again` reads also the cached ones: some were evicted."""
        groups = {namespace: self.group(key_json, namespace) for namespace in namespaces}
        unread = [cells for cells in groups.values() if again or not cells.at_hand]

        def finish(access: Access, pages: Sequence[Any]) -> Any:
            stored = dict(zip(map(id, unread), pages, strict=True))
            if any(not cells.at_hand and id(cells) not in stored for cells in groups.values()):
                return self._reading_groups(key_json, namespaces, again=True)
            lists = {name: self._values(access, cells, stored.get(id(cells), ())) for name, cells in groups.items()}
            return {namespace: values for namespace, values in lists.items() if values}

        return More([Page(cells.prefix, end_of_group(cells.prefix)) for cells in unread], finish)

    def _known_lists(self, access: Access, namespaces: Iterable[str]) -> dict[str, list[Any]]:
        """Return the values of the key's groups in these namespaces; all that the backend has of the key is cached."""
        lists = {}
        for namespace in namespaces:
            cells = self._groups.get((access.key_json, namespace))
            values = () if cells is None else self._values(access, cells, ())
            if values:
                lists[namespace] = values
        return lists

    def _values(self, access: Access, cells: Cells, page: Sequence[tuple[bytes, bytes]]) -> list[Any]:
        """Return the values of all live entries of a group, whose stored entries are `page` unless it is cached."""
        if not cells.at_hand and len(page) < PAGE:
            self.keep(cells, page)
        if cells.at_hand and self._ttl is None:
            return cells.values()
        cursor = GroupCursor(self, cells, (page,), None)
        return [cast("WalkedEntry", entry).value for entry in iter(partial(cursor.next, access), END)]

    def is_empty(self, cells: Cells) -> StateFuture[bool]:
        """Return whether a group has no live entry; read pages until there is one."""

        def go_on(access: Access, cursor: GroupCursor) -> Any:
            entry = cursor.next(access, is_read=False)
            if not isinstance(entry, Page):
                return entry is END

            def feed(access: Access, pages: Sequence[Any]) -> Any:
                cursor.feed(pages[0])
                return go_on(access, cursor)

            return More((entry,), feed)

        return cast("StateFuture[bool]", self.walk(cells, go_on))

    def peek_entries(self, key_json: bytes, namespace: str) -> list[tuple[bytes, Any]]:
        """Return the current user keys and values of a group, without TTL. For tests and tools."""
        cells = self.group(key_json, namespace)
        stored = self._backend.scan(cells.prefix, end_of_group(cells.prefix)) if not cells.cleared else ()
        current = {entry[len(cells.prefix) :]: self.decode(value) for entry, value in stored} | cells.by_name
        return [(name, current[name].value) for name in sorted(current) if current[name].value is not None]

    def moved(
        self, cells: Cells, stored_entries: Sequence[tuple[bytes, bytes]], access: Access
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
            if cell.value is not None and not self.is_dead(access, cell.stamp, cell.own_ttl)
        ]


class GroupHandle(Handle):
    """Base of the handles of groups."""

    _store: GroupStore

    def clear(self) -> StateFuture[None]:
        """Remove all entries of the key in this namespace."""
        return self._store.clear(self._here)

    @property
    def _here(self) -> Cells:
        return self._store.here(self._namespace)


_name_of = attrgetter("name")


def _unchanged(_: Access, cursor: GroupCursor) -> GroupCursor:
    return cursor


def _unchanged_entry(entry: WalkedEntry) -> WalkedEntry:
    return entry
