"""Forks of a job: branches that begin at one of its checkpoints, and the storage that they use.

A fork copies no rows of tables. A branch is a job folder of its own, `lines/NAME` in the job's, with its own log,
lease, outputs and sinks. Its tables build on those of the job at the fork (`headrace.storage.overlay`). So everything
that works on a job folder works on a branch: runs, fences, restores, savepoints, readers.

    log of the job       0 --- 1 --- 2 --- 3 --- 4
    log of the branch    0     1     2 --- 3 fork --- 4 --- 5          forked at 2; 0 to 2 have no state of their own

The log of the branch begins with a copy of the job's lineage up to the fork, without versions and outputs. So the
branch knows which input was taken in.

A branch costs the storage of its own files, and of files of the job that vacuum spares for it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from headrace import clock, crash_points
from headrace.commit.branch_code import refuse_without_state
from headrace.commit.protocol import open_job
from headrace.commit.restore_check import RestoreCheck
from headrace.commit.run_check import checked_plan
from headrace.config import JobConfig, checked_name, with_settings
from headrace.edits.vacuum import UnneededFiles
from headrace.errors import ConfigError, FencedError, HeadraceError, SinkMismatchError, StorageError
from headrace.log.branches import (
    Branch,
    Branches,
    BranchStatus,
    copy_begun_files,
    lost_fork,
    problem_of,
    remove_last_branch,
)
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import SinkTables
from headrace.log.facts import NO_DECLARATIONS, without_copies
from headrace.log.lease import JobLease
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.log.marks import open_intents, refuse_erased
from headrace.names import counted
from headrace.sources.interval import Interval
from headrace.storage.delta_schema import plain_field
from headrace.storage.files import Usage
from headrace.storage.overlay import DELETED, Base
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, FORMAT_VERSION, tables_in

WITHOUT_STATE: Final[dict[str, Any]] = {
    "versions": {},
    "outputs": {},
    "operators": {},
    "declared": NO_DECLARATIONS,
}
"""Fields of a checkpoint that records input, and whose state is not in the tables of its log."""


def fork(
    config: JobConfig,
    name: str,
    at: int | str | None,
    run_id: str,
    note: str | None = None,
    *,
    settings: Mapping[str, str] | None = None,
    requested: Interval | None = None,
) -> Branch:
    """Make a branch that begins at a checkpoint: an id, a savepoint's name, a time, or the last one (None).

    `settings` replace values of the job's file on the branch (see `with_settings`); `requested` is the interval of a backfill. Needs no lease: a run may hold the job. Finishes a
    branch that an interrupted call has begun, with the settings of that call. Raises `ConfigError` for a bad or taken name, an
    unknown checkpoint, one that no branch can begin at, and settings that a branch cannot have; `StorageError` when files of the
    checkpoint are gone, and `FencedError` when somebody drops the branch meanwhile.
    """
    changed = with_settings(config, settings or {})
    on_branch = changed.on_branch(checked_name(name, "branch name"))
    if settings:
        checked_plan(changed)  # reports wrong settings now, not in the first run
    branches = Branches(config)
    begun = _broken_off(branches, on_branch)
    if begun is None:
        origin = _Origin.of(config, at)
        if (refusal := origin.refusal()) is not None:
            raise refusal
        begun = origin.branch(name, run_id, note, settings=on_branch.settings, requested=requested)
        _clear_remains(config, branches, name, run_id)
        branches.add(begun)
    elif not log_of(on_branch).checkpoints:
        remove_last_branch(config, begun)  # remains of the interrupted fork
    crash_points.reached("fork.listed")
    # Read all again after the row is committed: a vacuum or an erasure that has not seen the row is committed by now.
    with _half_made(config, name):
        origin = _Origin.of(config, begun.fork_id)
        refusal = origin.refusal()
    if refusal is not None:
        branches.withdraw(begun)
        raise refusal
    with _half_made(config, name):
        _make_tables(config, on_branch, begun, origin.sinks)
        copy_begun_files(origin.checkpoint, config, on_branch)
    crash_points.reached("fork.tables")
    own = log_of(on_branch)
    own.create()
    own.begin([*_before(origin.lineage), _fork(origin.log, origin.checkpoint, begun)])
    _confirm(config, begun)
    return begun


@dataclass(frozen=True, slots=True)
class _Origin:
    """Checkpoint of a job that a branch is to begin at, as its log is now."""

    config: JobConfig
    log: CheckpointLog
    checkpoint: Checkpoint

    @classmethod
    def of(cls, config: JobConfig, at: int | str | None) -> _Origin:
        """Read the log. Raises `ConfigError` for an unknown checkpoint."""
        log = log_of(config)
        return cls(config, log, log.resolve(config, at))

    @property
    def lineage(self) -> Lineage:
        """Return the job's lineage up to the checkpoint."""
        return self.log.lineage.to(self.checkpoint)

    @property
    def sinks(self) -> SinkTables:
        """Return the tables of the sinks at the checkpoint."""
        return self.checkpoint.sink_tables

    def refusal(self) -> HeadraceError | None:
        """Return the error for a checkpoint that no branch can begin at; None if one can. Raises `StorageError` where nobody can tell."""
        number, job = self.checkpoint.checkpoint_id, self.config.job
        try:
            _refuse_origin(self.config, self.log, self.checkpoint)
        except HeadraceError as error:
            return error
        check = self._check()
        try:
            problem = check.problem(self.checkpoint)
        except SinkMismatchError as error:
            return self._unpublished() if self.checkpoint is self.log.last else error
        if (of_variants := self._sink_with_variants(check)) is not None:
            return of_variants
        lists_all = f"Nothing was changed. 'headrace checkpoints {job}' lists all."
        return (
            None
            if problem is None
            else StorageError(f"no branch can begin at checkpoint {number}: {problem}. {lists_all}")
        )

    def _sink_with_variants(self, check: RestoreCheck) -> HeadraceError | None:
        """Return the error for a sink with VARIANT columns: rows of a branch have texts there."""
        for name, history in sorted(check.histories.items()):
            if history.table is not None and (columns := history.table.form.variants):
                return ConfigError(
                    f"no branch can begin: sink '{name}' at {history.table.uri} has VARIANT columns ({', '.join(sorted(columns))}), and the "
                    "table of a branch cannot build on them. Nothing was changed. Give the table texts of JSON there instead."
                )
        return None

    def branch(self, name: str, run_id: str, note: str | None, **fields: Any) -> Branch:
        """Return a new branch that begins here."""
        histories = self._check().histories
        return Branch(
            name=name,
            status=BranchStatus.OPEN,
            fork_id=self.checkpoint.checkpoint_id,
            versions=dict(self.checkpoint.versions),
            sinks={name: of.version_of(self.lineage) for name, of in histories.items() if of.table is not None},
            created_at=clock.now(),
            run_id=run_id,
            note=note,
            made_at=self.log.checkpoints[-1].checkpoint_id,
            **fields,
        )

    def _unpublished(self) -> HeadraceError:
        """Return the error for the job's last checkpoint if a sink does not have it: its run has died, or is about to publish it."""
        number, job = self.checkpoint.checkpoint_id, self.config.job
        return ConfigError(
            f"no branch can begin at checkpoint {number} yet: it is committed, and not published to every sink. Nothing was changed. The next "
            f"run of the job publishes it ('headrace run {job}'): create the branch then, or at an earlier checkpoint (--at)."
        )

    def _check(self) -> RestoreCheck:
        return RestoreCheck(self.config, self.log.checkpoints, self.sinks)


