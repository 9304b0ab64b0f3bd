"""Listing of a source's folder, and digests of the content of files.

Listing of a source's folder and its subfolders: its input files with their intervals, and what is passed over. Names are paths from the
source's folder. Needs no pipeline.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from stat import S_ISREG
from typing import Final, NamedTuple

from pyarrow import fs

from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.names import counted
from headrace.sources.folder.formats import facts_of, format_of, stem_of
from headrace.sources.interval import Interval
from headrace.sources.source import SourceFile
from headrace.storage.files import path_of
from headrace.storage.storage import Storage

_LOG: Final = "_delta_log"
_UNFINISHED: Final = (".tmp", "._COPYING_", "_$folder$")
"""Endings of what is being written, and of what Hadoop writes for a folder."""


@dataclass(frozen=True, slots=True)
class FolderContent:
    """Content of a folder and its subfolders: input files in order, and names of what is passed over.

    `passed_over` has files with other endings, and links that lead to nothing or to what is read anyway. `unmatched` has the files that the
    source's own pattern leaves out. Names with a part that begins with `.` or `_`, that end in `.tmp`, or that the source's `ignore` matches
    are in none of them.
    """

    files: tuple[SourceFile, ...]
    passed_over: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    """Folders of files that are Delta tables: the table's log says which of its files count, and a listing does not."""


