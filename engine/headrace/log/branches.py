"""Branches of a job: landed files that they copy, the table `branches`, and branches that are half made.

Some landed files have rows that a checkpoint has not taken in yet. They change lineages with the checkpoint. A job and
its branches land the rows of a Spark transform in folders of their own. Files of the same name may differ: the source's
file may have been corrected between the two landings. So a lineage that takes in the rest of a file needs the file
whose first rows it took in.

The table `branches` has the versions of the job's tables that each branch builds on. It has a compare-and-set of its
own and does not need the job's lease: a branch can be made while a run holds the job. The last row of a name counts. A
fork always sees a vacuum or an erasure, or is seen by it, since each first commits and then looks:

    fork      1. append the row       2. read the log; withdraw if an intent names files of the fork, or the fork
                                         has an erased key
    vacuum    1. commit the intent    2. look for branches; spare what they need; delete the rest
    erasure   1. commit it, then      2. after each, look for branches; end with an error that names them
                 the purge's intent

No command may pass over a branch that is half made, or that lacks the files with which it begins.
"""

from __future__ import annotations

import enum
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa

from headrace import crash_points
from headrace.config import LINES, JobConfig
from headrace.errors import ConfigError, FencedError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.names import did_you_mean
from headrace.sources.interval import Interval
from headrace.sources.kafka.landed import landed_folder, list_landed
from headrace.sources.kafka.schemas import SchemaStore, schemas_folder
from headrace.sources.position import stored_name
from headrace.sources.transformed.source import landed_file
from headrace.storage.refusals import doing, reason_of
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError, VersionTakenError
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ARROW_TIMESTAMP
from headrace.tables.view import in_milliseconds


def copy_begun_files(checkpoint: Checkpoint, source_line: JobConfig, target_line: JobConfig) -> None:
    """Copy the landed files that a checkpoint has begun, or requeued rows of, from one lineage's folders to the other's.

    Called after the fork of a branch is listed, and after a promotion is committed, until it succeeds. Replaces files of the target.
    Raises `StorageError` where a file cannot be copied.
    """
    for source, facts in checkpoint.sources.items():
        origin, target = (landed_folder(JobFolder.of(lineage), source) for lineage in (source_line, target_line))
        names = {*facts.begun, *(rows.file for rows in facts.requeued)}
        _copy(sorted(landed_file(name) for name in names if stored_name(name) != name), origin, target)


def copy_messages(checkpoint: Checkpoint, branch: JobConfig, job: JobConfig) -> None:
    """Copy the messages that a branch has landed, and its job has not, to the folders of the job, and their schemas.

    Called after a promotion is committed, until it succeeds. From then on the job can read them again, after a restore or a requeue,
    also where the topic has expired them. Raises `StorageError` where a file cannot be copied.
    """
    for source, facts in checkpoint.sources.items():
        if facts.partitions:
            origin, target = (landed_folder(JobFolder.of(lineage), source) for lineage in (branch, job))
            of_branch, of_job = ({file.name for file in list_landed(folder)} for folder in (origin, target))
            _copy(sorted(of_branch - of_job), origin, target)
            stored, of_target = (
                SchemaStore(schemas_folder(JobFolder.of(lineage), source)) for lineage in (branch, job)
            )
            stored.copy_to(of_target)


def _copy(names: Iterable[str], origin: Storage, target: Storage) -> None:
    for name in names:
        if (content := origin.find(name)) is not None:
            target.write(name, content)


BRANCHES = "branches"

_SCHEMA = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
        pa.field("fork_id", pa.int64(), nullable=False),
        pa.field("versions", pa.string()),
        pa.field("sinks", pa.string()),
        pa.field("created_at", ARROW_TIMESTAMP, nullable=False),
        pa.field("run_id", pa.string()),
        pa.field("note", pa.string()),
        pa.field("made_at", pa.int64(), nullable=False),
        pa.field("settings", pa.string()),
        pa.field("ran_with", pa.string()),
        pa.field("code", pa.string()),
        pa.field("earlier", pa.string()),
        pa.field("requested", pa.string()),
        pa.field("log_version", pa.int64(), nullable=False),
    ]
)
_JSON = ("versions", "sinks", "settings", "ran_with", "code", "earlier", "requested")
_ATTEMPTS = 10


