"""Storage: a place on a disk or an object store, the credentials to reach it, and its errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import fs

from headrace.errors import without_credentials
from headrace.storage import files
from headrace.storage.delta_table import DeltaStore
from headrace.storage.files import SMALL, ParquetLayout, StagedFile, Usage
from headrace.storage.refusals import doing
from headrace.storage.schemes import file_system, scheme_of
from headrace.storage.table import TableStore


class Storage(msgspec.Struct, frozen=True):
    """Place on a disk or an object store, the credentials to reach it, and its errors. As data, a task opens it again.

    Paths are relative to the place; a URI or an absolute path names another one. Every method raises `StorageError` that names what
    it was doing, and the URI; `is_missing` is true for a file that is not there.
    """

    uri: str = ""
    """The place; empty: the current folder."""

    options: tuple[tuple[str, str], ...] = ()
    """Options of the object store, with deltalake's names. Never printed: they have secrets."""

    @classmethod
    def of(cls, uri: str, options: Mapping[str, str]) -> Self:
        """Return the storage at a place, reached with these options."""
        return cls(uri, tuple(sorted(options.items())))

    def __repr__(self) -> str:
        """Show the place without credentials."""
        return f"Storage({without_credentials(self.uri)!r})"

    def at(self, place: str) -> Storage:
        """Return another place, with the same credentials. A relative one lies below this."""
        return Storage(self._uri(place), self.options)

    def files(self, path: str = "") -> tuple[fs.FileSystem, str]:
        """Return Arrow's file system for a place, and the path in it. Its errors are raw."""
        return file_system(self._uri(path), self._named)

    def read(self, path: str) -> bytes:
        """Return the content of a small file."""
        with doing(f"to read {self._uri(path)}"):
            return files.read_bytes(self._uri(path), self._named)

    def write(self, path: str, content: bytes = b"") -> None:
        """Write a small file and its folder, replacing an existing file. A concurrent reader may see it half written."""
        with doing(f"to write {self._uri(path)}"):
            files.write_bytes(self._uri(path), content, self._named)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes; None if there is none. This is one request to an object store."""
        with doing(f"to look for {self._uri(path)}"):
            return files.size_of_file(self._uri(path), self._named)

    def list(self, folder: str = "") -> set[str]:
        """Return the paths of all files below a folder, relative to it; none if the folder does not exist."""
        with doing(f"to list {self._uri(folder)}"):
            return files.list_files(self._uri(folder), self._named)

    def folders(self, folder: str = "") -> set[str]:
        """Return the names of the folders in a folder; none if it does not exist."""
        with doing(f"to list {self._uri(folder)}"):
            return files.list_folders(self._uri(folder), self._named)

    def usage(self, folder: str = "") -> dict[str, Usage]:
        """Return the usage of each file and folder in a folder, by name; empty if the folder does not exist."""
        with doing(f"to list {self._uri(folder)}"):
            return files.folder_usage(self._uri(folder), self._named)

    def usage_of(self, paths: Iterable[str]) -> Usage:
        """Return what files take; those that are gone take nothing."""
        with doing(f"to list {self.uri}"):
            return files.files_usage(self.uri, paths, self._named)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, one after the other; ignore files that another process has deleted."""
        with doing(f"to delete files in {self.uri}"):
            files.delete_files(self.uri, paths, self._named)

    def remove(self, path: str = "") -> None:
        """Remove a file, or a folder with its content; do nothing if it does not exist."""
        with doing(f"to remove {self._uri(path)}"):
            files.remove_folder(self._uri(path), self._named)
            files.remove_file(self._uri(path), self._named)

    def parquet(self, path: str) -> pa.Table:
        """Read a whole Parquet file."""
        with doing(f"to read {self._uri(path)}"):
            return files.read_parquet(self._uri(path), self._named)

    def stage(self, name: str, rows: pa.Table, *, layout: ParquetLayout = SMALL, survives: bool = True) -> StagedFile:
        """Write rows as a Parquet file, with a name that is unique to the attempt.

        The file survives a power failure, except with `survives=False`, for files that are read only before the next commit.
        """
        return files.stage(self.uri, name, rows, self._named, layout=layout, survives=survives)

    def table(self, path: str = "") -> TableStore:
        """Return a table. Reads nothing yet."""
        uri = self._uri(path)
        opened = scheme_of(uri).table
        store: TableStore = DeltaStore(uri, self._named) if opened is None else opened(uri)
        return store

    @property
    def _named(self) -> dict[str, str] | None:
        return dict(self.options) or None

    def _uri(self, place: str) -> str:
        if not place or not self.uri or "://" in place or place.startswith("/"):
            return place or self.uri
        return f"{self.uri}/{place}"


LOCAL = Storage()
"""Disks of this machine, and all that is reached without credentials."""
