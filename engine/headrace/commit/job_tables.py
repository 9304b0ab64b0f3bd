"""All state tables of a job: fence, prepare and restore them together, as steps of the commit protocol."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from headrace import crash_points, threads
from headrace.errors import FencedError, StorageError
from headrace.storage.files import StagedFile
from headrace.storage.refusals import reason_of
from headrace.storage.table import CommitInfo, TableMissingError, TableStore, VersionTakenError
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, STATE_TABLES

Versions = dict[str, int]
"""The version of each state table, by name."""

_BACKUP = (
    "Bring the whole job folder back from a backup that is not older than the job's sinks; or, to start anew, move the folder "
    "and the sinks away."
)


class JobTables:
    """State tables in one job folder. Every commit is a compare-and-set on the table's version."""

    def __init__(self, folder: JobFolder, run_id: str, attempt_id: str) -> None:
        """Store `run_id` and `attempt_id`. Each commit records them: a writer that loses a race can name the winner."""
        self._stores = {name: folder.table(name) for name in ALL_TABLES}
        self._info = CommitInfo(run_id=run_id, attempt_id=attempt_id)
        self._who = f"run {run_id}, attempt {attempt_id}"

    def create(self) -> Versions:
        """Create missing tables; return the versions (0).

        Raises `StorageError` when a table has a history already: then the job's checkpoints were
        lost, and starting anew would silently forget its state.
        """
        for name, table in STATE_TABLES.items():
            store = self._stores[name]
            store.create(table.schema)
            version = store.latest().version
            if version > 0:
                msg = (
                    f"{store.uri} holds state, but the job's checkpoints are gone, and only they say what of "
                    f"it is committed. Bring the whole folder back from a backup that is not older than the job's sinks; "
                    "or, to start anew, move the folder and the sinks away."
                )
                raise StorageError(msg)
        return dict.fromkeys(STATE_TABLES, 0)

    def add(self, name: str) -> int:
        """Create a table that no checkpoint names yet, without rows; return its version.

        An attempt that died before its first commit may have left the table, with rows that no checkpoint names.
        """
        store, schema = self._stores[name], ALL_TABLES[name].schema
        store.create(schema)
        version = store.latest().version
        return (
            version
            if version == 0
            else self._commit(store, version, lambda: store.replace(version, schema, [], self._info))
        )

    def fence(self, committed: Mapping[str, int]) -> Versions:
        """Undo commits that no checkpoint names, and return the versions to build on.

        A table ahead of its committed version was touched by an attempt that never committed: it
        is restored, which moves no data. Raises `StorageError` when a table or a version is gone.
        """
        return self._in_parallel(lambda name: self._fence(self._stores[name], committed[name]), committed)

    def prepare(self, files: Mapping[str, Sequence[StagedFile]], parents: Mapping[str, int]) -> Versions:
        """Add staged files to their tables, each as its parent version + 1.

        Returns the versions of all tables. Raises `FencedError` when another writer took a version.
        """

        def add(name: str) -> int:
            store, schema, parent = self._stores[name], ALL_TABLES[name].schema, parents[name]
            return self._commit(store, parent, lambda: store.append(parent, schema, changed[name], self._info))

        crash_points.reached("prepare.before")
        changed = {name: list(staged) for name, staged in files.items() if staged}
        names = sorted(changed)
        committed: Versions = {}
        if names:
            committed = self._in_parallel(add, names[:1])
            crash_points.reached("prepare.half")
            committed |= self._in_parallel(add, names[1:])
        crash_points.reached("prepare.after")
        return {**parents, **committed}

    def replace(self, name: str, staged: Sequence[StagedFile], parent: int) -> int:
        """Make `staged` the whole content of a table, as version `parent + 1`."""
        store, schema = self._stores[name], ALL_TABLES[name].schema
        return self._commit(store, parent, lambda: store.replace(parent, schema, staged, self._info))

    def add_columns(self, name: str, columns: Sequence[pa.Field], parent: int) -> int:
        """Add nullable columns to a table as version `parent + 1`; return `parent` if the table has them all."""
        store = self._stores[name]
        present = store.at(parent).schema.names
        missing = [column for column in columns if column.name not in present]
        if not missing:
            return parent
        return self._commit(store, parent, lambda: store.add_columns(parent, missing, self._info))

    def restore(self, targets: Mapping[str, int], parents: Mapping[str, int]) -> Versions:
        """Make old versions the latest again, each as its parent version + 1."""
        return self._in_parallel(lambda name: self._restore(self._stores[name], parents[name], targets[name]), targets)

    def _fence(self, store: TableStore, committed: int) -> int:
        try:
            latest = store.latest().version
        except TableMissingError as error:
            msg = f"table {store.uri} is gone, but checkpoints name its version {committed}. {_BACKUP}"
            raise StorageError(msg) from error
        if latest == committed:
            return committed
        if latest < committed:
            msg = (
                f"table {store.uri} is at version {latest}, but checkpoints name {committed}: "
                "its log was changed, or is an older copy. Bring the whole job folder back from a backup that is not "
                "older than the job's sinks."
            )
            raise StorageError(msg)
        crash_points.reached("fence.table")
        return self._restore(store, latest, committed)

    def _restore(self, store: TableStore, parent: int, target: int) -> int:
        return self._commit(store, parent, lambda: store.restore(parent, target, self._info))

    def _commit(self, store: TableStore, parent: int, commit: Callable[[], int]) -> int:
        try:
            return commit()
        except VersionTakenError as error:
            msg = (
                f"{self._who} lost the job: another writer took version {parent + 1} of {store.uri} "
                f"({_writer(store)}). Nothing was committed; let that run finish, then run again."
            )
            raise FencedError(msg) from error

    def _in_parallel(self, work: Callable[[str], int], names: Iterable[str]) -> Versions:
        listed = list(names)
        return dict(zip(listed, threads.in_parallel(work, listed), strict=True))


def _writer(store: TableStore) -> str:
    try:
        info = store.latest().history(1)[0].info
    except StorageError as error:  # report the lost commit instead of this error
        return f"who did cannot be read: {reason_of(error)}"
    return f"run {info.run_id}, attempt {info.attempt_id}" if info.run_id else "not a run of Headrace"
