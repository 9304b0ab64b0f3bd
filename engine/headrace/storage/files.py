"""Files on disks and object stores, above all staged files: Parquet files of a task that no commit names yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from headrace.errors import StorageError
from headrace.storage.refusals import doing, storage_advice
from headrace.storage.schemes import Options, is_on_local_disk, make_folder, scheme_of

Content = TypeVar("Content")

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


_MAGIC: Final = b"PAR1"
"""First bytes of a Parquet file, and its last ones."""

_FOOTER: Final = 1 << 16
"""Bytes at the end of a Parquet file that are read at once: the footers of most files are shorter."""

_PART: Final = 1 << 22


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
            write_page_checksum=True,
        ) as writer:
            parts = [table] if self.late_values is None else self.late_values.filled(table, self.rows_per_group)
            for part in parts:
                writer.write_table(part, row_group_size=self.rows_per_group)


SMALL = ParquetLayout()


class Usage(NamedTuple):
    """Number of files, and their size in bytes."""

    files: int = 0
    size: int = 0

    def __add__(self, other: object) -> Usage:
        """Return the sum of both."""
        return Usage(self.files + other.files, self.size + other.size) if isinstance(other, Usage) else NotImplemented


class Files(msgspec.Struct, frozen=True):
    """Files at a place: a folder of a disk, or a prefix of an object store, with the credentials to reach it.

    Paths are relative to the place. Methods raise `StorageError` when the storage refuses.
    """

    uri: str
    options: Options = None
    """Options of an object store, with deltalake's names; None on disks."""

    def __repr__(self) -> str:
        """Return the place, without its credentials."""
        return f"{type(self).__name__}({self.uri!r})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Return the place, without its credentials."""
        return [("uri", self.uri)]

    def __hash__(self) -> int:
        """Let places be keys."""
        return hash((self.uri, frozenset((self.options or {}).items())))

    def within(self, path: str) -> str:
        """Return the URI of a path below the place; its own for an empty path."""
        return f"{self.uri}/{path}" if path else self.uri

    def file_system(self, path: str = "") -> tuple[fs.FileSystem, str]:
        """Return pyarrow's file system of the place, and a path in it. What it raises is raw."""
        uri = self.within(path)
        return scheme_of(uri).files(uri, self.options)

    def open(self, path: str = "") -> pa.NativeFile:
        """Open a file to read any part of it. What it raises is raw."""
        store, full = self.file_system(path)
        return store.open_input_file(full)

    @property
    def is_on_local_disk(self) -> bool:
        """Whether the place is on a disk of this machine, or on a mounted file system."""
        return is_on_local_disk(self.uri)

    def size(self, path: str = "") -> int | None:
        """Return the size of a file in bytes; None if there is none.

        This is one request to an object store. `get_file_info` makes two where nothing exists: it also lists a folder of the name.
        """
        with self._refusing("to look for", path):
            store, full = self.file_system(path)
            if isinstance(store, fs.LocalFileSystem):
                info = store.get_file_info(full)
                return info.size if info.type is fs.FileType.File else None
            try:
                with store.open_input_file(full) as file:
                    return int(file.size())
            except (FileNotFoundError, IsADirectoryError):
                return None

    def has(self, path: str = "") -> bool:
        """Return whether a file exists."""
        return self.size(path) is not None

    def read(self, path: str = "") -> bytes:
        """Return the content of a small file."""
        with self._refusing("to read", path):
            store, full = self.file_system(path)
            with store.open_input_stream(full) as stream:
                content: bytes = stream.read()
            return content

    def find(self, path: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        return _unless_missing(self.read, path)

    def parquet(self, path: str = "") -> pa.Table:
        """Return the rows of a whole Parquet file."""
        with self._refusing("to read", path):
            return pq.ParquetFile(self.open(path)).read()

    def parquet_rows(self, path: str = "") -> int | None:
        """Return the number of rows that the footer of a Parquet file has; None if the file is no Parquet file. Reads both ends of it."""
        with self._refusing("to read", path), self.open(path) as file:
            size = file.size()
            begin, end = file.read_at(len(_MAGIC), 0), file.read_at(min(_FOOTER, size), max(0, size - _FOOTER))
            length = int.from_bytes(end[-8:-4], "little") + 8
            if begin != _MAGIC or length + len(_MAGIC) > size:  # a damaged length must not be read
                return None
            footer = end if length <= len(end) else file.read_at(length, size - length)
        try:
            return int(pq.read_metadata(pa.BufferReader(_MAGIC + footer[-length:])).num_rows)
        except (pa.ArrowException, OSError):  # no storage is asked any more: the bytes are wrong
            return None

    def has_whole_rows(self, path: str = "") -> bool:
        """Return whether each row of a Parquet file can be read; where its writer has stored checksums of pages, they must fit.

        Holds one row group in memory at a time.
        """
        try:
            with self.open(path) as source:
                file = pq.ParquetFile(source, page_checksum_verification=True)
                for number in range(file.num_row_groups):
                    file.read_row_group(number)
        except (pa.ArrowException, OSError):
            self._read_through(path)
            return False
        return True

    def _read_through(self, path: str) -> None:
        """Read all bytes of a file. Raises `StorageError` if the storage refuses, and not the content."""
        with self._refusing("to read", path), self.open(path) as file:
            while file.read(_PART):
                pass

    def find_parquet(self, path: str) -> pa.Table | None:
        """Return the rows of a whole Parquet file; None if there is none."""
        return _unless_missing(self.parquet, path)

    def write(self, path: str, content: bytes) -> None:
        """Write a small file and its folder, replacing an existing file. A concurrent reader may see it half written."""
        store, full = self.file_system(path)
        with self.writing(path), store.open_output_stream(full) as stream:
            stream.write(content)

    @contextmanager
    def writing(self, path: str = "") -> Iterator[None]:
        """Let the block write a file by `file_system`: its folder is there, and an `OSError` becomes a `StorageError`."""
        store, full = self.file_system(path)
        try:
            if isinstance(store, fs.LocalFileSystem):  # an object store has no folders
                Path(full).parent.mkdir(parents=True, exist_ok=True)
            yield
        except OSError:
            with self._refusing("to write", path):
                raise

    def stage(self, name: str, table: pa.Table, *, layout: ParquetLayout = SMALL, survives: bool = True) -> StagedFile:
        """Write `table` as a file. The name must be unique to the attempt.

        The file survives a power failure, except with `survives=False`, for files that are read only before the next commit.

        Raises `StorageError` when the file system refuses (full, read-only, gone). A half-written file is removed if possible; if
        not, it does no harm, since no commit names it.
        """

        def write(store: fs.FileSystem, path: str) -> int:
            layout.write(table, path, store)
            return int(store.get_file_info(path).size)

        size = self.put(name, write, survives=survives)
        minimum, maximum = _range(table)
        return StagedFile(name, table.num_rows, size, minimum, maximum)

    def put(self, name: str, write: Callable[[fs.FileSystem, str], Content], *, survives: bool) -> Content:
        """Let `write` write a file, as `stage` does; return what it returns."""
        store, path = self.file_system(name)
        try:
            if self.is_on_local_disk:
                make_folder(str(Path(path).parent))
            content = write(store, path)
            if survives:
                self.sync([name])
        except OSError as error:
            _remove(store, path)
            msg = f"could not write {path}: {error}. Nothing was committed; {storage_advice(error)}."
            raise StorageError(msg) from error
        return content

    def sync(self, paths: Iterable[str]) -> None:
        """Make files survive a power failure: their content, and their names in their folders.

        Raises `OSError` when a file is gone or the disk refuses.
        """
        scheme_of(self.uri).sync(self.uri, paths)

    def files(self, folder: str = "") -> set[str]:
        """Return the paths of all files in a folder and below, relative to it; none if the folder does not exist.

        A file whose name is not UTF-8 does not belong to Headrace, and is left out.
        """
        return {*self.sizes(folder)}

    def sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes of all files in a folder and below, by path relative to it, as `files` lists them."""
        return {path: file.size for path, file in self.listed(folder)}

    def folders(self, folder: str = "") -> set[str]:
        """Return the names of the folders in a folder; none if it does not exist."""
        with self._refusing("to list", folder):
            store, root = self.file_system(folder)
            entries = store.get_file_info(fs.FileSelector(root, allow_not_found=True))
        paths = (path_of(entry) for entry in entries if entry.type is fs.FileType.Directory)
        return {path.rpartition("/")[2] for path in paths if path is not None}

    def usage(self) -> dict[str, Usage]:
        """Return the usage of each file and folder of the place, by name; empty if the place does not exist."""
        usage: dict[str, Usage] = {}
        for path, file in self.listed(""):
            name = path.partition("/")[0]
            usage[name] = usage.get(name, Usage()) + Usage(1, file.size)
        return usage

    def usage_of(self, paths: Iterable[str]) -> Usage:
        """Return what some files take; those that are gone take nothing."""
        sizes = [size for size in self.sizes_of(paths).values() if size is not None]
        return Usage(len(sizes), sum(sizes))

    def sizes_of(self, paths: Iterable[str]) -> dict[str, int | None]:
        """Return the sizes of some files, by path; None for those that are gone."""
        wanted = list(paths)
        with self._refusing("to look for files in"):
            store, root = self.file_system()
            infos = store.get_file_info([f"{root}/{path}" for path in wanted])
        return {path: file.size if file.is_file else None for path, file in zip(wanted, infos, strict=True)}

    def rename(self, path: str, name: str) -> None:
        """Give a file another path, in one step, replacing a file that has it."""
        with self._refusing("to rename", path):
            store, root = self.file_system()
            store.move(f"{root}/{path}", f"{root}/{name}")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files, one after the other; ignore those that another process has deleted."""
        with self._refusing("to delete files in"):
            store, root = self.file_system()
            for path in paths:
                with suppress(FileNotFoundError):
                    store.delete_file(f"{root}/{path}")

    def remove_file(self, path: str) -> None:
        """Remove a file; do nothing if it does not exist."""
        with self._refusing("to remove", path):
            store, full = self.file_system(path)
            if store.get_file_info(full).type is fs.FileType.File:
                store.delete_file(full)

    def remove_folder(self, path: str = "") -> None:
        """Remove a folder with its content; do nothing if it does not exist."""
        with self._refusing("to remove", path):
            store, full = self.file_system(path)
            if store.get_file_info(full).type is fs.FileType.Directory:
                store.delete_dir(full)

    def _refusing(self, verb: str, path: str = "") -> AbstractContextManager[None]:
        return doing(f"{verb} {self.within(path)}")

    def listed(self, folder: str = "", *, recursive: bool = True) -> Iterator[tuple[str, fs.FileInfo]]:
        """Yield the files in a folder, and those below it, by path relative to it; nothing if the folder does not exist."""
        with self._refusing("to list", folder):
            store, root = self.file_system(folder)
            entries = store.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=recursive))
        for entry in entries:
            path = path_of(entry)
            if entry.is_file and path is not None:
                yield path.removeprefix(f"{root}/"), entry


def path_of(file: fs.FileInfo) -> str | None:
    """Return the path of a listed file; None if it is not UTF-8. Local disks allow such names."""
    try:
        path: str = file.path
    except UnicodeDecodeError:
        return None
    return path


def _unless_missing(read: Callable[[str], Content], path: str) -> Content | None:
    try:
        return read(path)
    except StorageError as error:
        if error.is_missing:
            return None
        raise


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
