"""Clean-up of logs: find entries of tables' logs, and files of `checkpoints`, that nobody needs any more.

Each commit leaves an entry in the log of its table, and each lease and each checkpoint a file in `checkpoints`. Without a
clean-up both grow for ever. A log is cut at the oldest version that a kept checkpoint names. Savepoints before the cut keep their
own versions, each by a log checkpoint; versions between them go.

    versions of a table     0 --- 1 --- 2 --- 3 --- 4 --- 5 --- 6
    kept                          savepoint         from here on
    log                           1                 4     5     6

Readers of `checkpoints` read only its latest version. The oldest version still open may be the latest one at the beginning of the
retention.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.erased_checkpoints import purged_ids
from headrace.commit.savepoints import live_savepoints
from headrace.config import JobConfig
from headrace.tables.schemas import CHECKPOINTS, tables_in
from headrace.tables.store import TableStore, storage_errors
from headrace.tables.stores import table_store


@dataclass(frozen=True, slots=True)
class KeptCheckpoints:
    """Checkpoints whose versions stay: those that were the last one at some time within the retention, and savepoints.

    Leaves out dropped savepoints, and checkpoints whose files an erasure has deleted.
    """

    recent: Sequence[Checkpoint]
    savepoints: Sequence[Checkpoint]

    @classmethod
    def of(cls, checkpoints: Sequence[Checkpoint], oldest: int, forks: Collection[int] = ()) -> KeptCheckpoints:
        """Return the kept ones of all checkpoints of a job, for a retention that began at `oldest` (ms).

        `forks` are the checkpoints that branches build on: they stay like savepoints.
        """
        purged = purged_ids(checkpoints)
        pinned = [
            *live_savepoints(checkpoints),
            *(checkpoint for checkpoint in checkpoints if checkpoint.checkpoint_id in forks),
        ]
        checkpoints = [checkpoint for checkpoint in checkpoints if checkpoint.has_state]
        older = [checkpoint for checkpoint in checkpoints if checkpoint.committed_at < oldest]
        younger = [checkpoint for checkpoint in checkpoints if checkpoint.committed_at >= oldest]
        # A reader may have opened the last older checkpoint just before the first younger one was committed.
        recent = [*older[-1:], *younger]
        kept = ([c for c in group if c.checkpoint_id not in purged] for group in (recent, pinned))
        return cls(*kept)

    def versions(self, table: str) -> set[int]:
        """Return the kept versions of a state table."""
        return {checkpoint.versions[table] for checkpoint in self._all if table in checkpoint.versions}

    @property
    def tables(self) -> set[str]:
        """Return the names of the state tables that a kept checkpoint has."""
        return {table for checkpoint in self._all for table in checkpoint.versions}

    @property
    def _all(self) -> Sequence[Checkpoint]:
        return (*self.recent, *self.savepoints)


@dataclass(frozen=True, slots=True)
class LogCut:
    """Cut of a table's log: it begins at version `first`, and keeps the versions `spared` before that."""

    table: str
    first: int
    spared: frozenset[int]
    files: frozenset[str]
    """Entries that nobody needs after `LogCleanup.keep`, relative to the job's folder."""


class LogCleanup:
    """Clean-up of all logs of one job, for a retention that began at `oldest` (ms)."""

    def __init__(self, config: JobConfig, kept: KeptCheckpoints, oldest: int) -> None:
        """Prepare the clean-up; read nothing yet."""
        self._config, self._kept, self._oldest = config, kept, oldest

    def cuts(self) -> Iterator[LogCut]:
        """Yield the cuts of all tables. Writes nothing."""
        yield self._cut(CHECKPOINTS, lambda at_oldest: (at_oldest, frozenset()))
        for name in tables_in(self._kept.tables):
            yield self._cut(name, lambda _, name=name: self._versions(name))  # type: ignore[misc]

    def checkpoint_files(self) -> set[str]:
        """Return the files of `checkpoints` that a reader may need, relative to the job's folder."""
        store = self._store(CHECKPOINTS)
        with storage_errors(f"to read {store.uri}"):
            since = store.at(store.log_as_of(self._oldest).version)
            return {f"{CHECKPOINTS}/{file}" for file in since.files() | store.latest().files()}

    def keep(self, cuts: Sequence[LogCut]) -> None:
        """Write log checkpoints, so that kept versions do not depend on deleted entries."""
        for cut in cuts:
            store = self._store(cut.table)
            with storage_errors(f"a checkpoint in the log of {store.uri}"):
                store.keep_versions({cut.first, *cut.spared})

    def _versions(self, table: str) -> tuple[int, frozenset[int]]:
        """Return the first version of a state table from which on all are needed, and the needed ones before it."""
        recent, pinned = (
            {checkpoint.versions[table] for checkpoint in kept if table in checkpoint.versions}
            for kept in (self._kept.recent, self._kept.savepoints)
        )
        first = min(recent or pinned)
        spared = pinned
        return first, frozenset(version for version in spared if version < first)

    def _cut(self, table: str, needed: Callable[[int], tuple[int, frozenset[int]]]) -> LogCut:
        store = self._store(table)
        with storage_errors(f"to read the log of {store.uri}"):
            log = store.log_as_of(self._oldest)
        first, spared = needed(log.version)
        files = {f"{table}/{file}" for file in log.unneeded(first, spared)}
        return LogCut(table, first, spared, frozenset(files))

    def _store(self, table: str) -> TableStore:
        return table_store(f"{self._config.job_folder}/{table}", self._config.storage_options)
