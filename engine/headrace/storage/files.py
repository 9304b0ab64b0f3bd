"""Files on disks and object stores, above all staged files: Parquet files of a task that no commit names yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.errors import StorageError
from headrace.storage.refusals import storage_advice
from headrace.storage.schemes import Options, file_system, is_on_local_disk, make_folder, scheme_of


def sync_files(folder: str, names: Iterable[str]) -> None:
    """Make files survive a power failure: their content, and their names in their folders.

    `names` are paths relative to `folder`. Raises `OSError` when a file is gone or the disk refuses.
    """
    scheme_of(folder).sync(folder, names)


_STATISTICS = ("operator", "key_group", "key", "checkpoint_id", "state", "domain")


class StagedFile(msgspec.Struct, frozen=True):
    """Staged file: its path relative to its table's folder, its size, and statistics for Delta's file pruning."""

    path: str
    rows: int
    size: int
    minimum: dict[str, Any] = {}
    maximum: dict[str, Any] = {}
    partition: dict[str, str | None] = {}
    """Value of each partition column, as text in Delta's log."""

    def statistics(self) -> str:
        """Return the `stats` field of a Delta add action."""
        stats = {
            "numRecords": self.rows,
            "minValues": self.minimum,
            "maxValues": self.maximum,
            "nullCount": dict.fromkeys(self.minimum, 0),
        }
        return msgspec.json.encode(stats).decode()


def partition_text(value: Any) -> str | None:
    """Return the value of a partition column as Delta's log writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


Storage = Options
"""Options of the object store, with deltalake's names; None on local disks."""


@dataclass(frozen=True, slots=True)
class LateValues:
    """Values of the column `value` of a sorted table, which become a column one row group at a time.

    A column of all values, and its sorted copy, would each need as much memory as the values themselves.
    """

    values: Sequence[bytes | None]
    order: pa.Array
    """For each row of the table, the number of its value."""

    def filled(self, table: pa.Table, rows_per_part: int | None) -> Iterator[pa.Table]:
        """Yield the rows with their values, in parts."""
        place, count = table.schema.get_field_index("value"), rows_per_part or len(self.order)
        for start in range(0, len(self.order), count):
            numbers = self.order.slice(start, count).to_pylist()
            values = utf8([self.values[number] for number in numbers])
            yield table.slice(start, count).set_column(place, table.schema.field(place), values)


def utf8(values: Sequence[bytes | None]) -> pa.Array:
    """Return texts in UTF-8, such as JSON, as a column, in a sixth of the time that it takes to decode each one."""
    return pa.array(values, pa.binary()).view(pa.string())


@dataclass(frozen=True, slots=True)
class ParquetLayout:
    """Options for writing a Parquet file. The defaults make small files."""

    compression: str = "zstd"
    dictionary: Sequence[str] | None = None
    """Columns with repeated values; None lets the writer decide."""

    rows_per_group: int | None = None
    """Rows per row group, which readers can skip; None lets the writer decide."""

    statistics: bool = True
    """Write the least and greatest values of columns, by which readers skip files and row groups."""

    late_values: LateValues | None = None
    """Values of the column `value`; None: they are in the table."""

    def write(self, table: pa.Table, path: str, store: fs.FileSystem) -> None:
        """Write `table` as a file."""
        with pq.ParquetWriter(
            path,
            table.schema,
            filesystem=store,
            compression=self.compression,
            compression_level=1 if self.compression == "zstd" else None,
            use_dictionary=True if self.dictionary is None else list(self.dictionary),
            write_statistics=self.statistics,
        ) as writer:
            parts = [table] if self.late_values is None else self.late_values.filled(table, self.rows_per_group)
            for part in parts:
                writer.write_table(part, row_group_size=self.rows_per_group)


SMALL = ParquetLayout()


def stage(
    folder: str,
    name: str,
    table: pa.Table,
    storage: Storage = None,
    *,
    layout: ParquetLayout = SMALL,
    survives: bool = True,
) -> StagedFile:
    """Write `table` as `folder/name`. The name must be unique to the attempt.

    The file survives a power failure, except with `survives=False`, for files that are read only before the next commit.

    Raises `StorageError` when the file system refuses (full, read-only, gone). A half-written file is removed if possible; if
    not, it does no harm, since no commit names it.
    """
    store, path = file_system(f"{folder}/{name}", storage)
    try:
        if is_on_local_disk(folder):
            make_folder(str(Path(path).parent))
        layout.write(table, path, store)
        size = store.get_file_info(path).size
        if survives:
            sync_files(folder, [name])
    except OSError as error:
        _remove(store, path)
        msg = f"could not write {path}: {error}. Nothing was committed; {storage_advice(error)}."
        raise StorageError(msg) from error
    minimum, maximum = _range(table)
    return StagedFile(name, table.num_rows, size, minimum, maximum)


def read_parquet(uri: str, storage: Storage = None) -> pa.Table:
    """Read a whole Parquet file."""
    store, path = file_system(uri, storage)
    return pq.ParquetFile(store.open_input_file(path)).read()


def is_file(uri: str, storage: Storage = None) -> bool:
    """Return whether a file exists."""
    return size_of_file(uri, storage) is not None


