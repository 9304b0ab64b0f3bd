"""Commit protocol: add a micro-batch to a job as a whole, or not at all.

    lease      one driver at a time holds the job's lease, a row of `checkpoints`
    claim      each sink's table belongs to this job, or to nobody: then the job claims it
    fence      undo what no checkpoint names; publish the last checkpoint, if that has not happened
    run        tasks write files under names of their own; no commit names them yet
    prepare    add the files to the state tables, each as its version at the parent + 1
    commit     append the checkpoint's row to `checkpoints`: from here on the checkpoint counts
    publish    write the checkpoint's outputs to each sink, in a transaction with the checkpoint's id

A step may assume only that the steps before it are done: a process may die after any of them. After a crash before
`commit`, the next claim finds tables ahead of the last checkpoint, and its fence undoes that. After a crash behind
`commit`, the next claim finds an unpublished checkpoint, and publishes it. Every commit is a compare-and-set, so a
process that was wrongly taken for dead fails at its next commit. docs/commit-protocol.md explains this with pictures.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace import clock, crash_points
from headrace.commit.branch_code import fork_anew
from headrace.commit.job_tables import JobTables, Versions
from headrace.commit.migrations import next_migration
from headrace.commit.publish import Publisher, SinkStatus
from headrace.commit.schema_check import check_sink_keys
from headrace.commit.sink_position import check_sinks
from headrace.config import JobConfig
from headrace.errors import ConfigError, FencedError, HeadraceError, SinkMismatchError
from headrace.log.branches import finish_promotion
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import OperatorKeys, SinkTables, StateSchemas, remembered_keys, to_schemas, to_stored
from headrace.log.facts import Declarations
from headrace.log.lease import JobLease, Notify, silent
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.log.marks import refuse_dropped
from headrace.names import counted
from headrace.plan.loader import plan_of, sink_schemas
from headrace.plan.stages import Plan
from headrace.sinks.sink import NO_WRITERS, Publication, Sink, SparkWriters
from headrace.sinks.table_fit import Staging
from headrace.storage.files import StagedFile
from headrace.storage.table import TableMissingError
from headrace.tables.changelog import stage_state
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import FORMAT_VERSION, RESPONSES
from headrace.tables.view import TableView

OF_STATE = (
    "max_parallelism",
    "sources",
    "timelines",
    "work",
    "operators",
    "edges",
    "pauses",
    "declared",
    "watermark",
    "interval_start",
    "interval_end",
    "format_version",
)
"""Fields of a checkpoint that describe the state. A checkpoint copies them from its parent, a restore from its target."""

SinkCheck = Callable[[JobConfig, Sequence[Checkpoint], Mapping[str, Sink]], bool]
"""Function that compares the sinks, which are open, with all checkpoints of a job. Returns whether the job can continue from the last checkpoint, and
publish it; if False, the caller restores. Raises `SinkMismatchError` when neither is possible."""


@contextmanager
def open_job(
    config: JobConfig,
    run_id: str,
    *,
    create: bool = False,
    force: bool = False,
    sink_check: SinkCheck = check_sinks,
    plan: Plan | None = None,
    restores: bool = False,
    writers: SparkWriters = NO_WRITERS,
    notify: Notify = silent,
) -> Iterator[OpenJob]:
    """Claim a job, fence it, and hold it for the length of the block.

    `create` makes a job's tables and its initial checkpoint the first time. `sink_check` may also open a job that disagrees with
    its sinks, so that the caller restores it. Otherwise state in an older format is migrated first, with a checkpoint for each step.

    If the caller `restores` the job, a sink may refuse the rows of the last checkpoint, which the restore replaces.

    A run gives its `plan`, and writes its sinks as today's code says. Without a plan the last checkpoint describes the sinks, and no
    user code is loaded, except for sinks that it does not know yet, and for tables that are missing or do not fit it: a table that is
    made anew is one for today's code.

    Raises `FencedError` when another run holds the job, `SinkMismatchError` when the job and a sink disagree on what was
    published, and `ConfigError` when the job was never run (without `create`) or is being dropped, when the number of key groups
    differs from the stored one, when a sink was written by another primary key, or when the format is newer than this program.
    """
    attempt_id = clock.unique_id()
    refuse_dropped(config)
    log = CheckpointLog(JobFolder.of(config))
    if not log.exists:
        if not create:
            msg = f"job '{config.job}' has no checkpoints in {config.job_folder}: run it first"
            raise ConfigError(msg)
        log.create()
    lease = JobLease(log, run_id, attempt_id, config.run.lease.total_seconds(), notify)
    tables = JobTables(JobFolder.of(config), run_id, attempt_id)
    sinks = sinks_of(config, log, plan)
    publisher = Publisher(config, to_schemas(sinks), writers)
    with _while_the_branch_is_there(config), lease.claimed(force=force):
        refuse_dropped(config)  # a drop marks the job while it holds the lease: no drop can begin from here on
        sinks, publisher = (sinks, publisher) if plan is not None else _fitting(config, sinks, publisher)
        publisher.check_columns({} if log.last is None else to_schemas(log.last.sink_tables))
        if plan is not None:
            check_sink_keys(config, log, sinks)
            _refuse_without_spark(config, publisher, writers)
        # This must follow the claim: until then another run may publish, and the sinks may be newer than this log.
        try:
            publishes = sink_check(config, log.checkpoints, publisher.sinks)
        except SinkMismatchError:
            lease.confirm()  # if another run has taken the job, report that: it has published to the sinks
            raise
        publisher.check_places()
        if log.last is None:
            versions = tables.create()
            crash_points.reached("create.half")
            lease.append(initial_checkpoint(config, run_id, attempt_id, versions, sinks))
        tables_of_sinks = publisher.create_sinks(log.lineage)  # after checkpoint 0, which says who claims them
        job = OpenJob(config, log, lease, tables, publisher=publisher, sink_tables=sinks, notify=notify)
        check_key_groups(config, job.last)
        if plan is not None:
            publisher.check_rules(tables_of_sinks)
        job.fence(publishes=publishes, restores=restores)
        job.add_tables()
        if publishes:  # before a restore, migrations could take ids of checkpoints that a sink has and the log has lost
            job.migrate_format()
        yield job


def _refuse_without_spark(config: JobConfig, publisher: Publisher, writers: SparkWriters) -> None:
    """Raise `ConfigError` for sinks whose tables only Spark can write, in a run without it."""
    if writers.write is None and (problems := [*publisher.needs_spark()]):
        listed = "\n".join(f"- {problem}" for problem in problems)
        msg = (
            f"job '{config.job}' needs Spark, and this run has none. Nothing was taken in.\n{listed}\nRun it on Spark: headrace run "
            f"{config.job} --runner spark"
        )
        raise ConfigError(msg)


@contextmanager
def _while_the_branch_is_there(config: JobConfig) -> Iterator[None]:
    """Raise `FencedError` if a table of a branch is gone: others may remove a branch while the holder of its lease sleeps."""
    try:
        yield
    except (TableMissingError, SinkMismatchError) as error:
        is_gone = isinstance(error, TableMissingError) or isinstance(error.__cause__, TableMissingError)
        if config.branch is None or not is_gone:
            raise
        msg = (
            f"lost branch '{config.branch}' of job '{config.job}': {error}. It was dropped, promoted or forked anew meanwhile. "
            f"'headrace branch list {config.job}' shows what there is."
        )
        raise FencedError(msg) from error


class OpenJob:
    """Claimed and fenced job. `last` is the checkpoint to build on, `versions` has the versions of the tables."""

    def __init__(
        self,
        config: JobConfig,
        log: CheckpointLog,
        lease: JobLease,
        tables: JobTables,
        *,
        publisher: Publisher,
        sink_tables: SinkTables,
        notify: Notify = silent,
    ) -> None:
        """Store the parts. Use `open_job` instead."""
        self.config = config
        self.notify = notify
        self.sink_tables = sink_tables
        """Tables of the sinks as this run writes them. Its first micro-batch records them."""
        self.versions: Versions = {}
        self.declared_schemas: StateSchemas | None = None
        """Types of the states in the code of this run; None for a command without user code. The next micro-batch records them."""
        self.declared_keys: OperatorKeys = {}
        """Keys of the operators in the code of this run, recorded with the schemas."""
        self._log = log
        self._lease = lease
        self._tables = tables
        self._publisher = publisher

    @property
    def log(self) -> CheckpointLog:
        """Return the job's log, for reading."""
        return self._log

    @property
    def run_id(self) -> str:
        """Return the run that holds the job."""
        return self._lease.run_id

    @property
    def stagings(self) -> dict[str, Staging]:
        """Return how tasks stage rows, by sink, so that they fit the tables as they are now."""
        return self._publisher.stagings()

    @property
    def attempt_id(self) -> str:
        """Return the attempt of the run, unique to this process: names of staged files have it."""
        return self._lease.attempt_id

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """Return all checkpoints of the job, oldest first, also those that a restore left behind."""
        return self._log.checkpoints

    @property
    def lineage(self) -> Lineage:
        """Return the lineage that leads to the last one."""
        return self._log.lineage

    @property
    def unreported(self) -> list[Checkpoint]:
        """Return the micro-batches of the run before, if that died before its end: no report has their warnings."""
        died = self._lease.abandoned
        return [
            checkpoint
            for checkpoint in self.lineage.checkpoints
            if checkpoint.kind is Kind.BATCH and checkpoint.attempt_id == died
        ]

    @property
    def last(self) -> Checkpoint:
        """Return the last committed checkpoint."""
        last = self._log.last
        assert last is not None  # noqa: S101 - open_job has made the initial one
        return last

    def sink_status(self) -> dict[str, SinkStatus]:
        """Return version and last publication of each sink, except missing or unreadable sinks."""
        return self._publisher.statuses()

    @property
    def next_id(self) -> int:
        """Return the id that the next checkpoint gets. Ids only ever grow."""
        return self.last.checkpoint_id + 1

    def new_incarnation(self, above: Publication) -> dict[str, Any]:
        """Return fields for `commit` that make a checkpoint begin a new incarnation of the job.

        Its id and its incarnation are higher than those of the job and of `above`: Delta's transactions only grow.
        """
        incarnation = max(self.last.incarnation, above.incarnation or 0) + int(clock.unique_id()[-12:], 16) + 1
        return {"checkpoint_id": max(self.last.checkpoint_id, above.checkpoint_id) + 1, "incarnation": incarnation}

    @property
    def folder(self) -> JobFolder:
        """Return the job's folder."""
        return JobFolder.of(self.config)

    @property
    def state_schemas(self) -> StateSchemas:
        """Return the types of the states at the last checkpoint."""
        return self.last.state_schemas

    @property
    def operator_keys(self) -> OperatorKeys:
        """Return the keys of the operators at the last checkpoint."""
        return self.last.operator_keys

    def checkpoint(self, name: int | str) -> Checkpoint:
        """Return a checkpoint by its id, or the name of a savepoint. Raises `ConfigError` when there is none."""
        return (
            self._log.savepoint(name, self.config.job)
            if isinstance(name, str)
            else self._log.get(name, self.config.job)
        )

    def view(self, table: str) -> TableView:
        """Return the rows of a state table that the next checkpoint builds on."""
        return self.folder.view(table, self.versions[table])

    def stage(self, table: str, label: str, rows: pa.Table) -> StagedFile:
        """Write rows of a state table as a file that no commit names yet. Raises `StorageError` when the storage refuses."""
        name = f"{self.next_id:010d}-{label}-{clock.unique_id()[:12]}.parquet"
        return stage_state(self.folder, table, name, rows)

    def check_lease(self) -> None:
        """Raise `FencedError` if another run has taken the job."""
        self._lease.check()

    def confirm_lease(self) -> None:
        """Read the log again. Raises `FencedError` if another run has taken the job."""
        self._lease.confirm()

    def fence(self, *, publishes: bool = True, restores: bool = False) -> None:
        """Undo commits that no checkpoint names; publish the last checkpoint, unless a restore follows that replaces it.

        If the caller `restores` the job, a sink may refuse the rows of the last checkpoint.
        """
        committed = self.last.versions
        self.versions = self._tables.fence(committed)
        crash_points.reached("fence.after")
        undone = sorted(name for name, version in self.versions.items() if version != committed[name])
        if undone:
            self.notify("fenced", f"undid what an earlier attempt left in {', '.join(undone)}")
        published = 0
        try:
            published = self.publish() if publishes else 0
        except SinkMismatchError as error:
            if not (restores and error.is_refusal):
                raise
        finish_promotion(self.config, self.last)
        if published:
            self.notify("published", f"published checkpoint {self.last.checkpoint_id} to {counted(published, 'sink')}")

    def add_tables(self) -> None:
        """Create the table of responses if a service keeps them, and the job has no such table yet. The next checkpoint names it."""
        if self.config.keeps_responses and RESPONSES not in self.versions:
            self.versions = {**self.versions, RESPONSES: self._tables.add(RESPONSES)}

    def commit(
        self,
        kind: Kind,
        *,
        files: Mapping[str, Sequence[StagedFile]] | None = None,
        versions: Versions | None = None,
        before: Sequence[Checkpoint] = (),
        base: Checkpoint | None = None,
        **fields: Any,
    ) -> Checkpoint:
        """Prepare, commit and publish a checkpoint on top of `last`.

        Adds `files` to their tables; with `versions`, the tables are at these versions already. Commits the checkpoints `before` it
        along with it. Other `fields` are as in `Checkpoint`; fields that describe the state (sources, operators, watermark, interval, ...)
        are those of `base`, by default of the parent, unless given. Raises `FencedError` when another run has taken the job, `StorageError`
        when a sink refuses (the checkpoint is committed then, and the next run publishes it).
        """
        self.check_lease()
        prepared = versions if versions is not None else self._tables.prepare(files or {}, self.versions)
        checkpoint = self._next_checkpoint(kind, prepared, base or self.last, fields)
        crash_points.reached("commit.before")
        self._lease.append(checkpoint, before)
        crash_points.reached("commit.after")
        self.versions = prepared
        self.publish()
        crash_points.reached("publish.after")
        return checkpoint

    def publish(self) -> int:
        """Publish the last checkpoint if it is not published; return the number of sinks written."""
        return self._publisher.publish(self.last, self.lineage)

    def replace_table(self, table: str, staged: Sequence[StagedFile]) -> int:
        """Make staged files the whole content of a state table; return its version, for `commit`. See `JobTables.replace`."""
        return self._tables.replace(table, staged, self.versions[table])

    def add_to_tables(self, files: Mapping[str, Sequence[StagedFile]], parents: Versions) -> Versions:
        """Add staged files to state tables at given versions; return the versions of all, for `commit`. See `JobTables.prepare`."""
        return self._tables.prepare(files, parents)

    def write_sinks_as(self, tables: SinkTables) -> None:
        """Publish with other columns from here on. Raises `ConfigError` when a sink cannot take them."""
        publisher = self._publisher.writing(to_schemas(tables))
        publisher.check_columns(to_schemas(self.sink_tables))
        check_sink_keys(self.config, self._log, tables)
        publisher.create_sinks(self.lineage)
        self._publisher, self.sink_tables = publisher, tables

    def restore_tables(self, targets: Versions) -> Versions:
        """Bring state tables back to old versions; return the versions of all, for `commit`. See `JobTables.restore`."""
        return {**self.versions, **self._tables.restore(targets, self.versions)}

    def compact_log(self) -> None:
        """Rewrite `checkpoints` as one file, so that it is quick to read."""
        self._lease.compact_log()

    def migrate_format(self) -> None:
        """Migrate the state to this program's format, with a checkpoint for each step; do nothing if it has that format.

        A crash before a step's commit leaves tables ahead of the last checkpoint; the next fence undoes that.
        """
        while (migration := next_migration(self.last.format_version)) is not None:
            self.check_lease()
            crash_points.reached("migration.before")
            versions = migration.prepare(self._tables, self.versions)
            crash_points.reached("migration.prepared")
            note = f"format {migration.number}: {migration.what}"
            checkpoint = self.commit(Kind.MIGRATION, versions=versions, format_version=migration.number, note=note)
            self.notify("migrated", f"checkpoint {checkpoint.checkpoint_id}: {note}")

    def _next_checkpoint(self, kind: Kind, versions: Versions, base: Checkpoint, fields: dict[str, Any]) -> Checkpoint:
        parent = self.last
        given = {
            "checkpoint_id": self.next_id,
            "parent_id": parent.checkpoint_id,
            "incarnation": parent.incarnation,
            **{name: getattr(base, name) for name in OF_STATE},
            **fields,
        }
        if kind is Kind.BATCH:
            given["declared"] = self._declared_now(given["declared"])
        return Checkpoint(
            kind=kind,
            run_id=self.run_id,
            attempt_id=self.attempt_id,
            versions=versions,
            committed_at=clock.now(),
            **given,
        )

    def _declared_now(self, recorded: Declarations) -> Declarations:
        """Return what a micro-batch of this run records of its code."""
        declared = recorded.with_keys(remembered_keys(recorded.keys, self.declared_keys))
        if self.declared_schemas is not None:
            declared = declared.with_states(self.declared_schemas)
        return replace(declared, sinks=self.sink_tables)


