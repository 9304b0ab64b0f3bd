"""Disks in memory, for tests and simulations: `memory://NAME/path` is a path on the disk NAME in this process.

Every reader sees a file at once. A power failure loses everything that was not synced, as on a real disk. A disk calls its
`fault` before each step; `fault` may raise an `OSError`, read a clock, or write to the disk itself.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count, takewhile
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from headrace import clock
from headrace.storage.schemes import Options

SCHEME = "memory"


class MemoryFile:
    """Content of a file, and the time at which it was written (ms)."""

    __slots__ = ("_rows", "content", "written_at")

    def __init__(self, content: bytes) -> None:
        """Keep the content, and the clock's time."""
        self.content = content
        self.written_at = clock.now()
        self._rows: pa.Table | None = None

    def rows(self) -> pa.Table:
        """Return the rows of a Parquet file. They are decoded once, since content never changes."""
        if self._rows is None:
            self._rows = pq.ParquetFile(pa.BufferReader(self.content)).read(use_threads=False)
        return self._rows


class PostponedError(OSError):
    """Fault of a commit: its writer gets this error, and the commit lands later, if its version is still free then."""


def _no_fault(step: str, path: str) -> None:
    """Let every step pass."""
    del step, path


@dataclass(slots=True)
class MemoryDisk:
    """Files by path, and versions of tables by the path of their folder."""

    files: dict[str, MemoryFile] = field(default_factory=dict)
    tables: dict[str, list[Any]] = field(default_factory=dict)
    """Only `MemoryStore` writes these."""

    fault: Callable[[str, str], None] = _no_fault
    """Called before each step with its name (`open`, `write`, `list`, `delete`, `commit`, `sync`) and path. The step raises its error."""

    acknowledge: Callable[[str, str], None] = _no_fault
    """Called after each commit like `fault` before it. If it raises, the writer gets the error, although the commit succeeded."""

    postponed: list[Callable[[], None]] = field(default_factory=list)
    """Commits for which `fault` raised `PostponedError` and that have not landed yet. A call of one lands it."""

    _synced_files: dict[str, MemoryFile] = field(default_factory=dict)
    _synced_versions: dict[str, dict[int, Any]] = field(default_factory=dict)

    def sync(self) -> None:
        """Make all writes and deletions so far survive a power failure."""
        self._synced_files = dict(self.files)
        self._synced_versions = {path: dict(enumerate(versions)) for path, versions in self.tables.items()}

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make files survive a power failure. Raises `FileNotFoundError` when one is gone."""
        for path in paths:
            self.fault("sync", path)
            if path not in self.files:
                raise FileNotFoundError(path)
            self._synced_files[path] = self.files[path]

    def sync_versions(self, path: str, versions: Iterable[int]) -> None:
        """Make only the commits of these versions of a table survive a power failure. A table that was here before does not come back."""
        self.fault("sync", path)
        if path not in self.tables:
            raise FileNotFoundError(path)
        present = self.tables[path]
        before = self._synced_versions.get(path, {})
        if 0 in before and present[0] is not None and present[0] is not before[0]:
            before = {}
        self._synced_versions[path] = {**before, **{version: present[version] for version in versions}}

    def lose_power(self) -> None:
        """Lose everything that was not synced. A table ends before its first lost commit; deleted files come back."""
        self.files.clear()
        self.files.update(self._synced_files)
        self.tables.clear()
        for path, synced in self._synced_versions.items():
            numbers = takewhile(synced.__contains__, count())
            if versions := [synced[number] for number in numbers]:
                self.tables[path] = versions
        self._synced_versions = {path: dict(enumerate(versions)) for path, versions in self.tables.items()}

    def forget_version(self, path: str) -> bool:
        """Remove a version of a table if `path` is its commit; return whether it existed."""
        table, log, name = path.rpartition("/_delta_log/")
        versions, number = self.tables.get(table, []), name.partition(".")[0]
        if not log or not number.isdecimal() or int(number) >= len(versions) or versions[int(number)] is None:
            return False
        versions[int(number)] = None
        return True

    def opened(self, path: str) -> MemoryFile:
        """Open a file. Raises `FileNotFoundError` when it is gone."""
        self.fault("open", path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    @contextmanager
    def failing(self, fault: Callable[[str, str], None]) -> Iterator[None]:
        """Install a fault for the duration of a `with` block."""
        before, self.fault = self.fault, fault
        try:
            yield
        finally:
            self.fault = before


_DISKS: dict[str, MemoryDisk] = {}


def memory_disk(name: str) -> MemoryDisk:
    """Return the disk with a name in this process; make an empty one at the first call."""
    return _DISKS.setdefault(name, MemoryDisk())


def forget_disk(name: str) -> None:
    """Remove a disk with its content."""
    _DISKS.pop(name, None)


def disk_and_path(uri: str) -> tuple[MemoryDisk, str]:
    """Return the disk of a URI, and the path on it."""
    name, _, path = uri.removeprefix(f"{SCHEME}://").partition("/")
    return memory_disk(name), path


class DiskCopy:
    """Content below a place on a disk at one moment, to restore it later."""

    def __init__(self, uri: str) -> None:
        """Copy everything below the place `memory://NAME` or `memory://NAME/PATH`, and make it survive a power failure."""
        self._uri = uri
        disk, path = disk_and_path(uri)
        disk.sync()
        self._files = {name: file for name, file in disk.files.items() if _is_below(name, path)}
        self._tables = {name: list(versions) for name, versions in disk.tables.items() if _is_below(name, path)}

    def bring_back(self, uri: str | None = None) -> None:
        """Restore the content at its place, or at another one instead."""
        _, copied = disk_and_path(self._uri)
        disk, path = disk_and_path(uri or self._uri)
        kinds: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
            (disk.files, self._files),
            (disk.tables, {name: list(versions) for name, versions in self._tables.items()}),
        )
        for present, content in kinds:
            for name in [name for name in present if _is_below(name, path)]:
                del present[name]
            present.update({path + name.removeprefix(copied): value for name, value in content.items()})
        disk.sync()


def _is_below(name: str, path: str) -> bool:
    return not path or f"{name}/".startswith(f"{path}/")


def memory_file_system(uri: str, options: Options = None) -> tuple[fs.FileSystem, str]:
    """Return a disk as a file system of Arrow, and the path of a URI on it."""
    del options
    disk, path = disk_and_path(uri)
    return fs.PyFileSystem(_Handler(disk)), path


def sync_on_disk(folder: str, names: Iterable[str]) -> None:
    """Make files below a folder survive a power failure."""
    disk, root = disk_and_path(folder)
    disk.sync_files([f"{root}/{name}" for name in names])


class _Handler(fs.FileSystemHandler):  # type: ignore[misc]  # pyarrow has no types for it
    """File system for Arrow. A folder exists if a file is in it, as on an object store."""

    def __init__(self, disk: MemoryDisk) -> None:
        self._disk = disk

    def get_type_name(self) -> str:
        return "memory"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: list[str]) -> list[fs.FileInfo]:
        return [self._info(path) for path in paths]

    def get_file_info_selector(self, selector: fs.FileSelector) -> list[fs.FileInfo]:
        self._disk.fault("list", selector.base_dir)
        folder = f"{selector.base_dir}/"
        below = [path for path in list(self._disk.files) if path.startswith(folder)]
        if not below and not selector.allow_not_found:
            raise FileNotFoundError(selector.base_dir)
        if selector.recursive:
            return [self._info(path) for path in below]
        below += [path for path in list(self._disk.tables) if path.startswith(folder)]
        return [self._info(path) for path in {folder + path.removeprefix(folder).partition("/")[0] for path in below}]

    def open_input_file(self, path: str) -> pa.NativeFile:
        return pa.BufferReader(self._disk.opened(path).content)

    def open_input_stream(self, path: str) -> pa.NativeFile:
        return self.open_input_file(path)

    def open_output_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        del metadata
        self._disk.fault("write", path)
        return pa.PythonFile(_Writer(self._disk, path), mode="w")

    def delete_file(self, path: str) -> None:
        self._disk.fault("delete", path)
        if self._disk.files.pop(path, None) is None and not self._disk.forget_version(path):
            raise FileNotFoundError(path)

    def delete_dir(self, path: str) -> None:
        self._disk.fault("delete", path)
        below: tuple[dict[str, Any], ...] = (self._disk.files, self._disk.tables)
        for of_disk in below:
            for removed in [known for known in list(of_disk) if f"{known}/".startswith(f"{path}/")]:
                del of_disk[removed]

    def create_dir(self, path: str, recursive: bool) -> None:  # noqa: FBT001 - Arrow's own signature
        """Do nothing: a folder exists if a file is in it."""

    def delete_dir_contents(self, path: str, missing_dir_ok: bool = False) -> None:  # noqa: FBT001, FBT002
        del missing_dir_ok
        self.delete_dir(path)

    def delete_root_dir_contents(self) -> None:
        raise NotImplementedError

    def move(self, src: str, dest: str) -> None:
        self._disk.files[dest] = self._disk.files.pop(src)

    def copy_file(self, src: str, dest: str) -> None:
        self._disk.files[dest] = self._disk.files[src]

    def open_append_stream(self, path: str, metadata: Any) -> pa.NativeFile:
        raise NotImplementedError

    def _info(self, path: str) -> fs.FileInfo:
        file = self._disk.files.get(path)
        if file is not None:
            return fs.FileInfo(path, fs.FileType.File, size=len(file.content), mtime_ns=file.written_at * 1_000_000)
        is_folder = any(f"{other}/".startswith(f"{path}/") for other in [*self._disk.files, *self._disk.tables])
        return fs.FileInfo(path, fs.FileType.Directory if is_folder else fs.FileType.NotFound)


class _Writer(io.BytesIO):
    """File that appears as a whole when it is closed."""

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        super().__init__()
        self._disk, self._path = disk, path

    def close(self) -> None:
        if not self.closed:
            self._disk.files[self._path] = MemoryFile(self.getvalue())
        super().close()
