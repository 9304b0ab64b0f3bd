"""List state of one operator and task: a map whose user keys are the ids of elements.

An id is the place in arrival order of the record or timer that adds the element, and a running index. So ids grow in
the order of addition, adding reads nothing, and ids don't depend on the split of the input into micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from headrace.api import ListState, StateFuture, StateIterator
from headrace.api.namespace import check_namespace, checked_namespaces
from headrace.plan.order import output_order
from headrace.state.backend import Page, end_of_group
from headrace.state.cells import Cells
from headrace.state.group_cursor import WalkedEntry
from headrace.state.group_store import GroupHandle, GroupStore
from headrace.state.state_task import Moment

V = TypeVar("V")


class ListStore(GroupStore):
    """Lists of all keys."""

    @property
    def handle(self) -> ListState[Any]:
        """Return the handle that user code uses."""
        return ListHandle(self)

    def peek(self, key_json: bytes, namespace: str = "") -> list[Any]:
        """Return a key's current list, without TTL. For tests and tools."""
        return [value for _, value in self.peek_entries(key_json, namespace)]

    def resume(self) -> StateFuture[Any]:
        """Read the key's state outside of namespaces, which a declared block may wait for when the run ends."""
        return self.whole(self.group(self.moment.key_json, ""))

    def named(self, values: Iterable[Any]) -> list[tuple[bytes, Any]]:
        """Return elements with new ids. Raises `ValueError` for None among them."""
        moment = self.moment
        elements = [(_next_id(moment), value) for value in values]
        if any(value is None for _, value in elements):
            msg = f"{self.what} was given None: a list has no such elements"
            raise ValueError(msg)
        return elements

    def add(self, cells: Cells, elements: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Append elements."""
        return cast("StateFuture[None]", self._act(partial(self._set_all, cells, elements, own_ttl)))

    def replace(self, cells: Cells, elements: Sequence[tuple[bytes, Any]], own_ttl: int) -> StateFuture[None]:
        """Replace all elements by these."""

        def finish(moment: Moment, _: Sequence[Any]) -> None:
            cells.clear()
            self._set_all(cells, elements, own_ttl, moment, ())

        return cast("StateFuture[None]", self._act(finish))

    def merge(self, target: Cells, sources: Sequence[Cells]) -> StateFuture[None]:
        """Move all elements of `sources` to `target`."""
        unread = [cells for cells in sources if not cells.cleared]
        actions = [Page(cells.prefix, end_of_group(cells.prefix)) for cells in unread]

        def finish(moment: Moment, pages: Sequence[Any]) -> None:
            stored = dict(zip(map(id, unread), pages, strict=True))
            for cells in sources:
                target.by_name.update(self.moved(cells, stored.get(id(cells), ()), moment))

        return cast("StateFuture[None]", self.ask(self.moment, actions, finish))


class ListHandle(GroupHandle, ListState[V]):
    """Live handle of a declared `ListState`, for the key of the code that runs."""

    _store: ListStore

    def add(self, value: V, /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Append an element. Raises `ValueError` for None."""
        store = self._store
        moment = store.moment
        if value is None or ttl is not None or not store.may_act(moment):
            return self.add_all((value,), ttl)
        # Without the detours of `add_all`: joins add each of their records to a list.
        cells, name = store.here(self._namespace), _next_id(moment)
        store.set(moment, cells.by_name.get(name) or cells.blank(name), value)
        return cast("StateFuture[None]", store.answer(None))

    def add_all(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Append elements in their order. Raises `ValueError` for None among them."""
        own_ttl = self._store.own_ttl(ttl)
        return self._store.add(self._here, self._store.named(values), own_ttl)

    def update(self, values: Iterable[V], /, ttl: timedelta | None = None) -> StateFuture[None]:
        """Replace all elements by these. Raises `ValueError` for None among them."""
        own_ttl = self._store.own_ttl(ttl)
        return self._store.replace(self._here, self._store.named(values), own_ttl)

    def get(self) -> StateFuture[list[V]]:
        """Read all elements; an empty list if there are none."""
        return self._store.whole(self._here)

    def iterate(self) -> StateIterator[V]:
        """Return an iterator over the elements, page by page."""
        return self._store.iterator(self._here, _value_of)

    def get_namespaces(self, namespaces: Iterable[str]) -> StateFuture[dict[str, list[V]]]:
        """Read the lists of several namespaces, in the order given; empty lists are left out."""
        return self._store.in_namespaces(checked_namespaces(namespaces))

    def merge_namespaces(self, target: str, sources: Sequence[str]) -> StateFuture[None]:
        """Move the elements of the namespaces `sources` to `target`, with their lifetimes."""
        store, key_json = self._store, self._store.moment.key_json
        for namespace in (target, *sources):
            check_namespace(namespace)
        apart = [namespace for namespace in dict.fromkeys(sources) if namespace != target]
        return store.merge(store.group(key_json, target), [store.group(key_json, namespace) for namespace in apart])


def _next_id(moment: Moment) -> bytes:
    place = output_order(moment.order, moment.index)
    moment.index += 1
    return b'"%b"' % place.hex().encode()


def _value_of(entry: WalkedEntry) -> Any:
    return entry.value
