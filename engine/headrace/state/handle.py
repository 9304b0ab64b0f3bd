"""Live handles of declared states: user code calls them, and they answer for the key of the code that runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.api.namespace import check_namespace

if TYPE_CHECKING:
    from headrace.state.state_store import StateStore

_MOST_HANDLES = 1000
"""Number of namespaces whose handles a state keeps: making one costs as much as a read from the cache."""


class Handle:
    """Base of all handles: a state in one namespace."""

    def __init__(self, store: StateStore, namespace: str = "") -> None:
        """Make a handle for one namespace."""
        self._store: Any = store
        self.name = store.name
        self._namespace = namespace
        self._handles: dict[str, Any] = {}

    def namespace(self, namespace: str, /) -> Any:
        """Return the same state in a namespace."""
        handle = self._handles.get(namespace) if type(namespace) is str else None
        if handle is None:
            check_namespace(namespace)
            if len(self._handles) == _MOST_HANDLES:
                self._handles.clear()
            handle = self._handles[namespace] = type(self)(self._store, namespace)
        return handle
