"""Vacuum: deletion of files that no checkpoint within the retention and no savepoint needs.

The file finds entries of tables' logs and files of `checkpoints` that nobody needs any more, then landed files of
topics, then all other files of the job; at its end it deletes them.

Each commit leaves an entry in the log of its table, and each lease and each checkpoint a file in `checkpoints`. Without
a clean-up both grow for ever. A log is cut at the oldest version that a kept checkpoint names. Savepoints before the
cut keep their own versions, each by a log checkpoint; versions between them go.

    versions of a table     0 --- 1 --- 2 --- 3 --- 4 --- 5 --- 6
    kept                          savepoint         from here on
    log                           1                 4     5     6

Readers of `checkpoints` read only its latest version. The oldest version still open may be the latest one at the
beginning of the retention.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple

import pyarrow as pa

from headrace import clock, crash_points
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.log.branches import readable_branches
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.log.marks import INTENTS, VacuumIntent, complete, intent_path, live_savepoints, open_intents, purged_ids
from headrace.names import counted
from headrace.sources.kafka.landed import LANDED
from headrace.sources.landed import comes_after, has_unread_messages, names_of
from headrace.sources.position import NO_FACTS, SourceFacts
from headrace.storage.table import LOG, TableStore
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS, tables_in


def commit_intent(
    job: OpenJob, files: Collection[str], *, erased: Sequence[tuple[int, int]] = (), note: str | None = None
) -> None:
    """Commit that `files`, given relative to the job's folder, may be deleted.

    `erased` has the ranges of checkpoints that become unreadable, within the retention or not; `note` says why.

    Raises `FencedError` when another run has taken the job: then no file may be deleted.
    """
    path = intent_path(job.next_id, job.attempt_id)
    paths = pa.table({"path": pa.array(sorted(files), pa.string())})
    job.folder.stage(path, paths)
    note = note or f"deletes {counted(len(files), 'file')}"
    metrics = {"files_deleted": len(files)}
    job.commit(Kind.VACUUM, versions=job.versions, metrics=metrics, note=note, erased=tuple(erased))


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
        since = store.at(store.log_as_of(self._oldest).version)
        return {f"{CHECKPOINTS}/{file}" for file in since.files() | store.latest().files()}

    def keep(self, cuts: Sequence[LogCut]) -> None:
        """Write log checkpoints, so that kept versions do not depend on deleted entries."""
        for cut in cuts:
            store = self._store(cut.table)
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
        log = store.log_as_of(self._oldest)
        first, spared = needed(log.version)
        files = {f"{table}/{file}" for file in log.unneeded(first, spared)}
        return LogCut(table, first, spared, frozenset(files))

    def _store(self, table: str) -> TableStore:
        return JobFolder.of(self._config).table(table)


_PARTS: Final = 3
"""Parts of a landed file's path: folder, source, name."""


def unneeded_landed(
    files: Collection[str], kept: KeptCheckpoints, last: Checkpoint, forks: Iterable[Checkpoint] = ()
) -> set[str]:
    """Return landed `files` (paths relative to the job's folder) whose rows no kept checkpoint still has to take in.

    Files that the next run reads stay as well, and messages behind the `forks` of branches, which read them in place: the topic may
    have deleted the messages.
    """
    waiting = {
        f"{LANDED}/{source}/{name}"
        for checkpoint in (*kept.recent, *kept.savepoints, last)
        for source, facts in checkpoint.sources.items()
        for file in (*facts.begun, *(rows.file for rows in facts.requeued))
        for name in names_of(file)
    }
    forks = [*forks]
    return {
        file
        for file in files
        if file not in waiting
        and not _is_ahead(file, last)
        and not any(is_needed_by_branch(file, fork) for fork in forks)
    }


def is_needed_by_branch(file: str, fork: Checkpoint) -> bool:
    """Return whether a file has messages that a branch may take in that begins at the checkpoint `fork`."""
    return has_unread_messages(file.rpartition("/")[2], _facts_of(file, fork))


def _is_ahead(file: str, last: Checkpoint) -> bool:
    """Return whether the rows of a landed file come after the last checkpoint's position in their source or partition."""
    return comes_after(file.rpartition("/")[2], _facts_of(file, last))


def _facts_of(file: str, checkpoint: Checkpoint) -> SourceFacts:
    """Return the facts of the source that landed a file, given by its path."""
    parts = file.split("/")
    return checkpoint.sources.get(parts[1], NO_FACTS) if len(parts) == _PARTS else NO_FACTS


_HOUR = 3_600_000


class Unneeded(NamedTuple):
    """Files that may be deleted, relative to the job's folder, and the cuts of logs to keep before that."""

    files: set[str]
    logs: LogCleanup
    cuts: Sequence[LogCut]


