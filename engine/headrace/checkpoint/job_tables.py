"""The state tables of one job, and the steps of the commit protocol on them: fence and prepare."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from deltalake.exceptions import CommitFailedError, TableNotFoundError

from headrace import faults
from headrace.checkpoint._delta import (
    Options,
    add_columns,
    add_files,
    create_table,
    latest_version,
    open_table,
    properties,
    restore_table,
    storage_errors,
)
from headrace.checkpoint.files import StagedFile
from headrace.checkpoint.tables import STATE_TABLES
from headrace.errors import FencedError, StorageError

Versions = dict[str, int]


class JobTables:
    """State tables below one job folder. Every commit here is a compare-and-set on the version."""

    def __init__(self, job_folder: str, run_id: str, attempt_id: str, *, storage: Options = None) -> None:
        """`run_id` and `attempt_id` are written into each commit, for who loses a race."""
        self._folder = job_folder
        self._storage = storage
        self._commit = properties(metadata={"headrace.run": run_id, "headrace.attempt": attempt_id})
        self._who = f"run {run_id}, attempt {attempt_id}"

    def create(self) -> Versions:
        """Make the tables that are missing; return the versions (0).

        Raises `StorageError` when a table has a history already: then the job's checkpoints were
        lost, and starting anew would silently forget its state.
        """
        for name, table in STATE_TABLES.items():
            create_table(self.uri(name), table.schema, storage=self._storage)
            if latest_version(self.uri(name), storage=self._storage) > 0:
                msg = (
                    f"{self.uri(name)} holds state, but the job's checkpoints are gone, and only they say what of "
                    f"it is committed. Bring the whole folder back from a backup that is not older than the job's sinks; "
                    "or, to start anew, move the folder and the sinks away."
                )
                raise StorageError(msg)
        return dict.fromkeys(STATE_TABLES, 0)

    def uri(self, name: str) -> str:
        """Where a table is."""
        return f"{self._folder}/{name}"

    def fence(self, committed: Mapping[str, int]) -> Versions:
        """Undo what no checkpoint names, and return the versions to build on.

        A table ahead of its committed version was touched by an attempt that never committed: it
        is restored, which moves no data. Raises `StorageError` when a table or a version is gone.
        """
        return self._in_parallel(lambda name: self._fence(name, committed[name]), committed)

    def prepare(self, files: Mapping[str, Sequence[StagedFile]], parents: Mapping[str, int]) -> Versions:
        """Add staged files to their tables, each as its parent version + 1.

        Returns the versions of all tables. Raises `FencedError` when another writer took a version.
        """
        faults.reached("prepare.before")
        changed = {name: list(staged) for name, staged in files.items() if staged}
        names = sorted(changed)
        committed: Versions = {}
        if names:
            committed = self._in_parallel(lambda name: self._add(name, parents[name], changed[name]), names[:1])
            faults.reached("prepare.half")
            committed |= self._in_parallel(lambda name: self._add(name, parents[name], changed[name]), names[1:])
        faults.reached("prepare.after")
        return {**parents, **committed}

    def replace(self, name: str, staged: Sequence[StagedFile], parent: int) -> int:
        """Make `staged` the whole content of a table, as version `parent + 1`."""
        return self._guarded(name, parent, lambda: self._overwrite(name, parent, staged))

    def add_columns(self, name: str, columns: Sequence[pa.Field], parent: int) -> int:
        """Give a table nullable columns, as version `parent + 1`; the parent itself where it has them all."""
        there = {
            field.name for field in open_table(self.uri(name), version=parent, storage=self._storage).schema().fields
        }
        missing = [column for column in columns if column.name not in there]
        if not missing:
            return parent
        return self._guarded(name, parent, lambda: self._add_columns(name, missing, parent))

    def restore(self, targets: Mapping[str, int], parents: Mapping[str, int]) -> Versions:
        """Make old versions the latest again, each as its parent version + 1."""

        def restore(name: str) -> int:
            return self._guarded(name, parents[name], lambda: self._restore(name, parents[name], targets[name]))

        return self._in_parallel(restore, targets)

    def _fence(self, name: str, committed: int) -> int:
        try:
            latest = latest_version(self.uri(name), storage=self._storage)
        except TableNotFoundError as error:
            msg = (
                f"table {self.uri(name)} is gone, but checkpoints name its version {committed}. "
                "Bring the whole job folder back from a backup that is not older than the job's sinks; or, to start "
                "anew, move the folder and the sinks away."
            )
            raise StorageError(msg) from error
        if latest == committed:
            return committed
        if latest < committed:
            msg = (
                f"table {self.uri(name)} is at version {latest}, but checkpoints name {committed}: "
                "its log was changed, or is an older copy. Bring the whole job folder back from a backup that is not "
                "older than the job's sinks."
            )
            raise StorageError(msg)
        faults.reached("fence.table")
        return self._guarded(name, latest, lambda: self._restore(name, latest, committed))

    def _restore(self, name: str, parent: int, target: int) -> int:
        return restore_table(self.uri(name), parent, target, commit=self._commit, storage=self._storage)

    def _add(self, name: str, parent: int, staged: Sequence[StagedFile]) -> int:
        return self._guarded(
            name,
            parent,
            lambda: add_files(
                self.uri(name),
                parent,
                STATE_TABLES[name].schema,
                staged,
                commit=self._commit,
                storage=self._storage,
            ),
        )

    def _add_columns(self, name: str, columns: Sequence[pa.Field], parent: int) -> int:
        return add_columns(self.uri(name), parent, columns, commit=self._commit, storage=self._storage)

    def _overwrite(self, name: str, parent: int, staged: Sequence[StagedFile]) -> int:
        schema = STATE_TABLES[name].schema
        return add_files(
            self.uri(name),
            parent,
            schema,
            staged,
            overwrite=True,
            commit=self._commit,
            storage=self._storage,
        )

    def _guarded(self, name: str, parent: int, commit: Callable[[], int]) -> int:
        try:
            with storage_errors(f"version {parent + 1} of {self.uri(name)}"):
                return commit()
        except CommitFailedError as error:
            msg = (
                f"{self._who} lost the job: another writer took version {parent + 1} of {self.uri(name)} "
                f"({self._writer(name)}). Nothing was committed; let that run finish, then run again."
            )
            raise FencedError(msg) from error

    def _writer(self, name: str) -> str:
        commit = open_table(self.uri(name), storage=self._storage).history(1)[0]
        run, attempt = commit.get("headrace.run"), commit.get("headrace.attempt")
        return f"run {run}, attempt {attempt}" if run else "not a run of Headrace"

    def _in_parallel(self, work: Callable[[str], int], names: Iterable[str]) -> Versions:
        listed = list(names)
        if not listed:
            return {}
        with ThreadPoolExecutor(len(listed)) as pool:
            return dict(zip(listed, pool.map(work, listed), strict=True))