def sinks_of(config: JobConfig, log: CheckpointLog, plan: Plan | None = None) -> SinkTables:
    """Return the tables of a job's sinks: from `plan`, else from the log, and from the job's pipeline those that the log does not describe.

    The last checkpoint may be a restore to one from before a sink was added, or got its name.
    """
    stored = {} if plan is not None or log.last is None else log.last.sink_tables
    if not config.sinks.keys() <= stored.keys():
        stored = {**to_stored(sink_schemas(plan or plan_of(config.code), config.appended)), **stored}
    return {name: table for name, table in stored.items() if name in config.sinks}


def _fitting(config: JobConfig, sinks: SinkTables, publisher: Publisher) -> tuple[SinkTables, Publisher]:
    """Return sinks and their publisher, with today's columns where a table is missing, or does not fit the recorded ones."""
    unfit = publisher.unfit()
    if not unfit:
        return sinks, publisher
    sinks = {**sinks, **_of_code(config, unfit)}
    return sinks, publisher.writing(to_schemas(sinks))


def _of_code(config: JobConfig, names: Collection[str]) -> SinkTables:
    """Return the tables of these sinks as today's code has them; nothing where it cannot be loaded: recorded columns do, too."""
    try:
        tables = to_stored(sink_schemas(plan_of(config.code), config.appended))
    except HeadraceError:
        return {}
    return {name: table for name, table in tables.items() if name in names}


