"""Choice of the format of a source's files, and reading of one file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

import msgspec

from headrace.api.graph import SourceNode
from headrace.config import FileOptions
from headrace.sources.folder.avro import AvroFiles
from headrace.sources.folder.csv import CsvFiles
from headrace.sources.folder.format import FileFormat, FileRows
from headrace.sources.folder.json import JsonLines
from headrace.sources.folder.parquet import ParquetFiles
from headrace.sources.source import NOTHING_MORE
from headrace.storage.storage import Storage

FORMATS: Final[Mapping[str, Callable[[FileOptions], FileFormat]]] = {
    "parquet": lambda _: ParquetFiles(),
    "json": lambda options: JsonLines(options.json, envelope=options.envelope),
    "csv": lambda options: CsvFiles(options.csv),
    "avro": lambda _: AvroFiles(),
}
"""Makers of formats, by their names in the job's file."""

SUFFIXES: Final = tuple(suffix for kind in (ParquetFiles, JsonLines, CsvFiles, AvroFiles) for suffix in kind.suffixes)
"""Endings of file names that any format reads."""


def format_of(options: FileOptions) -> FileFormat:
    """Return the format that the job's file configures."""
    return FORMATS[options.format](options)


def facts_of(options: FileOptions) -> msgspec.Raw:
    """Return what a reader of a single file must know of its format; `NOTHING_MORE` where nothing is set."""
    return NOTHING_MORE if options == FileOptions(format=options.format) else msgspec.Raw(msgspec.json.encode(options))


def options_of(name: str, facts: msgspec.Raw) -> FileOptions:
    """Return the options of a format by its name and what `facts_of` returned."""
    return msgspec.json.decode(facts, type=FileOptions | None) or FileOptions(format=name)


def read_file(
    file: Storage,
    node: SourceNode,
    options: FileOptions,
    *,
    columns: Collection[str] = (),
    given: Mapping[str, Any] = MappingProxyType({}),
) -> FileRows:
    """Read a file of a folder, with these `columns` only if any are given.

    `given` has plain values of columns that the file may lack. The formats need to know which these are, where a row has a name for each
    value, or none for all.

    Raises one of `headrace.sources.folder.format.UNREADABLE`.
    """
    kind = format_of(options)
    return (replace(kind, given=given) if given and isinstance(kind, JsonLines | CsvFiles) else kind).read(
        file, node, columns
    )


def stem_of(name: str, suffixes: Iterable[str] = SUFFIXES) -> str:
    """Return the name of a file without the ending of its format, in any case."""
    longest = max((len(suffix) for suffix in suffixes if name.lower().endswith(suffix)), default=0)
    return name[: len(name) - longest]