def size_of_file(uri: str, storage: Storage = None) -> int | None:
    """Return the size of a file in bytes; None if there is none.

    This is one request to an object store. `get_file_info` makes two where nothing exists: it also lists a folder of the name.
    """
    store, path = file_system(uri, storage)
    if isinstance(store, fs.LocalFileSystem):
        info = store.get_file_info(path)
        return info.size if info.type is fs.FileType.File else None
    try:
        with store.open_input_file(path) as file:
            return int(file.size())
    except (FileNotFoundError, IsADirectoryError):
        return None


def make_folder_of(uri: str, storage: Storage = None) -> None:
    """Make the folder of a file on a local disk; do nothing on an object store, which has no folders."""
    store, path = file_system(uri, storage)
    if isinstance(store, fs.LocalFileSystem):
        Path(path).parent.mkdir(parents=True, exist_ok=True)


def touch(uri: str, storage: Storage = None) -> None:
    """Make an empty file, and its folder."""
    store, path = file_system(uri, storage)
    make_folder_of(uri, storage)
    with store.open_output_stream(path):
        pass


def write_bytes(uri: str, content: bytes, storage: Storage = None) -> None:
    """Write a small file and its folder, replacing an existing file. A concurrent reader may see it half written."""
    store, path = file_system(uri, storage)
    make_folder_of(uri, storage)
    with store.open_output_stream(path) as stream:
        stream.write(content)


def read_bytes(uri: str, storage: Storage = None) -> bytes:
    """Return the content of a small file. Raises `FileNotFoundError` if it does not exist."""
    store, path = file_system(uri, storage)
    with store.open_input_stream(path) as stream:
        content: bytes = stream.read()
    return content


def list_files(folder: str, storage: Storage = None) -> set[str]:
    """Return the paths of all files below a folder, relative to it; none if the folder does not exist.

    A file whose name is not UTF-8 does not belong to Headrace, and is left out.
    """
    return {*list_sizes(folder, storage)}


def list_sizes(folder: str, storage: Storage = None) -> dict[str, int]:
    """Return the sizes of all files below a folder, by path relative to it, as `list_files` lists them."""
    store, root = file_system(folder, storage)
    files = store.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    sizes = ((path_of(file), file.size) for file in files if file.is_file)
    return {path.removeprefix(f"{root}/"): size for path, size in sizes if path is not None}


def list_folders(folder: str, storage: Storage = None) -> set[str]:
    """Return the names of the folders in a folder; none if it does not exist."""
    store, root = file_system(folder, storage)
    entries = store.get_file_info(fs.FileSelector(root, allow_not_found=True))
    paths = (path_of(entry) for entry in entries if entry.type is fs.FileType.Directory)
    return {path.rpartition("/")[2] for path in paths if path is not None}


class Usage(NamedTuple):
    """Number of files, and their size in bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: object) -> Usage:
        """Return the sum of both."""
        return Usage(self.files + other.files, self.size + other.size) if isinstance(other, Usage) else NotImplemented


def folder_usage(folder: str, storage: Storage = None) -> dict[str, Usage]:
    """Return the usage of each file and folder in a folder, by name; empty if the folder does not exist."""
    store, root = file_system(folder, storage)
    usage: dict[str, Usage] = {}
    for file in store.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True)):
        path = path_of(file)
        if file.is_file and path is not None:
            name = path.removeprefix(f"{root}/").partition("/")[0]
            usage[name] = usage.get(name, Usage()) + Usage(1, file.size)
    return usage


def files_usage(folder: str, paths: Iterable[str], storage: Storage = None) -> Usage:
    """Return what files below a folder take; those that are gone take nothing."""
    store, root = file_system(folder, storage)
    files = [file for file in store.get_file_info([f"{root}/{path}" for path in paths]) if file.is_file]
    return Usage(len(files), sum(file.size for file in files))


def path_of(file: fs.FileInfo) -> str | None:
    """Return the path of a listed file; None if it is not UTF-8. Local disks allow such names."""
    try:
        path: str = file.path
    except UnicodeDecodeError:
        return None
    return path


def delete_files(folder: str, paths: Iterable[str], storage: Storage = None) -> None:
    """Delete files below a folder, one after the other; ignore files that another process has deleted."""
    store, root = file_system(folder, storage)
    for path in paths:
        with suppress(FileNotFoundError):
            store.delete_file(f"{root}/{path}")


def remove_folder(uri: str, storage: Storage = None) -> None:
    """Remove a folder with its content; do nothing if it does not exist."""
    store, path = file_system(uri, storage)
    if store.get_file_info(path).type is fs.FileType.Directory:
        store.delete_dir(path)


def remove_file(uri: str, storage: Storage = None) -> None:
    """Remove a file; do nothing if it does not exist."""
    store, path = file_system(uri, storage)
    if store.get_file_info(path).type is fs.FileType.File:
        store.delete_file(path)


def _remove(store: fs.FileSystem, path: str) -> None:
    try:
        store.delete_file(path)
    except OSError:
        return  # the first error is the one to report; vacuum removes the orphan


def _range(table: pa.Table) -> tuple[dict[str, Any], dict[str, Any]]:
    minimum, maximum = {}, {}
    names: Sequence[str] = table.schema.names
    for name in _STATISTICS:
        if name in names and table.num_rows and not table[name].null_count:  # `statistics` reports a null count of 0
            column = table[name]
            extremes = pc.min_max(column).as_py()
            minimum[name], maximum[name] = extremes["min"], extremes["max"]
    return minimum, maximum
