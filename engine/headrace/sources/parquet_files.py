"""Parquet files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow.parquet as pq

from headrace.api import SourceNode
from headrace.sources.file_format import FileRows
from headrace.tables.files import Storage, file_system


def count_rows(uri: str, storage: Storage = None) -> int:
    """Return the number of rows of a Parquet file. Reads the footer alone."""
    store, path = file_system(uri, storage)
    count: int = pq.read_metadata(path, filesystem=store).num_rows
    return count


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """See `FileFormat`. Columns have the types that the file says; only columns that it lacks are missing."""

    suffixes = (".parquet",)

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - the footer tells
        """See `FileFormat.count`."""
        return count_rows(uri, storage)

    def read(
        self,
        uri: str,
        node: SourceNode,  # noqa: ARG002 - the file has types of its own
        storage: Storage = None,
        columns: Collection[str] = (),
    ) -> FileRows:
        """See `FileFormat.read`."""
        store, path = file_system(uri, storage)
        return FileRows(pq.ParquetFile(store.open_input_file(path)).read(columns=[*columns] or None))