def _clear_remains(config: JobConfig, branches: Branches, name: str, run_id: str) -> None:
    """Remove what an interrupted drop or promotion has left of the last branch with a name; finish the promotion first."""
    ended = branches.ended(name)
    if ended is not None and ended.status is BranchStatus.PROMOTING:
        with open_job(
            config, run_id
        ):  # publishes, takes over the files that the job reads next, and removes the branch
            branches.refresh()
        ended = branches.ended(name)
    if ended is not None:
        remove_last_branch(config, ended)


@contextmanager
def _half_made(config: JobConfig, name: str) -> Iterator[None]:
    """Add to a storage error how a branch is finished or removed that is listed, and not made yet."""
    try:
        yield
    except StorageError as error:
        msg = (
            f"{error} Branch '{name}' of job '{config.job}' is listed, but not made yet: run the command again, or remove it with "
            f"'headrace branch drop {config.job} {name}'."
        )
        raise StorageError(msg) from error


def _confirm(config: JobConfig, new: Branch) -> None:
    """Raise `FencedError` if somebody has dropped the branch while this call made it, and remove what it made."""
    branches = Branches(config)
    if (dropped := branches.dropped(new.name)) is not None:
        remove_last_branch(config, dropped)
    if not any((branch.name, branch.created_at) == (new.name, new.created_at) for branch in branches.open):
        msg = f"lost branch '{new.name}' of job '{config.job}' while it was made: somebody has dropped it meanwhile. Run the command again."
        raise FencedError(msg)