class FolderListing:
    """Lister of the folder of a source with this `name` and `config`."""

    def __init__(self, name: str, config: SourceConfig, storage: Storage) -> None:
        self._name = name
        self._config = config
        self._store, self._folder = storage.at(config.path).file_system()
        self.suffixes: Sequence[str] = format_of(config.file_options).suffixes
        """Endings of the files that the source reads, in lower case."""
        self._endings = tuple(self.suffixes)
        self._pattern = config.path_pattern
        self._facts = facts_of(config.file_options)
        self._ignored: dict[str, bool] = {"": False}
        self._intervals: dict[str, Interval | None] = {}
        self._logs: set[str] = set()

    def content(self) -> FolderContent:
        """List the folder. Raises `SourceError` where it is missing or cannot be listed, and for a name that is not UTF-8."""
        files: list[SourceFile] = []
        others: list[str] = []
        for entry in self._entries():
            if entry.is_file and self.is_input(entry.name):
                path = f"{self._config.path}/{entry.name}"
                files.append(SourceFile(entry.name, path, entry.modified, self._config.format, self._facts, entry.size))
            else:
                others.append(entry.name)
        names, tables = tuple(sorted(others)), tuple(self._tables_of(files))
        passed_over, unmatched = (names, ()) if self._pattern is None else ((), names)
        return FolderContent(tuple(sorted(files)), passed_over, unmatched, tables)

    def _tables_of(self, files: Iterable[SourceFile]) -> list[str]:
        folders = {"", *(above for file in files for above in _folders_above(file.name))}
        return sorted(folder for folder in self._logs if folder in folders)

    def is_input(self, name: str) -> bool:
        """Return whether the source reads a file of this name, unless it is ignored."""
        if self._pattern is not None:
            return self._pattern.fullmatch(name) is not None
        return name.lower().endswith(self._endings)

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval in a file's name; None without an `interval` pattern.

        Raises `SourceError` for a name that does not fit the pattern, and for an interval that ends after the year 9999.
        """
        if name not in self._intervals:
            self._intervals[name] = self._interval_of(name)
        return self._intervals[name]

    def _interval_of(self, name: str) -> Interval | None:
        pattern = self._config.pattern
        if pattern is None:
            return None
        place = name if pattern.is_of_paths else name.rpartition("/")[2]
        texts = dict.fromkeys((stem_of(place, self.suffixes), place))
        try:
            interval = next(filter(None, map(pattern.interval_of, texts)), None)
        except OverflowError as error:
            msg = (
                f"the interval of file '{name}' of source '{self._name}' ends behind the year 9999, the last one that can be stored. "
                "Nothing was taken in. Rename the file, or move it away, then run again."
            )
            raise SourceError(msg) from error
        if interval is None:
            msg = f"file '{name}' of source '{self._name}' does not fit the interval pattern '{pattern.text}' in {pattern.zone}: no timestamp has this name"
            raise SourceError(msg)
        return Interval(*interval)

    def twins_of(self, name: str) -> list[str]:
        """Return the other names that a file could have had with the same stem: `a.json.gz` and `a.jsonl` for `a.json`.

        A file that a pattern names may have any ending, so its twins have the same name, packed or not: `app.log.1.gz` for `app.log.1`.
        """
        stem, endings = stem_of(name, self.suffixes), self.suffixes
        if stem == name:
            packed = _packed(self.suffixes)
            stem, endings = stem_of(name, packed), ("", *packed)
        return [twin for suffix in endings if (twin := f"{stem}{suffix}") != name]

    # -------------------------------------------------------------------------------------------------- what is there

    def ignores(self, name: str) -> bool:
        """Return whether a file is ignored, or a folder that it is in."""
        folder, _, own = name.rpartition("/")
        return self.ignores_folder(folder) or own.startswith("_") or self._is_passed_by(name, own)

    def ignores_folder(self, folder: str) -> bool:
        """Return whether a folder is ignored, or one that it is in. As in Spark, `_day=2026-03-02` is none of the hidden folders."""
        if folder not in self._ignored:
            above, _, own = folder.rpartition("/")
            is_hidden = own.startswith("_") and "=" not in own
            self._ignored[folder] = self.ignores_folder(above) or is_hidden or self._is_passed_by(folder, own)
        return self._ignored[folder]

    def _is_passed_by(self, name: str, own: str) -> bool:
        if own.startswith(".") or own.endswith(_UNFINISHED):
            return True
        return any(fnmatchcase(text, pattern) for pattern in self._config.ignore for text in (name, own))

    def _entries(self) -> list[Entry]:
        """Return the files that are not ignored, and links that are passed over, in no order."""
        try:
            self._check_folder()
            if isinstance(self._store, fs.LocalFileSystem):
                entries = _DiskWalk(self._folder, self).entries()
            else:
                selector = fs.FileSelector(self._folder, recursive=True)
                entries = list(_stored(self._folder, self._store.get_file_info(selector)))
        except OSError as error:
            msg = f"source '{self._name}': cannot list {self._config.path}: {error}. Nothing was taken in; repair it, then run again."
            raise SourceError(msg) from error
        logs = (f"/{entry.name}/".partition(f"/{_LOG}/") for entry in entries if _LOG in entry.name)
        self._logs = {folder.strip("/") for folder, log, _ in logs if log}
        shown = [entry for entry in entries if not self.ignores(entry.name)]
        if all(_is_utf8(entry.name) for entry in shown):
            return shown
        self._check_names([entry.name for entry in shown])
        return [entry for entry in shown if _is_utf8(entry.name)]

    def _check_folder(self) -> None:
        kind = self._store.get_file_info(self._folder).type
        if kind is fs.FileType.File:
            msg = (
                f"source '{self._name}': {self._config.path} is a file, and a source reads all files of a folder. Nothing was taken in. "
                f"Name its folder in 'sources.{self._name}.path', then run again."
            )
            raise SourceError(msg)
        if kind is not fs.FileType.Directory:
            msg = (
                f"source '{self._name}': there is no folder {self._config.path}. Nothing was taken in. Bring it back (is its disk "
                f"mounted?), make it if it never had a file, or correct 'sources.{self._name}.path', then run again."
            )
            raise SourceError(msg)

    def _check_names(self, names: Iterable[str]) -> None:
        """Refuse a file whose name is not UTF-8: no checkpoint could record it. Local disks allow such names."""
        wrong = sorted(name for name in names if not _is_utf8(name) and self.is_input(name))
        if wrong:
            text = os.fsencode(wrong[0]).decode(errors="backslashreplace")
            msg = (
                f"source '{self._name}': the name of {self._config.path}/{text} is not UTF-8 ({counted(len(wrong), 'such file')}), so "
                "no checkpoint could record that it was read. Nothing was taken in. Rename it, or move it away, then run again."
            )
            raise SourceError(msg)


class Entry(NamedTuple):
    """File in a source's folder, by its path from there; a link that leads nowhere, or to what is read anyway, is no file."""

    name: str
    modified: int = 0
    size: int = 0
    is_file: bool = False


def _stored(root: str, listed: Iterable[fs.FileInfo]) -> Iterator[Entry]:
    """Yield the files of a listing of an object store."""
    for info in listed:
        path = path_of(info)
        if path is not None and info.type is not fs.FileType.Directory:
            name = path.removeprefix(f"{root.rstrip('/')}/")
            yield Entry(name, info.mtime_ns or 0, info.size or 0, info.type is fs.FileType.File)


