"""Changes of the owner of a sink's table: a take-over from another job, and a new name of the sink.

    take-over    the table becomes this sink's, without rows: those of the former owner stay in its history
    rename       the table, with its rows and its position, becomes that of the sink's new name

Both hold the job and first publish its last checkpoint. One commit of the table, a compare-and-set, then changes everything; a checkpoint
of kind `migration` records who did it and why. A process may die between both: the table already belongs to its new owner then.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.protocol import OpenJob, open_job, sinks_of
from headrace.commit.publish import Publisher
from headrace.commit.sink_position import MismatchKind, SinkPosition
from headrace.config import JobConfig, SinkConfig
from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import SinkTable, to_schemas
from headrace.log.log import CheckpointLog
from headrace.log.sink_history import claim_of
from headrace.plan.loader import plan_of
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.registry import sink_of
from headrace.storage.files import Usage
from headrace.storage.refusals import doing
from headrace.storage.table import Claim, VersionTakenError
from headrace.tables.folder import JobFolder


@dataclass(frozen=True, slots=True)
class OtherOwner:
    """Table of a sink that belongs to another owner: its location, its size, and a clause on the owner."""

    sink: str
    uri: str
    usage: Usage
    owner: str


def other_owner(config: JobConfig, sink: str) -> OtherOwner:
    """Return what `take_over` would take. Changes nothing, needs no lease. Raises `ConfigError` as `take_over` does."""
    checkpoints = CheckpointLog(JobFolder.of(config)).checkpoints
    position = SinkPosition(config, _known(config, sink), checkpoints)
    mismatch = position.owned_by_another
    uri = config.sinks[sink].path
    if mismatch is None:
        msg = (
            f"there is nothing to take over: sink '{sink}' at {uri} belongs to job '{config.job}' already, or to nobody: then the next run "
            "claims it. Nothing was changed."
        )
        raise ConfigError(msg)
    if mismatch.kind is MismatchKind.COPIED:
        raise ConfigError(position.owner_problem(mismatch))
    usage = sum(JobFolder.of(config).at(uri).usage().values(), Usage())
    return OtherOwner(sink, uri, usage, mismatch.sentence)


def take_over(config: JobConfig, sink: str, why: str, run_id: str) -> Checkpoint:
    """Make another owner's table that of a sink, without rows; return the checkpoint that records it.

    The former owner is refused from then on. A job that was never run gets its checkpoint 0. Raises `ConfigError` for an unknown sink, when
    the table belongs to nobody else, or has other columns than the pipeline writes; `FencedError` while a run holds the job;
    `SinkMismatchError` when the job disagrees with another sink whose table is its own. Then nothing has changed.
    """
    other_owner(config, sink)
    log = CheckpointLog(JobFolder.of(config))
    tables = sinks_of(config, log, plan_of(config.code))
    schemas = to_schemas({sink: tables[sink]})
    Publisher(config, schemas).check_columns({})
    others = _under_owners(config, log, besides=sink)
    with open_job(replace(config, sinks=others), run_id, create=True) as job:
        owner = other_owner(config, sink).owner
        target = sink_of(config, sink, *schemas[sink])
        crash_points.reached("take_over.before")
        _commit(job, target, lambda: target.take_over(target.latest(), _claim(config, sink, job, is_empty=True)))
        crash_points.reached("take_over.after")
        with doing(f"to empty sink '{sink}' at {target.uri}"):
            target.deliver(lambda _: ())
        note = f"sink '{sink}' took over {target.uri}, which {owner}: {why}"
        return _recorded(job, {**_stored(job), sink: tables[sink]}, note)


def rename_sink(config: JobConfig, old: str, new: str, run_id: str, why: str | None = None) -> Checkpoint:
    """Give the table of the sink `old` to the name `new`, which code and job file have now; return the checkpoint that records it.

    Rows and position stay. Raises `ConfigError` when the job has no sink `new`, still has `old`, or never had it, when the primary keys
    differ, or while messages wait to be sent; `FencedError` while a run holds the job; `SinkMismatchError` when the table is not that of
    `old`. Then nothing has changed.
    """
    former = renamable_sink(config, old, new)
    with open_job(former, run_id) as job:
        stored = _stored(job)
        before, after = sink_of(former, old), sink_of(config, new)
        _refuse_unsent(job, before)
        crash_points.reached("sink_rename.before")
        _commit(job, before, lambda: before.hand_over(before.latest(), _claim(config, new, job), after))
        crash_points.reached("sink_rename.after")
        tables = {new if name == old else name: table for name, table in stored.items()}
        return _recorded(job, tables, f"sink '{old}' is '{new}' now" + ("" if why is None else f": {why}"))


def renamable_sink(config: JobConfig, old: str, new: str) -> JobConfig:
    """Return the job with the former name of a sink, for `rename_sink`. Changes nothing. Raises `ConfigError` as that does."""
    _known(config, new)
    if old in config.sinks:
        msg = f"the job still has sink '{old}', so its table cannot become that of '{new}'. Nothing was changed. Rename it in {config.file} first."
        raise ConfigError(msg)
    log = CheckpointLog(JobFolder.of(config))
    stored = log.resolve(config).sink_tables
    if old not in stored:
        had = ", ".join(sorted(stored)) or "none that is recorded"
        msg = f"job '{config.job}' has no sink '{old}' at its last checkpoint (it has: {had}). Nothing was changed."
        raise ConfigError(msg)
    key = sinks_of(config, log, plan_of(config.code))[new].key
    if key != stored[old].key:
        msg = (
            f"sink '{old}' has the primary key {_listed(stored[old].key)}, and '{new}' has {_listed(key)}: rows of the one key are not found by "
            "the other. Nothing was changed. Give the new sink a path of its own."
        )
        raise ConfigError(msg)
    return replace(config, sinks={**_under_owners(config, log, besides=new), old: config.sinks[new]})


def _under_owners(config: JobConfig, log: CheckpointLog, besides: str) -> dict[str, SinkConfig]:
    """Return the job's other sinks, each under the name that owns its table: the former one, until its table is moved.

    Sinks whose tables belong to another job are left out. So several tables can be moved, or taken over, one after the other.
    """
    bound: dict[str, SinkConfig] = {}
    for name in config.sinks.keys() - {besides}:
        position = SinkPosition(config, name, log.checkpoints)
        owner = name if position.owned_by_another is None else position.own_owner
        if owner is not None and (owner == name or owner not in config.sinks):
            bound[owner] = config.sinks[name]
    return bound


def _known(config: JobConfig, sink: str) -> str:
    if sink not in config.sinks:
        msg = (
            f"job '{config.job}' has no sink '{sink}' (it has: {', '.join(sorted(config.sinks))}). Nothing was changed."
        )
        raise ConfigError(msg)
    return sink


def _claim(config: JobConfig, sink: str, job: OpenJob, *, is_empty: bool = False) -> Claim:
    claim = claim_of(config, sink, job.lineage, is_empty=is_empty)
    if claim is None:
        msg = f"job '{config.job}' has no number of its own yet, which a release before the claims did not give it: run it once, then try again"
        raise ConfigError(msg)
    return claim


def _commit(job: OpenJob, sink: DeltaTableSink, commit: Callable[[], None]) -> None:
    """Commit a change of the owner. Raises `StorageError` when another program writes to the table at the same time."""
    job.confirm_lease()
    try:
        commit()
    except VersionTakenError as error:
        msg = f"somebody else wrote to sink '{sink.name}' at {sink.uri} meanwhile ({error}). Nothing was changed: run the command again."
        raise StorageError(msg) from error


def _refuse_unsent(job: OpenJob, sink: DeltaTableSink) -> None:
    table = sink.latest()
    if sink.sent(table) < sink.published(table):
        msg = (
            f"sink '{sink.name}' has messages that are not sent (headrace status {job.config.job}). Nothing was changed. Go back to the former "
            "name, run the job once, then rename."
        )
        raise ConfigError(msg)


def _stored(job: OpenJob) -> dict[str, SinkTable]:
    return job.last.sink_tables


def _recorded(job: OpenJob, tables: dict[str, SinkTable], note: str) -> Checkpoint:
    declared = replace(job.last.declared, sinks=tables)
    return job.commit(Kind.MIGRATION, versions=job.versions, declared=declared, note=note)


def _listed(key: tuple[str, ...]) -> str:
    return ", ".join(key) or "none"
