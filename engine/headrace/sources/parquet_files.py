"""Parquet files."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from headrace.api import SourceNode
from headrace.sources.file_format import FileRows
from headrace.sources.parquet_columns import ParquetColumns
from headrace.tables.files import Storage


def count_rows(uri: str, storage: Storage = None) -> int:
    """Count the rows of a Parquet file. Reads only the footer. Raises one of `UNREADABLE`."""
    return ParquetColumns(uri, storage).rows


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """Format of Parquet files. Columns have the file's types; columns that the file lacks are left out."""

    suffixes = (".parquet",)

    def count(self, uri: str, node: SourceNode, storage: Storage = None) -> int:  # noqa: ARG002 - the footer has the count
        """Count the rows of a file. Raises one of `UNREADABLE`."""
        return count_rows(uri, storage)

    def schema(self, uri: str, storage: Storage = None) -> pa.Schema | None:
        """Return the columns of a file. Reads only the footer. Raises one of `UNREADABLE`."""
        return ParquetColumns(uri, storage).schema

    def read(
        self,
        uri: str,
        node: SourceNode,  # noqa: ARG002 - the file has its own types
        storage: Storage = None,
        columns: Collection[str] = (),
    ) -> FileRows:
        """Read the rows of a file, with these `columns` only if any are given. Raises one of `UNREADABLE`."""
        return FileRows(ParquetColumns(uri, storage).read(columns))