def drop_branch(
    config: JobConfig, name: str, run_id: str, note: str | None = None, *, requested: Interval | None = None
) -> Branch:
    """Remove a branch with all its tables; finish an interrupted call. `requested`: a backfill forks it anew for this interval.

    Returns the dropped branch, also if it was dropped before. Raises `ConfigError` when no branch had the name, or the last one was
    promoted, `FencedError` while a run holds it.
    """
    branches = Branches(config)
    if (dropped := branches.dropped(name)) is not None:
        remove_last_branch(config, dropped)
        return dropped
    branches.get(name)
    on_branch = config.on_branch(name)
    log = log_of(on_branch)
    if log.exists:
        lease = JobLease(log, run_id, clock.unique_id(), config.run.lease.total_seconds())
        with lease.claimed():
            dropped = branches.drop(name, note, requested)
    else:
        dropped = branches.drop(name, note, requested)
    crash_points.reached("branch.dropped")
    remove_last_branch(config, dropped)
    return dropped


def log_of(config: JobConfig) -> CheckpointLog:
    """Return the log of a job; of the branch if `config` is a branch's."""
    return CheckpointLog(JobFolder.of(config))


def linked(checkpoints: Iterable[Checkpoint], parent_id: int | None = None) -> list[Checkpoint]:
    """Return the checkpoints that record input, each with the one before it as parent, and the first with `parent_id`.

    The logs of branches get a copy of a job's, and the log of the job gets one of a branch that is promoted.
    """
    chain: list[Checkpoint] = []
    for checkpoint in checkpoints:
        if checkpoint.kind in {Kind.INITIAL, Kind.BATCH, Kind.REQUEUE, Kind.ACKNOWLEDGEMENT}:
            chain.append(replace(checkpoint, parent_id=chain[-1].checkpoint_id if chain else parent_id))
    return chain


def _refuse_origin(config: JobConfig, log: CheckpointLog, origin: Checkpoint) -> None:
    """Raise `ConfigError` for a checkpoint that no branch can begin at."""
    refuse_without_state(config, origin)
    refuse_erased(config.job, log.checkpoints, origin.checkpoint_id, brings_back=False)
    problem = None
    if origin.format_version != FORMAT_VERSION:
        problem = f"its state has format {origin.format_version}, and this program writes format {FORMAT_VERSION}: fork a later checkpoint"
    elif origin.max_parallelism != config.max_parallelism:
        problem = f"its state has {counted(origin.max_parallelism, 'key group')}, and the job's file says {config.max_parallelism}: fork a later checkpoint"
    if problem is not None:
        msg = f"no branch can begin at checkpoint {origin.checkpoint_id}: {problem}. Nothing was changed."
        raise ConfigError(msg)


def _broken_off(branches: Branches, on_branch: JobConfig) -> Branch | None:
    """Return the branch with this name if its fork was interrupted: it is listed, and its log is empty. Else None."""
    listed = (branch for branch in branches.open if branch.name == on_branch.branch)
    return next((branch for branch in listed if not log_of(on_branch).checkpoints), None)