def initial_checkpoint(
    config: JobConfig, run_id: str, attempt_id: str, versions: Versions, sinks: SinkTables
) -> Checkpoint:
    """Return the checkpoint that a new job begins with."""
    return Checkpoint(
        checkpoint_id=0,
        kind=Kind.INITIAL,
        run_id=run_id,
        attempt_id=attempt_id,
        max_parallelism=config.max_parallelism,
        versions=versions,
        committed_at=clock.now(),
        incarnation=_new_incarnation(),
        declared=Declarations(sinks=sinks),
        format_version=FORMAT_VERSION,
    )


def _new_incarnation() -> int:
    """Return a new incarnation of a job: 60 bits, so that it fits into Delta's transactions."""
    return int(clock.unique_id()[-15:], 16)


def check_key_groups(config: JobConfig, last: Checkpoint) -> None:
    """Raise `ConfigError` when the numbers of key groups in the state and in the job's file differ."""
    if last.max_parallelism == config.max_parallelism:
        return
    if config.branch is not None:
        msg = (
            f"branch '{config.branch}' of job '{config.job}' has {counted(last.max_parallelism, 'key group')}, and the job's file says "
            f"{config.max_parallelism}. Nothing was changed. A branch keeps the number that it began with: it cannot go on beside a job "
            f"that was rescaled. {fork_anew(config)}"
        )
        raise ConfigError(msg)
    msg = (
        f"{config.where('max_parallelism')}: the state has {counted(last.max_parallelism, 'key group')}, not {config.max_parallelism}. "
        f"Nothing was changed. Write max_parallelism: {last.max_parallelism} there; or, to give the state the other number: "
        f"headrace rescale {config.job} --max-parallelism {config.max_parallelism} (a dry run without --apply)."
    )
    raise ConfigError(msg)
