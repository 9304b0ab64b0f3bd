"""Choice of the format of a source's files, and reading of one file."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from headrace.api.graph import SourceNode
from headrace.config import FileOptions
from headrace.sources.delta.rows import DeltaRows, null_columns, read_rows
from headrace.sources.folder.avro import AvroFiles
from headrace.sources.folder.csv import CsvFiles
from headrace.sources.folder.format import FileFormat, FileRows
from headrace.sources.folder.json import JsonLines
from headrace.sources.folder.parquet import ParquetFiles
from headrace.storage.files import Storage

SUFFIXES: Final = tuple(suffix for kind in (ParquetFiles, JsonLines, CsvFiles, AvroFiles) for suffix in kind.suffixes)
"""Endings of file names that any format reads."""


def format_of(options: FileOptions) -> FileFormat:
    """Return the format that the job's file configures."""
    if options.format == "json":
        return JsonLines()
    if options.format == "csv":
        return CsvFiles(options.csv)
    return AvroFiles() if options.format == "avro" else ParquetFiles()


def read_file(
    uri: str,
    node: SourceNode,
    options: FileOptions,
    *,
    delta: DeltaRows | None = None,
    storage: Storage = None,
    columns: Collection[str] = (),
) -> FileRows:
    """Read a file of a source, with these `columns` only if any are given. `delta` has the facts of a table's log.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    if delta is not None:
        return FileRows(read_rows(uri, delta, storage, columns, null_columns(node.record)))
    return format_of(options).read(uri, node, storage, columns)


def stem_of(name: str, suffixes: Iterable[str] = SUFFIXES) -> str:
    """Return the name of a file without the ending of its format."""
    ending = max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")
    return name.removesuffix(ending)