class BranchStatus(enum.StrEnum):
    """State of a branch in its lifecycle."""

    OPEN = "open"
    PROMOTING = "promoting"
    """Promotion has begun. If the job has the checkpoint of that attempt, the branch is promoted; else it is open."""
    PROMOTED = "promoted"
    DROPPED = "dropped"


class EarlierRuns(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and code of a branch's runs before later runs had others."""

    until: int
    """Last checkpoint of the branch that they made."""
    ran_with: dict[str, str]
    code: dict[str, str] | None = None


class Branch(msgspec.Struct, frozen=True, kw_only=True):
    """A branch of a job. `versions` are those of the state tables at the fork, `sinks` those of the sinks; times are ms."""

    name: str
    status: BranchStatus
    fork_id: int
    """Checkpoint of the job that the branch forks from."""
    versions: dict[str, int]
    sinks: dict[str, int]
    created_at: int
    run_id: str | None = None
    """Run that made the branch; while the branch is being promoted, the attempt that promotes it."""
    note: str | None = None
    made_at: int
    """Last checkpoint of the job when the branch was made."""
    settings: dict[str, str] = {}
    """Values of the branch that replace those of the job's file: YAML, by dotted key."""
    ran_with: dict[str, str] | None = None
    """Pipeline and settings of its last run; None before the first run. See `headrace.commit.branch_code`."""
    code: dict[str, str] | None = None
    """Files and packages of its last run's code; None if it has not run, or its code could not be read. See `code_digests`."""
    earlier: tuple[EarlierRuns, ...] = ()
    """Runs with other settings or code than its last run, the earliest first: some of its results may be theirs."""
    requested: Interval | None = None
    """Interval of the backfill that made the branch; None if none did. Of a dropped branch: the interval that it is forked anew for."""

    @property
    def is_there(self) -> bool:
        """Return whether the branch has tables: it is neither dropped nor promoted."""
        return self.status in {BranchStatus.OPEN, BranchStatus.PROMOTING}


class _EndedError(Exception):
    """Another process has recorded the end of the branch."""


class Branches:
    """Branches of one job, as of construction or of the last change."""

    def __init__(self, config: JobConfig) -> None:
        """Read the table. A job that never had a branch has no such table."""
        self._config = config
        self._job = config.job
        self._store = JobFolder.of(config).table(BRANCHES)
        self._version = -1
        self._by_name: dict[str, Branch] = {}
        self._promotions: frozenset[str] = frozenset()
        self.refresh()

    def refresh(self) -> None:
        """Read the table's latest version."""
        try:
            table = self._store.latest()
        except TableMissingError:
            return
        rows = in_milliseconds(table.read(_SCHEMA)).sort_by("log_version").to_pylist()
        self._version = table.version
        self._by_name = {row["name"]: _decoded(row) for row in rows}
        if any(branch.status is BranchStatus.PROMOTING for branch in self._by_name.values()):
            log = CheckpointLog(JobFolder.of(self._config))
            self._promotions = frozenset(
                checkpoint.attempt_id for checkpoint in log.checkpoints if checkpoint.kind is Kind.PROMOTION
            )

    @property
    def open(self) -> Sequence[Branch]:
        """Return the branches that are neither dropped nor promoted, oldest first."""
        branches = (
            branch for branch in self._by_name.values() if branch.is_there and branch.run_id not in self._promotions
        )
        return sorted(branches, key=lambda branch: branch.created_at)

    @property
    def all(self) -> Sequence[Branch]:
        """Return the last branch of each name, also those that were dropped or promoted."""
        return [*self._by_name.values()]

    def dropped(self, name: str) -> Branch | None:
        """Return the last branch with a name if it was dropped; None if it is open, was promoted, or never existed."""
        branch = self._by_name.get(name)
        return branch if branch is not None and branch.status is BranchStatus.DROPPED else None

    def ended(self, name: str) -> Branch | None:
        """Return the last branch with a name if it was dropped or promoted; None if it is open, or never existed."""
        branch = self._by_name.get(name)
        return None if branch is None or branch in self.open else branch

    def is_last(self, branch: Branch) -> bool:
        """Return whether a branch, as of its last commit, is still the last one with its name. Reads the table again."""
        self.refresh()
        return self._by_name.get(branch.name) == branch

    def get(self, name: str) -> Branch:
        """Return an open branch. Raises `ConfigError` when none has the name."""
        open_branches = {branch.name: branch for branch in self.open}
        if self.ended(name) is not None:
            how = "dropped" if self.dropped(name) is not None else "promoted"
            msg = f"branch '{name}' of job '{self._job}' was {how} already. Nothing was done now. 'headrace branch list {self._job}' lists the open ones."
            raise ConfigError(msg)
        if name not in open_branches:
            listed = f"there are: {', '.join(open_branches)}" if open_branches else "it has none"
            msg = (
                f"job '{self._job}' has no branch '{name}'{did_you_mean(name, [*open_branches])} ({listed}). "
                f"'headrace branch create {self._job} {name} --at CHECKPOINT' makes one."
            )
            raise ConfigError(msg)
        return open_branches[name]

    def add(self, branch: Branch) -> None:
        """Commit a new branch. Raises `ConfigError` when an open branch has its name."""
        self._store.create(_SCHEMA)
        self.refresh()

        def check() -> None:
            if any(branch.name == other.name for other in self.open):
                msg = f"job '{self._job}' has a branch '{branch.name}' already: drop it first, or choose another name"
                raise ConfigError(msg)

        self._commit(branch, check)

    def change(self, branch: Branch) -> None:
        """Commit new values of an open branch. Raises `ConfigError` when no open branch has its name."""
        self._commit(branch, lambda: self.get(branch.name))

    def drop(self, name: str, note: str | None = None, requested: Interval | None = None) -> Branch:
        """Commit that a branch is dropped, to be forked anew for `requested`. Raises `ConfigError` when no open branch has the name."""
        return self._change(name, status=BranchStatus.DROPPED, note=note, requested=requested)

    def begin_promotion(self, name: str, attempt_id: str) -> Branch:
        """Commit that an attempt promotes a branch. Raises `ConfigError` when no open branch has the name."""
        return self._change(name, status=BranchStatus.PROMOTING, run_id=attempt_id)

    def promoted_by(self, checkpoint: Checkpoint) -> Branch | None:
        """Return the branch that a promotion has promoted; None once its end is recorded."""
        branch = self._by_name.get(checkpoint.name or "")
        if branch is None or branch.status is not BranchStatus.PROMOTING:
            return None
        return branch if branch.run_id == checkpoint.attempt_id else None

    def end_promotion(self, branch: Branch) -> None:
        """Commit that a branch was promoted, unless another run has: then there may be a new branch of its name."""
        self._end(branch, status=BranchStatus.PROMOTED)

    def withdraw(self, branch: Branch) -> None:
        """Commit that a branch that is not made yet is dropped, unless somebody has dropped it: then there may be a new one of its name."""
        self._end(branch, status=BranchStatus.DROPPED, note="withdrawn")

    def _end(self, branch: Branch, **fields: Any) -> None:
        def check() -> None:
            if self._by_name.get(branch.name) != branch:
                raise _EndedError

        with suppress(_EndedError):
            self._commit(msgspec.structs.replace(branch, **fields), check)

    def _change(self, name: str, **fields: Any) -> Branch:
        changed = msgspec.structs.replace(self.get(name), **fields)
        self._commit(changed, lambda: self.get(name))
        return changed

    def _commit(self, branch: Branch, check: Any) -> None:
        """Append a row. If others append meanwhile, refresh, call `check` again and retry."""
        for _ in range(_ATTEMPTS):
            check()
            row = _encoded(branch, self._version + 1)
            try:
                self._version = self._store.append_rows(self._version, row)
            except VersionTakenError:
                self.refresh()
                continue
            self._by_name[branch.name] = branch
            return
        msg = f"other writers took {self._store.uri} {_ATTEMPTS} times in a row. Nothing was changed: run the command again."
        raise FencedError(msg)


def remove_branch(on_branch: JobConfig) -> None:
    """Delete the folder of a branch and its local copies, if they exist. `on_branch` is the configuration of the branch."""
    JobFolder.of(on_branch).remove_folder()
    remove_local_copies(on_branch)


def remove_local_copies(config: JobConfig) -> None:
    """Delete the local copies of a job's or a branch's state, if this machine has any. Raises `StorageError` when the disk refuses."""
    if config.local_folder.exists():
        with doing(f"to remove {config.local_folder}"):
            shutil.rmtree(config.local_folder)


def remove_last_branch(config: JobConfig, branch: Branch) -> bool:
    """Do what `remove_branch` does if the branch is still the last one with its name; return whether it was.

    The process may have slept since it committed `branch`. Another one may have removed the branch, and forked one with its name.
    """
    is_last = Branches(config).is_last(branch)
    if is_last:
        remove_branch(config.on_branch(branch.name))
    return is_last


def remove_ended_branches(config: JobConfig) -> None:
    """Remove folders and local copies of branches that were dropped or promoted. Called by the holder of the job.

    The folders count, and not the table: an interrupted drop has left them, or a run that did not notice the drop has written to one.
    A branch is listed before its folder is made, so its row is read after its folder is found.
    """
    names = set(JobFolder.of(config).folders(LINES))
    of_job = f"{config.local_folder.name}@"
    names |= {folder.name.removeprefix(of_job) for folder in config.local_folder.parent.glob(f"{of_job}*")}
    for name in sorted(names):
        if all(branch.name != name for branch in Branches(config).open):
            remove_branch(config.on_branch(name))


def finish_promotion(config: JobConfig, last: Checkpoint) -> None:
    """Remove the branch whose promotion is the job's last checkpoint, if it is still there; keep what the job takes in next."""
    if last.kind is not Kind.PROMOTION:
        return
    branches = Branches(config)
    branch = branches.promoted_by(last)
    if branch is None:
        return
    crash_points.reached("promotion.committed")
    copy_begun_files(last, config.on_branch(branch.name), config)
    copy_messages(last, config.on_branch(branch.name), config)
    crash_points.reached("promotion.landed")
    if remove_last_branch(config, branch):
        crash_points.reached("promotion.removed")
        branches.end_promotion(branch)


def _encoded(branch: Branch, log_version: int) -> pa.Table:
    row = {
        **msgspec.to_builtins(branch),
        **{name: msgspec.json.encode(getattr(branch, name)).decode() for name in _JSON},
        "created_at": None,
        "log_version": log_version,
    }
    columns = {column.name: pa.array([row[column.name]], column.type) for column in _SCHEMA}
    columns["created_at"] = pa.array([branch.created_at], pa.timestamp("ms", tz="UTC")).cast(ARROW_TIMESTAMP)
    return pa.table(columns, schema=_SCHEMA)


def _decoded(row: dict[str, Any]) -> Branch:
    fields = {name: value for name, value in row.items() if name != "log_version" and value is not None}
    fields |= {name: msgspec.json.decode(fields[name]) for name in _JSON if name in fields}
    return msgspec.convert(fields, Branch)


def problem_of(config: JobConfig, branch: Branch) -> str | None:
    """Return a sentence on a branch that is half made, or whose fork cannot be read, with the command that mends it; None for others.

    `config` is the job's. Raises `StorageError` when the storage refuses.
    """
    lost = lost_fork(config, branch)
    if lost is not None:
        return _about_lost(config, branch, lost)
    if CheckpointLog(JobFolder.of(config.on_branch(branch.name))).checkpoints:
        return None
    return (
        f"branch '{branch.name}' of job '{config.job}' is half made: the command that makes it was interrupted, or is still at work. "
        f"'headrace branch create {config.job} {branch.name}' finishes it, 'headrace branch drop {config.job} {branch.name}' removes it."
    )


def lost_fork(config: JobConfig, branch: Branch) -> str | None:
    """Return a clause on the first table that cannot be read as it was at a branch's fork; None if all can."""
    for table, version in branch.versions.items():
        try:
            JobFolder.of(config).table(table).at(version).files()
        except (StorageError, TableMissingError) as error:
            if isinstance(error, StorageError) and not error.is_missing:
                raise
            return f"version {version} of {table} cannot be read ({reason_of(error)})"
    return None


def readable_branches(config: JobConfig) -> list[Branch]:
    """Return the open branches of a job. Raises `StorageError` if the fork of one cannot be read: nobody knows which files it needs."""
    branches = [*Branches(config).open]
    for branch in branches:
        if (lost := lost_fork(config, branch)) is not None:
            raise StorageError(_about_lost(config, branch, lost))
    return branches


def _about_lost(config: JobConfig, branch: Branch, lost: str) -> str:
    return (
        f"branch '{branch.name}' of job '{config.job}' begins at checkpoint {branch.fork_id}, and its files there are gone: {lost}. Nothing was "
        f"deleted. 'headrace branch drop {config.job} {branch.name}' removes the branch; then run the command again."
    )
