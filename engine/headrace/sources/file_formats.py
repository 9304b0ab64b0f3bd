"""Which format the files of a source have, and reading one of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from headrace.api import SourceNode
from headrace.config import FileOptions
from headrace.sources.avro_files import AvroFiles
from headrace.sources.csv_files import CsvFiles
from headrace.sources.delta_rows import DeltaRows, read_rows
from headrace.sources.file_format import FileFormat, FileRows
from headrace.sources.json_lines import JsonLines
from headrace.sources.parquet_files import ParquetFiles
from headrace.tables.files import Storage

SUFFIXES: Final = tuple(suffix for each in (ParquetFiles, JsonLines, CsvFiles, AvroFiles) for suffix in each.suffixes)
"""The endings of names of all files that any source reads."""


def format_of(options: FileOptions) -> FileFormat:
    """Return the format that a job's file names."""
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
    """Read a file of a source, with these `columns` only if any are given. `delta` is what a table's log says of its rows.

    Raises one of `headrace.sources.file_format.UNREADABLE`.
    """
    if delta is not None:
        return FileRows(read_rows(uri, delta, storage, columns))
    return format_of(options).read(uri, node, storage, columns)


def stem_of(name: str, suffixes: Iterable[str] = SUFFIXES) -> str:
    """Return the name of a file without the ending that tells its format."""
    ending = max((suffix for suffix in suffixes if name.endswith(suffix)), key=len, default="")
    return name.removesuffix(ending)