def _make_tables(config: JobConfig, on_branch: JobConfig, branch: Branch, sinks: SinkTables) -> None:
    """Create the empty tables of a branch, each on the job's table at the version of the fork."""
    folder = JobFolder.of(on_branch)
    for name in tables_in(branch.versions):
        store = folder.table(name)
        store.create(ALL_TABLES[name].schema, description=Base(f"../../../{name}", branch.versions[name]).described())
    for name, version in branch.sinks.items():
        uri = config.sinks[name].table_path
        store = folder.at(on_branch.sinks[name].table_path).table()
        below = folder.at(uri).table().at(version)
        key = sinks[name].key if config.sinks[name].mode == "merge" else ()
        extra = [pa.field(DELETED, pa.bool_())] if key else []
        written = {column["name"] for column in sinks[name].schema["fields"]}
        # What fills the other columns of a table stays with it.
        fields = [plain_field(column) for column in below.schema]
        fields = [column if column.name in written else column.with_nullable(True) for column in fields]
        columns = pa.schema([*fields, *extra])
        store.create(columns, below.partition_columns, Base(uri, version, key).described())


def _before(lineage: Lineage) -> list[Checkpoint]:
    """Return the job's lineage up to the fork, as the log of the branch has it: input without state."""
    return [replace(checkpoint, **WITHOUT_STATE) for checkpoint in linked(lineage.checkpoints)]


def _fork(log: CheckpointLog, origin: Checkpoint, branch: Branch) -> Checkpoint:
    """Return the first checkpoint of the branch itself."""
    number = origin.checkpoint_id + 1
    before = linked(log.lineage.to(origin).checkpoints)
    return replace(
        origin,
        checkpoint_id=number,
        kind=Kind.FORK,
        parent_id=before[-1].checkpoint_id if before else None,
        name=None,
        run_id=branch.run_id or "",
        attempt_id=clock.unique_id(),
        committed_at=clock.now(),
        versions=dict.fromkeys(tables_in(branch.versions), 0),
        outputs={},
        operators=without_copies(origin.operators),
        metrics={},
        seconds={},
        services={},
        row_times={},
        watermark_steps=(),
        note=branch.note or f"forked at checkpoint {origin.checkpoint_id}",
        cause=None,
        restored_from=origin.checkpoint_id,
        erased=(),
        processing_time=None,
        ended_at=None,
        follows=None,
    )


@dataclass(frozen=True, slots=True)
class BranchUsage:
    """Storage that a branch costs at present."""

    branch: Branch
    age: int
    """Time since the branch was made (ms)."""
    own: Usage
    """Files in the folder of the branch."""
    held_back: Usage
    """Files of the job that a vacuum would delete if there were no branch, and that the fork of this one needs. Branches that have the
    same fork hold back the same files."""
    problem: str | None = None
    """Sentence on a branch that is half made, or whose fork cannot be read; None for others."""


def branch_usages(config: JobConfig) -> Sequence[BranchUsage]:
    """Return the cost of each open branch of a job, oldest first; empty if `config` is itself a branch's."""
    branches = Branches(config).open
    if not branches:
        return ()
    checkpoints = CheckpointLog(JobFolder.of(config)).checkpoints
    unneeded = UnneededFiles(config, checkpoints, open_intents(config, checkpoints))
    without = unneeded.besides(()).files
    lost = {branch.name for branch in branches if lost_fork(config, branch) is not None}
    forks = {branch.fork_id for branch in branches if branch.name not in lost}
    held = {fork: without - unneeded.besides({fork}).files for fork in forks}
    return [_usage(config, branch, held.get(branch.fork_id, set())) for branch in branches]


def _usage(config: JobConfig, branch: Branch, held_back: Collection[str]) -> BranchUsage:
    own = JobFolder.of(config.on_branch(branch.name)).usage()
    return BranchUsage(
        branch=branch,
        age=clock.now() - branch.created_at,
        own=sum(own.values(), Usage()),
        held_back=JobFolder.of(config).usage_of(held_back),
        problem=problem_of(config, branch),
    )
