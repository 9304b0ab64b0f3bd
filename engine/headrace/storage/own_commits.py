"""Commits that Headrace writes itself, to tables that deltalake cannot commit to: transactions, claims, and restores.

They add no rows: those come from Spark. So of all features of a table, only the times of commits concern them (Delta protocol,
"Delta Log Entries", "In-Commit Timestamps", "Add File and Remove File").
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from headrace import clock
from headrace.storage.damage import actions_of
from headrace.storage.deletion_vectors import DeletionVector
from headrace.storage.delta_commits import commit_metadata
from headrace.storage.delta_log import DeltaLog
from headrace.storage.files import Files
from headrace.storage.log_checkpoints import Action, last_log_checkpoint
from headrace.storage.refusals import StoreError, TableRefusedError
from headrace.storage.schemes import make_folder, sync_path
from headrace.storage.table import LOG, CommitInfo, VersionTakenError, commit_file

_APPEND_ONLY: Final = "delta.appendOnly"
_IN_COMMIT_TIMES: Final = "delta.enableInCommitTimestamps"
_KEPT: Final = ("path", "partitionValues", "size", "deletionVector", "baseRowId", "defaultRowCommitVersion")
"""Parts of an added file that the action which removes it repeats."""
_TEXTS: Final = ("partitionValues", "tags")
"""Parts of a file that have texts by name, and null is one of them."""
_OF_READERS: Final = ("stats_parsed", "partitionValues_parsed")
"""Parts of an added file that only log checkpoints have."""


@dataclass(frozen=True, slots=True)
class OwnCommits:
    """Commits to the table in `table`, which is on a disk: an object store has no way to add a file only if it is not there."""

    table: Files

    def record(self, parent: int, info: CommitInfo) -> int:
        """Commit transactions alone; return the new version. Raises `VersionTakenError`."""
        return self._commit(parent, {"operation": "WRITE", "operationParameters": {"mode": "Append"}}, (), info)

    def empty(self, parent: int, info: CommitInfo) -> int:
        """Remove all rows; return the new version. Raises `VersionTakenError`, and `TableRefusedError` where rows only come."""
        if self._has(parent, _APPEND_ONLY):
            msg = f"{self.table.uri} is append-only ({_APPEND_ONLY})"
            raise TableRefusedError(msg)
        removed = map(_removal, self._state(parent).files.values())
        return self._commit(parent, {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}, removed, info)

    def restore(self, parent: int, target: int, info: CommitInfo) -> int:
        """Make the content of an earlier version the latest; return the new version.

        Raises `StoreError` when a file of the target is gone, or the log no longer lists them, and `VersionTakenError`.
        """
        now, then = self._state(parent), self._state(target)
        returned = [file for identity, file in then.files.items() if identity not in now.files]
        if lost := sorted(self._lost(returned)):
            msg = f"file {lost[0]} of version {target} of {self.table.uri} is gone: it cannot be restored"
            raise StoreError(msg)
        if any("baseRowId" in file for file in now.files.values()) and not all(
            "baseRowId" in file for file in returned
        ):
            msg = f"{self.table.uri} tracks its rows, and files of version {target} are older than that"
            raise TableRefusedError(msg)
        metadata = [] if then.metadata == now.metadata else [{"metaData": then.metadata}]
        removed = (_removal(file) for identity, file in now.files.items() if identity not in then.files)
        added = ({"add": {**file, "dataChange": True}} for file in returned)
        done = {"operation": "RESTORE", "operationParameters": {"version": target, "timestamp": None}}
        return self._commit(parent, done, [*metadata, *removed, *added], info)

    def _lost(self, files: Iterable[Action]) -> Iterator[str]:
        """Yield the paths of data files, and of files with their deletion vectors, that are gone."""
        paths = []
        for file in files:
            paths.append(unquote(file["path"]))
            if (vector := file.get("deletionVector")) is not None:
                paths += DeletionVector.of(vector).files
        yield from (path for path, size in self.table.sizes_of(paths).items() if size is None)

    def _commit(self, parent: int, done: Action, actions: Iterable[Action], info: CommitInfo) -> int:
        now = clock.now()
        at = {"inCommitTimestamp": self._time_after(parent, now)} if self._has(parent, _IN_COMMIT_TIMES) else {}
        described: Action = {
            "commitInfo": {**at, "timestamp": now, **done, "engineInfo": "headrace", **commit_metadata(info)}
        }
        transactions = [{"txn": {"appId": app_id, "version": number}} for app_id, number in info.transactions]
        lines = [msgspec.json.encode(action) for action in (described, *transactions, *actions)]
        self._add(parent + 1, b"\n".join(lines) + b"\n")
        return parent + 1

    def _has(self, version: int, property_: str) -> bool:
        """Return whether a property of the table is true at a version. Raises `StoreError` where the log no longer says."""
        configuration = DeltaLog(self.table.uri, self.table.options).state(version).configuration
        return configuration.get(property_, "false").lower() == "true"

    def _time_after(self, parent: int, now: int) -> int:
        """Return the time of the next commit: the times of a table's commits always grow."""
        described: Action = next((line["commitInfo"] for line in self._lines(parent) if "commitInfo" in line), {})
        if "inCommitTimestamp" not in described:
            msg = f"commit {parent} of {self.table.uri} has no time, and the table says that all have one ({_IN_COMMIT_TIMES})"
            raise StoreError(msg)
        return max(now, int(described["inCommitTimestamp"]) + 1)

    def _add(self, version: int, content: bytes) -> None:
        """Add a commit if its version is not taken."""
        if not self.table.is_on_local_disk:
            msg = (
                f"deltalake cannot write {self.table.uri} (its features), and Headrace adds commits to such tables on disks only, not on "
                "object stores"
            )
            raise TableRefusedError(msg)
        target = Path(self.table.uri, commit_file(version))
        whole = target.with_name(f".{clock.unique_id()}.tmp")
        make_folder(str(target.parent))
        try:
            whole.write_bytes(content)
            sync_path(whole)
            os.link(whole, target)
        except FileExistsError as error:
            msg = f"version {version} of {self.table.uri} is taken"
            raise VersionTakenError(msg) from error
        finally:
            with suppress(FileNotFoundError):
                whole.unlink()
        sync_path(target.parent)

    def _lines(self, version: int) -> list[dict[str, Any]]:
        return actions_of(self.table.read(commit_file(version)))

    def _state(self, version: int) -> _State:
        """Return the files and the metadata of a version, as the log has them. Raises `StoreError` where it no longer does."""
        checkpoint = last_log_checkpoint((name for name, _ in self.table.listed(LOG, recursive=False)), version)
        files: dict[tuple[Any, ...], Action] = {}
        metadata: Action | None = None
        if checkpoint is not None:
            listed = (_plain(file) for file in checkpoint.actions("add", self.table, whole=True))
            files = {_identity(file): file for file in listed}
            metadata = next(map(_plain, checkpoint.actions("metaData", self.table, whole=True)), None)
        for number in range(0 if checkpoint is None else checkpoint.version + 1, version + 1):
            lines = self._lines(number)
            for line in lines:
                if "remove" in line:
                    files.pop(_identity(line["remove"]), None)
                metadata = line.get("metaData", metadata)
            files.update((_identity(line["add"]), line["add"]) for line in lines if "add" in line)
        if metadata is None:
            msg = f"the log of {self.table.uri} no longer has version {version}"
            raise StoreError(msg)
        return _State(files, metadata)


@dataclass(frozen=True, slots=True)
class _State:
    files: Mapping[tuple[Any, ...], Action]
    metadata: Action


def _plain(value: Any) -> Any:
    """Return an action of a log checkpoint as commits have it: without what is null there, or only for readers."""
    if not isinstance(value, Mapping):
        return value
    present = {key: part for key, part in value.items() if part is not None and key not in _OF_READERS}
    return {key: part if key in _TEXTS else _plain(part) for key, part in present.items()}


def _identity(file: Action) -> tuple[Any, ...]:
    vector = file.get("deletionVector") or {}
    return file["path"], vector.get("pathOrInlineDv"), vector.get("offset")


def _removal(file: Action) -> Action:
    kept = {name: file[name] for name in _KEPT if name in file}
    return {"remove": {**kept, "deletionTimestamp": clock.now(), "dataChange": True, "extendedFileMetadata": True}}