class _DiskWalk:
    """Walk over a folder of a disk of this machine.

    A link is read under its own name if what it leads to has no other name in the folder. So links make no circle, and no row counts twice:
    a link `latest` to one of the folders is passed over, and so is a link to a folder above.
    """

    def __init__(self, root: str, listing: FolderListing) -> None:
        self._root, self._listing = root, listing
        self._entries: list[Entry] = []
        self._links: list[str] = []
        self._names: dict[str, str] = {}
        """Folders that were read, by their real paths; and files that links lead to."""

    def entries(self) -> list[Entry]:
        """Return the files, and the links that are passed over."""
        self._read("")
        while self._links:
            links, self._links = sorted(self._links), []
            for name in links:
                self._follow(name)
        return self._entries

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}" if name else self._root

    def _read(self, folder: str) -> None:
        waiting = [folder]
        while waiting:
            name = waiting.pop()
            self._names[os.path.realpath(self._path(name))] = name
            try:
                with os.scandir(self._path(name)) as entries:
                    for entry in entries:
                        self._take(f"{name}/{entry.name}" if name else entry.name, entry, waiting)
            except FileNotFoundError:
                if not name:
                    raise  # else somebody has removed the folder just now

    def _take(self, name: str, entry: os.DirEntry[str], waiting: list[str]) -> None:
        if entry.is_symlink():
            self._links.append(name)
        elif entry.is_dir():
            if not self._listing.ignores_folder(name):
                waiting.append(name)
            elif entry.name == _LOG:
                self._entries.append(Entry(name))
        else:
            self._add(name, entry.stat)

    def _add(self, name: str, status_of: Callable[[], os.stat_result]) -> None:
        try:
            status = status_of()
        except FileNotFoundError:  # somebody has removed it just now
            return
        self._entries.append(Entry(name, status.st_mtime_ns, status.st_size, S_ISREG(status.st_mode)))

    def _follow(self, name: str) -> None:
        """Read what a link leads to, or pass it over."""
        real = os.path.realpath(self._path(name))
        if self._listing.ignores(name):
            return
        if not Path(real).exists() or self._is_read(real):
            self._entries.append(Entry(name))
        elif Path(real).is_dir():
            self._read(name)
        else:
            self._names[real] = name
            self._add(name, Path(real).stat)

    def _is_read(self, real: str) -> bool:
        """Return whether a real path is read under another name, or has a folder in it that is."""
        above, _, own = real.rpartition("/")
        if real in self._names or any(folder.startswith(f"{real.rstrip('/')}/") for folder in self._names):
            return True
        if above not in self._names:
            return False
        name = f"{self._names[above]}/{own}".removeprefix("/")
        return self._listing.is_input(name) and not self._listing.ignores(name)


def stamp(file: SourceFile) -> str:
    """Return the short digest by which checkpoints remember what a file was like: another one once it is written again."""
    return blake2b(f"{file.size} {file.modified}".encode(), digest_size=8).hexdigest()


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:  # Python shows other bytes of a name as half characters
        return False
    return True


def _folders_above(name: str) -> Iterator[str]:
    """Yield the folders that a file is in."""
    parts = name.split("/")[:-1]
    yield from itertools.accumulate(parts, "{}/{}".format)


def _packed(suffixes: Iterable[str]) -> list[str]:
    """Return what endings of packed files have behind those of plain ones, such as `.gz`."""
    pairs = itertools.permutations(suffixes, 2)
    return [*dict.fromkeys(long.removeprefix(short) for short, long in pairs if long.startswith(f"{short}."))]


UNKNOWN: Final = ""
"""Digest of content that nobody has read, or that cannot be read."""

_CHUNK: Final = 1 << 20
_READERS: Final = 8


def content_digest(file: Storage) -> str:
    """Return the digest of a file's content; UNKNOWN if it cannot be read. Reads the whole file, at about 1 GB/s from a local disk."""
    store, path = file.file_system()
    digest = blake2b(digest_size=8)
    try:
        with store.open_input_stream(path) as content:
            while chunk := content.read(_CHUNK):
                digest.update(chunk)
    except OSError:
        return UNKNOWN
    return digest.hexdigest()


def content_digests(files: Sequence[Storage]) -> list[str]:
    """Return the digests of several files. Reads several at once: hashing lets other threads run."""
    if len(files) < 2:  # noqa: PLR2004 - one file needs no second thread
        return [content_digest(file) for file in files]
    with ThreadPoolExecutor(_READERS) as readers:
        return list(readers.map(content_digest, files))
