"""A backend whose answers have to be awaited."""

from __future__ import annotations

from headrace.state.backend import HashMapBackend


class Deferred(HashMapBackend):
    """A backend in memory that answers no request at once."""

    is_in_memory = False
