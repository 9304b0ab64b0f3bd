"""Decoded entries in a task's memory, and their changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.native import Cell


class Cells:
    """Cells of entries whose names begin with `prefix`, by the rest of their names.

    `cleared` says that the backend's entries no longer count, only the cells. `whole` says that the cells include all of the
    backend's entries, and that each cell knows whether the backend has it.
    """

    __slots__ = ("by_name", "cleared", "key_json", "namespace", "prefix", "whole")

    def __init__(self, prefix: bytes, key_json: bytes = b"", namespace: str = "") -> None:
        """Start empty. `key_json` and `namespace` are given if all entries share them."""
        self.prefix = prefix
        self.key_json = key_json
        self.namespace = namespace
        self.by_name: dict[bytes, Cell] = {}
        self.cleared = False
        self.whole = False

    @property
    def at_hand(self) -> bool:
        """Return whether an iteration over all entries needs no backend."""
        return self.whole or self.cleared

    def blank(self, name: bytes) -> Cell:
        """Return a cell for an entry to be written, without reading it."""
        cell = self.by_name[name] = Cell(None, 0, stored=False if self.whole else None)
        return cell

    def values(self) -> list[Any]:
        """Return the values in order of their names: all values of the group, if `at_hand`."""
        by_name = self.by_name
        return [value for name in sorted(by_name) if (value := by_name[name].value) is not None]

    def clear(self) -> None:
        """Remove everything, including the backend's entries."""
        if self.whole:
            stored = ((name, cell) for name, cell in self.by_name.items() if cell.stored is not False)
            self.by_name = {name: Cell(None, cell.stamp, stored=cell.stored, dirty=True) for name, cell in stored}
            return
        self.by_name = {}
        self.cleared = True

    def keep(self, stored: Mapping[bytes, Cell]) -> None:
        """Cache all entries of the backend. Cells that exist already are newer."""
        for name, cell in self.by_name.items():
            if cell.stored is None:
                cell.stored = name in stored
        self.by_name = {**stored, **self.by_name}
        self.whole = True

    def drop(self) -> None:
        """Drop all cells: the backend has their changes."""
        self.by_name.clear()
        self.cleared = self.whole = False

    def trim(self) -> None:
        """Drop the cells that equal the backend's entries."""
        kept = {name: cell for name, cell in self.by_name.items() if cell.dirty}
        self.whole = self.whole and len(kept) == len(self.by_name)
        self.by_name.clear()
        self.by_name.update(kept)