class UnneededFiles:
    """Finder of files that no kept checkpoint needs and no intent names. Lists each folder once."""

    def __init__(self, config: JobConfig, checkpoints: Sequence[Checkpoint], intents: Sequence[VacuumIntent]) -> None:
        """Take all `checkpoints` of the job; read nothing yet."""
        self._config, self._checkpoints, self._intents = config, checkpoints, intents
        self._oldest = clock.now() - config.retention.hours * _HOUR
        self._old_files: Callable[[str], set[str]] = cache(self._listed)

    def besides(self, forks: Collection[int]) -> Unneeded:
        """Return the files that nobody needs if branches build on the checkpoints `forks`."""
        kept = KeptCheckpoints.of(self._checkpoints, self._oldest, forks)
        logs = LogCleanup(self._config, kept, self._oldest)
        cuts = [*logs.cuts()]
        unneeded = {file for cut in cuts for file in cut.files}
        unneeded |= self._old_files(CHECKPOINTS) - logs.checkpoint_files()
        for name in tables_in(kept.tables):
            unneeded |= self._old_files(name) - self._needed_files(name, kept)
        # The following files are left over: files between stages of dead attempts, published outputs, intents whose
        # commit failed.
        for folder in ("transit", "outputs", INTENTS):
            unneeded |= self._old_files(folder)
        last = self._checkpoints[-1]
        forked = [checkpoint for checkpoint in self._checkpoints if checkpoint.checkpoint_id in forks]
        unneeded |= unneeded_landed(self._old_files(LANDED), kept, last, forked)
        unneeded -= {file.path for files in last.outputs.values() for file in files}
        return Unneeded(unneeded.difference(*({intent.path, *intent.files} for intent in self._intents)), logs, cuts)

    def _needed_files(self, name: str, kept: KeptCheckpoints) -> set[str]:
        """Return the files of a state table at all kept checkpoints."""
        folder = JobFolder.of(self._config)
        views = [folder.view(name, version) for version in kept.versions(name)]
        return {f"{name}/{file}" for view in views for file in view.files()}

    def _listed(self, name: str) -> set[str]:
        """Return the files in a folder of the job that are older than the retention: all in `transit`, else Parquet files.

        For a table, those in its subfolders are left out.
        """
        recursive = name not in {CHECKPOINTS, *ALL_TABLES}
        return {
            f"{name}/{path}"
            for path, file in JobFolder.of(self._config).listed(name, recursive=recursive)
            if (name == "transit" or path.endswith(".parquet")) and file.mtime_ns < self._oldest * 1_000_000
        }


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Delete files older than the retention that no kept checkpoint names; return their paths.

    Keeps checkpoints that were the last one at some time within `retention.hours`, all savepoints, and the forks of
    all branches. Also deletes entries of tables' logs that no kept checkpoint needs, files of `checkpoints` that a
    compaction has replaced, and files that an earlier vacuum has committed and not deleted. The list of files is
    committed before the first file is deleted (see `log.marks`). With `dry_run`, does not write. Raises
    `FencedError` when another run holds the job or takes it before the commit, and `StorageError` when the fork of a branch
    cannot be read any more; then nothing is deleted.
    """
    if dry_run:
        log = CheckpointLog(JobFolder.of(config))
        log.resolve(config)
        return _uris(config, UnneededFiles(config, log.checkpoints, ()).besides(_forks(config)).files)
    forks = _forks(config)
    with open_job(config, run_id) as job:
        intents = open_intents(config, job.checkpoints)
        files, logs, cuts = UnneededFiles(config, job.checkpoints, intents).besides(forks)
        crash_points.reached("vacuum.listed")
        if files or intents:
            logs.keep(cuts)
        if files:
            commit_intent(job, files)
            intents = open_intents(config, job.checkpoints)
    crash_points.reached("vacuum.committed")
    listed = {file for intent in intents for file in intent.files}
    spared = _needed_by_branches(config, listed, forks)
    for intent in intents:
        complete(config, intent, spared)
    return _uris(config, listed - spared)


def _forks(config: JobConfig) -> set[int]:
    """Return the checkpoints that the job's branches build on. Raises `StorageError` if one cannot be read any more."""
    return {branch.fork_id for branch in readable_branches(config)}


def _needed_by_branches(config: JobConfig, listed: Collection[str], known: Collection[int]) -> set[str]:
    """Return the files that the forks of branches need, and all log entries if a branch was made since the files were `listed`.

    For forks that are `known`, the logs do not depend on earlier entries: see `LogCleanup.keep`.
    """
    branches = readable_branches(config)
    needed: set[str] = set()
    for branch in branches:
        for name, version in branch.versions.items():
            view = JobFolder.of(config).view(name, version)
            needed |= {f"{name}/{file}" for file in view.files()}
    if any(branch.fork_id not in known for branch in branches):
        needed |= {file for file in listed if f"/{LOG}/" in file}
        log, forks = CheckpointLog(JobFolder.of(config)), {branch.fork_id for branch in branches}
        forked = [checkpoint for checkpoint in log.checkpoints if checkpoint.checkpoint_id in forks]
        landed = (file for file in listed if file.startswith(f"{LANDED}/"))
        needed |= {file for file in landed if any(is_needed_by_branch(file, fork) for fork in forked)}
    return needed


def _uris(config: JobConfig, files: set[str]) -> list[str]:
    return [f"{config.job_folder}/{file}" for file in sorted(files)]
