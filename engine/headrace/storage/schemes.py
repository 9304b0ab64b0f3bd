"""Schemes of URIs: how files of a place are reached and made to survive, by the part of the URI before `://`.

A file system keeps a file's content, and its name in its folder, in memory for a while, and writes them in any order. So a writer
syncs a file before a commit names it, and syncs each commit before the next one builds on it. An object store answers only when an
object will survive.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from pyarrow import fs

from headrace.threads import KEPT

Options = Mapping[str, str] | None
"""Options of an object store, with deltalake's names; None on disks."""

_REFUSES_FOLDERS = frozenset({errno.EINVAL, errno.EBADF})

_AT_ONCE = 16
"""Number of files that are synced at the same time: a disk writes many files as quickly as one."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """What a scheme's places can do."""

    files: Callable[[str, Options], tuple[fs.FileSystem, str]]
    """Opens the file system of a URI; returns it, and the path in it."""

    sync: Callable[[str, Iterable[str]], None]
    """Makes files below a folder survive a power failure. Raises `OSError` when one is gone or the disk refuses."""

    table: Callable[[str], Any] | None = None
    """Opens the table at a URI as a `TableStore`; None: tables are in Delta's format."""


def scheme_of(uri: str) -> Scheme:
    """Return the scheme of a URI; a text without a known scheme is a path of this machine."""
    name, separator, _ = uri.partition("://")
    return _SCHEMES.get(name, _DISK) if separator else _DISK


def register(name: str, scheme: Scheme) -> None:
    """Open URIs that begin with `name://` by this scheme, in this process."""
    _SCHEMES[name] = scheme


def file_system(uri: str, options: Options = None) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or a URI, and the path in it."""
    return scheme_of(uri).files(uri, options)


def is_on_local_disk(uri: str) -> bool:
    """Return whether a URI is a path on a disk of this machine, or on a mounted file system."""
    return "://" not in uri


def logged_path(uri: str) -> str:
    """Return the path that a table's log writes as a URI: relative to the table's folder, or absolute. One on a disk has no scheme."""
    path = unquote(uri)
    return path[path.rindex("/", 0, len("file:///")) :] if _ON_DISK.match(path) else path


def place_of(path: str, folder: str) -> str | None:
    """Return the URI of a file of a table: below its `folder` unless the path is absolute; None if no known scheme reaches it."""
    match = _ABSOLUTE.match(path)
    if match is not None:
        return path if match[1] in _SCHEMES and match[1] != "file" else None
    return path if path.startswith("/") else f"{folder}/{path}"


_ABSOLUTE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")
_ON_DISK: Final = re.compile(r"file:/(//)?[^/]")


def sync_path(path: Path) -> None:
    """Wait until the disk has a file's content, or a folder's list of names.

    Some network file systems refuse to sync a folder, since they always keep its names. Raises `OSError` for any other failure.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _REFUSES_FOLDERS or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: str) -> None:
    """Make a local folder and its parents, so that all of them survive a power failure; do nothing on other storage."""
    if not is_on_local_disk(folder):
        return
    path = Path(folder)
    missing = [ancestor for ancestor in (path, *path.parents) if not ancestor.exists()]
    if missing:
        path.mkdir(parents=True, exist_ok=True)
        _sync_all([ancestor.parent for ancestor in missing])


def _sync_all(paths: list[Path]) -> None:
    """Sync files at the same time; the first one in this thread. When all have ended, raise the error of the first that failed."""
    others = [_syncing().submit(sync_path, path) for path in paths[1:]]
    try:
        for path in paths[:1]:
            sync_path(path)
    finally:
        wait(others)
    for other in others:
        other.result()


@cache
def _syncing() -> ThreadPoolExecutor:
    """Return the threads that sync files. They serve again: a micro-batch syncs twenty times, and new threads took it 8 ms of CPU."""
    return ThreadPoolExecutor(_AT_ONCE, thread_name_prefix=f"{KEPT}sync")


os.register_at_fork(after_in_child=_syncing.cache_clear)  # a forked process has no threads but its first


def _files_on_disk(uri: str, options: Options) -> tuple[fs.FileSystem, str]:
    del options
    return fs.LocalFileSystem(), uri


def _sync_on_disk(folder: str, names: Iterable[str]) -> None:
    if is_on_local_disk(folder):
        files = [Path(folder, name) for name in names]
        _sync_all([*files, *{file.parent for file in files}])


def _files_on_s3(uri: str, options: Options) -> tuple[fs.FileSystem, str]:
    named = {key.upper(): value for key, value in (options or {}).items()}
    store = fs.S3FileSystem(
        access_key=named.get("AWS_ACCESS_KEY_ID"),
        secret_key=named.get("AWS_SECRET_ACCESS_KEY"),
        region=named.get("AWS_REGION", "us-east-1"),
        endpoint_override=named.get("AWS_ENDPOINT_URL"),
        # A small file needs one put, not an upload in parts.
        allow_delayed_open=True,
    )
    return store, uri.partition("://")[2]


def _nothing_to_sync(folder: str, names: Iterable[str]) -> None:
    """Do nothing: the object store has answered when the objects were safe."""
    del folder, names


_DISK = Scheme(_files_on_disk, _sync_on_disk)
_S3 = Scheme(_files_on_s3, _nothing_to_sync)
_SCHEMES = {"file": _DISK, "s3": _S3, "s3a": _S3}
