"""Local copies of state (of rocksdb) or caches of it (of delta): folders on a worker's disk, each for one checkpoint.

    <local>/<operator>/<first>-<last>/<checkpoint>-<format>-<copy id>/

A task never writes into the copy of a committed checkpoint. It works on an attempt copy whose table files are hard
links, so making one costs a few system calls, whatever the size of the state. The next checkpoint names the attempt
copy that becomes the base of the next micro-batch. A copy that is missing, has another format or belongs to another
attempt is ignored: the state is rebuilt. It is also rebuilt when a file is missing or truncated, which RocksDB may not
notice: half a MANIFEST opens without an error, and lacks the latest tables. Each copy therefore lists its files and
their sizes.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from headrace.state.key_groups import KeyGroupRange

_FORMAT = "f2-"
"""Must change with the format of entries or their values, also in caches."""

_COMPLETE = "COMPLETE"
_NOT_OF_THE_DATABASE = frozenset({_COMPLETE, "LOCK"})
_IMMUTABLE = ".sst"


@dataclass(frozen=True, slots=True)
class LocalCopies:
    """Copies of one operator and key-group range on this machine."""

    folder: Path

    @classmethod
    def of(cls, local: Path, operator: str, key_groups: KeyGroupRange, suffix: str = "") -> LocalCopies:
        """Return the copies below the job's local folder; `suffix` separates copies of different kinds."""
        return cls(local / operator / f"{key_groups}{suffix}")

    def path(self, copy: str) -> Path:
        """Return the folder of a copy, whether it exists or not."""
        return self.folder / copy

    def is_complete(self, copy: str | None) -> bool:
        """Return whether a copy exists, was finished by its task, and has all of its files in full length."""
        if copy is None or not copy.partition("-")[2].startswith(_FORMAT):
            return False
        try:
            listed = msgspec.json.decode((self.path(copy) / _COMPLETE).read_bytes(), type=dict[str, int])
        except (OSError, msgspec.DecodeError):
            return False
        return listed == self._sizes(copy)

    def link(self, base: str, attempt: str) -> Path:
        """Make an attempt copy of `base`: hard links of table files, copies of the small other files."""
        target = self.path(attempt)
        target.mkdir(parents=True)
        for file in self.path(base).iterdir():
            if file.name in _NOT_OF_THE_DATABASE:
                continue
            if file.suffix == _IMMUTABLE:
                os.link(file, target / file.name)
            else:
                shutil.copy2(file, target / file.name)
        return target

    def fresh(self, attempt: str) -> Path:
        """Make an empty attempt copy."""
        target = self.path(attempt)
        target.mkdir(parents=True)
        return target

    def complete(self, attempt: str) -> None:
        """Mark an attempt copy as finished; its database must be closed."""
        (self.path(attempt) / _COMPLETE).write_bytes(msgspec.json.encode(self._sizes(attempt)))

    def discard(self, attempt: str) -> None:
        """Remove a copy that will never be used."""
        shutil.rmtree(self.path(attempt), ignore_errors=True)

    def discard_before(self, checkpoint_id: int) -> None:
        """Remove the copies of checkpoints before `checkpoint_id`: no task starts from them again."""
        if not self.folder.exists():
            return
        for path in self.folder.iterdir():
            head = path.name.partition("-")[0]
            if head.isdigit() and int(head) < checkpoint_id:
                shutil.rmtree(path, ignore_errors=True)

    def _sizes(self, copy: str) -> dict[str, int]:
        with os.scandir(self.path(copy)) as files:
            return {file.name: file.stat().st_size for file in files if file.name not in _NOT_OF_THE_DATABASE}


def copy_name(checkpoint_id: int, copy_id: str) -> str:
    """Return the folder name of a copy."""
    return f"{checkpoint_id}-{_FORMAT}{copy_id}"
