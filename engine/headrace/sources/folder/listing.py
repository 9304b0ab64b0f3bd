"""Listing of a source's folder, and digests of the content of files.

Listing of a source's folder: its input files with their intervals, and what is passed over. Needs no pipeline.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Final

from pyarrow import fs

from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.names import counted
from headrace.sources.folder.formats import facts_of, format_of, stem_of
from headrace.sources.interval import Interval
from headrace.sources.source import SourceFile
from headrace.storage.files import path_of
from headrace.storage.storage import Storage

_HIDDEN: Final = (".", "_")
_UNFINISHED: Final = ".tmp"


@dataclass(frozen=True, slots=True)
class FolderContent:
    """Content of a folder: input files in order, and names of what is passed over, a `/` behind those of folders.

    Names that begin with `.` or `_`, that end in `.tmp`, or that the source's `ignore` matches are in neither.
    """

    files: tuple[SourceFile, ...]
    passed_over: tuple[str, ...]


class FolderListing:
    """Lister of the folder of a source with this `name` and `config`."""

    def __init__(self, name: str, config: SourceConfig, storage: Storage) -> None:
        self._name = name
        self._config = config
        self._store, self._folder = storage.at(config.path).file_system()
        self.suffixes: Sequence[str] = format_of(config.files).suffixes
        """Endings of the files that the source reads."""
        self._facts = facts_of(config.files)

    def content(self) -> FolderContent:
        """List the folder. Raises `SourceError` where it is missing or cannot be listed, and for a name that is not UTF-8."""
        listed = self._listed()
        names = [(path.rpartition("/")[2], info) for info in listed if (path := path_of(info)) is not None]
        if len(names) < len(listed):
            self._check_names()
        shown = [(name, info) for name, info in names if not self._is_ignored(name)]
        files = [
            SourceFile(
                name,
                f"{self._config.path}/{name}",
                info.mtime_ns or 0,
                self._config.format,
                self._facts,
                info.size or 0,
            )
            for name, info in shown
            if self._is_input(name, info)
        ]
        passed_over = [_shown_name(name, info) for name, info in shown if not self._is_input(name, info)]
        return FolderContent(tuple(sorted(files)), tuple(sorted([*passed_over, *self._links_to_nothing()])))

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval in a file's name; None without an `interval` pattern.

        Raises `SourceError` for a name that does not fit the pattern, and for an interval that ends after the year 9999.
        """
        pattern = self._config.pattern
        if pattern is None:
            return None
        try:
            interval = pattern.interval_of(stem_of(name, self.suffixes))
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
        """Return the other names that a file could have had with the same stem: `a.json.gz` and `a.jsonl` for `a.json`."""
        stem = stem_of(name, self.suffixes)
        return [twin for suffix in self.suffixes if (twin := f"{stem}{suffix}") != name]

    def _is_input(self, name: str, info: fs.FileInfo) -> bool:
        return info.type is fs.FileType.File and name.endswith(tuple(self.suffixes))

    def _is_ignored(self, name: str) -> bool:
        is_own = name.startswith(_HIDDEN) or name.endswith(_UNFINISHED)
        return is_own or any(fnmatchcase(name, pattern) for pattern in self._config.ignore)

    def _listed(self) -> list[fs.FileInfo]:
        try:
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
            listed: list[fs.FileInfo] = self._store.get_file_info(fs.FileSelector(self._folder))
        except OSError as error:
            msg = f"source '{self._name}': cannot list {self._config.path}: {error}. Nothing was taken in; repair it, then run again."
            raise SourceError(msg) from error
        return listed

    def _links_to_nothing(self) -> list[str]:
        """Return the names of links whose target is missing. Arrow leaves them out."""
        if not isinstance(self._store, fs.LocalFileSystem):
            return []
        try:
            with os.scandir(self._folder) as entries:
                links = [entry.name for entry in entries if entry.is_symlink() and not Path(entry.path).exists()]
        except OSError:  # the folder has gone since it was listed: whoever reads the files reports that
            return []
        return [name for name in links if _is_utf8(os.fsencode(name)) and not self._is_ignored(name)]

    def _check_names(self) -> None:
        """Refuse a file whose name is not UTF-8: no checkpoint could record it. Local disks allow such names."""
        wrong = sorted(name for file in Path(self._folder).iterdir() if not _is_utf8(name := os.fsencode(file.name)))
        texts = [name.decode(errors="backslashreplace") for name in wrong]
        shown = [text for text in texts if text.endswith(tuple(self.suffixes)) and not self._is_ignored(text)]
        if shown:
            msg = (
                f"source '{self._name}': the name of {self._config.path}/{shown[0]} is not UTF-8 ({counted(len(shown), 'such file')}), so "
                "no checkpoint could record that it was read. Nothing was taken in. Rename it, or move it away, then run again."
            )
            raise SourceError(msg)


def stamp(file: SourceFile) -> str:
    """Return the short digest by which checkpoints remember what a file was like: another one once it is written again."""
    return blake2b(f"{file.size} {file.modified}".encode(), digest_size=8).hexdigest()


def _shown_name(name: str, info: fs.FileInfo) -> str:
    return f"{name}/" if info.type is fs.FileType.Directory else name


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


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
