"""Syncing of files, so that they survive a power failure: a file's content, and its name in its folder.

A file system keeps both in memory for a while, and writes them in any order. So a writer syncs a file before a commit names it,
and syncs each commit before the next one builds on it. Local disks and disks in memory are synced; an object store answers
only when an object will survive.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from headrace.tables.memory_disk import disk_and_path, is_in_memory

_REFUSES_FOLDERS = frozenset({errno.EINVAL, errno.EBADF})

_AT_ONCE = 16
"""Number of files that are synced at the same time: a disk writes many files as quickly as one."""


def sync_files(folder: str, names: Iterable[str]) -> None:
    """Make files survive a power failure: their content, and their names in their folders.

    `names` are paths relative to `folder`. Raises `OSError` when a file is gone or the disk refuses.
    """
    if is_in_memory(folder):
        disk, root = disk_and_path(folder)
        disk.sync_files([f"{root}/{name}" for name in names])
    elif is_on_local_disk(folder):
        files = [Path(folder, name) for name in names]
        _sync_all([*files, *{file.parent for file in files}])


def make_folder(folder: str) -> None:
    """Make a local folder and its parents, so that all of them survive a power failure; do nothing on other storage."""
    if not is_on_local_disk(folder):
        return
    path = Path(folder)
    missing = [ancestor for ancestor in (path, *path.parents) if not ancestor.exists()]
    if missing:
        path.mkdir(parents=True, exist_ok=True)
        _sync_all([ancestor.parent for ancestor in missing])


def is_on_local_disk(uri: str) -> bool:
    """Return whether a URI is a path on a disk of this machine, or on a mounted file system."""
    return "://" not in uri


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


def _sync_all(paths: list[Path]) -> None:
    if len(paths) == 1:
        sync_path(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(len(paths), _AT_ONCE)) as pool:
            list(pool.map(sync_path, paths))
