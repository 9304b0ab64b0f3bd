"""Storage: a place on a disk or an object store, the credentials to reach it, and its errors."""

from __future__ import annotations

from headrace.storage.delta_table import DeltaStore
from headrace.storage.files import Files
from headrace.storage.schemes import scheme_of
from headrace.storage.table import TableStore


class Storage(Files, frozen=True):
    """A place with its files and tables. It is data: a task opens it again. Its credentials are secret, so it is never printed."""

    def at(self, uri: str) -> Storage:
        """Return another place that the same credentials reach."""
        return Storage(uri, self.options)

    def below(self, path: str) -> Storage:
        """Return a place below this one."""
        return Storage(self.within(path), self.options)

    def table(self, path: str = "") -> TableStore:
        """Return the store of a table, by default the one at the place itself. Read nothing yet."""
        uri = self.within(path)
        opened = scheme_of(uri).table
        store: TableStore = DeltaStore(uri, self.options) if opened is None else opened(uri)
        return store
