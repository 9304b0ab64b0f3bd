"""Delta table that a store keeps open: the next look at it reads the commits that are new, and not the whole log again.

Opening a table reads each commit since the last log checkpoint, up to a hundred: on an object store as many requests. A table
that is open needs a look at two names: is the commit that it ends with still the same file, and is there a next one?

A table may be dropped and made anew meanwhile, or brought back from a backup. Then the commit that the open table ends with is
gone, or is another file, and the table is opened again.
"""

from __future__ import annotations

from typing import NamedTuple

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from headrace.tables.files import Storage, file_system
from headrace.tables.store import commit_file


class _Commit(NamedTuple):
    """File of a commit in the log: its size and its time tell it from another one of the same name."""

    size: int
    modified: int


class OpenedTable:
    """Table that a store has opened last. It is at the version of the last call, so a caller must not keep it."""

    def __init__(self, uri: str, storage: Storage = None) -> None:
        """Open nothing yet."""
        self._uri, self._storage = uri, storage
        self._table: DeltaTable | None = None
        self._ends_with: _Commit | None = None
        self.transactions: dict[str, int | None] = {}
        """Versions of applications' transactions at the table's version, as far as asked for: each look reads the log again."""

    def keep(self, table: DeltaTable) -> None:
        """Keep a table that was just opened or has just committed, unless a later version is kept."""
        if self._table is None or table.version() >= self._table.version():
            self._table = table
            self._ends_with, _ = self._commits(table.version())
            self.transactions = {}

    def keeps(self, table: DeltaTable) -> bool:
        """Return whether a table is the one that is kept."""
        return table is self._table

    def known(self, version: int | None = None) -> DeltaTable | None:
        """Return the table at a version, by default the latest; None if it must be opened."""
        table = self._table
        if table is None:
            return None
        now = table.version()
        last, following = self._commits(now)
        if last is None or last != self._ends_with:
            self._table = None
            return None
        if following is None or version == now:
            return table if version in {None, now} else None
        if version is not None and version < now:
            return None
        return self._advanced(table, version)

    def is_latest(self, version: int) -> bool:
        """Return whether a version's commit is in the log, and no later one. False also where only the whole log can tell."""
        last, following = self._commits(version)
        return last is not None and following is None

    def has_commit(self, version: int) -> bool:
        """Return whether a version's commit is in the log."""
        last, _ = self._commits(version)
        return last is not None

    def _advanced(self, table: DeltaTable, version: int | None) -> DeltaTable | None:
        """Read the commits that are new; return None if they do not lead to the version."""
        try:
            table.update_incremental()
        except DeltaError:
            self._table = None  # opening it says what is wrong
            return None
        self.keep(table)
        return table if version in {None, table.version()} else None

    def _commits(self, version: int) -> tuple[_Commit | None, _Commit | None]:
        """Return the commits of a version and of the next one. One that lost its content in a power failure does not count."""
        store, root = file_system(self._uri, self._storage)
        names = [f"{root}/{commit_file(number)}" for number in (version, version + 1)]
        last, following = (
            _Commit(file.size, file.mtime_ns or 0) if file.type is fs.FileType.File and file.size else None
            for file in store.get_file_info(names)
        )
        return last, following
