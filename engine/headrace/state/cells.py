"""Decoded entries in a task's memory: what is known of them, and what has changed."""

from __future__ import annotations

from typing import Any


class Cell:
    """One entry: as decoded, its TTL stamp (ms), and whether backend and cache differ.

    `value` is None where there is none, `stored` where nobody has asked yet whether the backend has the entry. `own_ttl` is a
    life of its own (ms), 0 for the state's.
    """

    __slots__ = ("dirty", "own_ttl", "stamp", "stored", "value")

    def __init__(self, value: Any, stamp: int, own_ttl: int = 0, *, stored: bool | None, dirty: bool = False) -> None:
        self.value = value
        self.stamp = stamp
        self.own_ttl = own_ttl
        self.stored = stored
        self.dirty = dirty


class Cells:
    """The cells of entries whose names begin with `prefix`, by the rest of their names.

    `cleared` says that what the backend has of them counts no more, apart from what is in the cells.
    """

    __slots__ = ("by_name", "cleared", "key_json", "namespace", "prefix")

    def __init__(self, prefix: bytes, key_json: bytes = b"", namespace: str = "") -> None:
        """Start with nothing known. `key_json` and `namespace` are given where they are those of all the entries."""
        self.prefix = prefix
        self.key_json = key_json
        self.namespace = namespace
        self.by_name: dict[bytes, Cell] = {}
        self.cleared = False

    def blank(self, name: bytes) -> Cell:
        """A cell for an entry to be written, unread."""
        cell = self.by_name[name] = Cell(None, 0, stored=None)
        return cell

    def clear(self) -> None:
        """Forget everything, what the backend has included."""
        self.by_name = {}
        self.cleared = True

    def trim(self) -> None:
        """Forget what the backend has as well."""
        kept = {name: cell for name, cell in self.by_name.items() if cell.dirty}
        self.by_name.clear()
        self.by_name.update(kept)
