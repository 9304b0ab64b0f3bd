"""Deleting a job: its folder, and its sinks on request.

    mark      hold the job and write `dropped.parquet` into its folder: nobody opens the job from now on
    sinks     delete the requested tables
    state     delete all else in the folder; of the tables, `checkpoints` last
    unmark    delete the mark and the folder

A process may die between any two steps: the next call continues from the mark, which also lists the sinks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from headrace import clock, crash_points
from headrace.config import JobConfig
from headrace.errors import ConfigError, SinkMismatchError
from headrace.log.branches import remove_local_copies
from headrace.log.lease import JobLease
from headrace.log.log import CheckpointLog
from headrace.log.marks import MARKER, DropMarker, read_marker, write_marker
from headrace.log.sink_history import names_of_owner, owner_number
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NEVER
from headrace.storage.files import Usage
from headrace.storage.refusals import doing
from headrace.storage.table import LOG, Snapshot, TableMissingError
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS


@dataclass(frozen=True, slots=True)
class SinkToDrop:
    """Table of a sink that a drop would delete: its place, and the last publication of the job."""

    name: str
    uri: str
    usage: Usage
    published: int
    """Last published checkpoint; -1 for a table that the job never wrote to."""

    refusal: str | None
    """Reason why the table cannot be deleted with the job; None if it can."""


@dataclass(frozen=True, slots=True)
class JobToDrop:
    """Parts of a job that a drop would delete: the content of its folder, by name, and its existing sinks."""

    folder: str
    parts: dict[str, Usage]
    sinks: tuple[SinkToDrop, ...]
    marker: DropMarker | None
    """Mark of an earlier drop that was interrupted; None without one."""


def droppable_job(config: JobConfig) -> JobToDrop:
    """Return what `drop_job` would delete. Changes nothing, needs no lease.

    Raises `ConfigError` when there is nothing in the job's folder.
    """
    return JobToDrop(config.job_folder, _parts(config), _sinks(config), read_marker(config))


def drop_job(config: JobConfig, why: str, run_id: str, *, sinks: bool = False) -> DropMarker:
    """Delete a job's folder and its local copies on this machine, with `sinks` also the tables of its sinks.

    A second call finishes an interrupted one. Raises `ConfigError` when the folder is empty, `FencedError` while a run holds
    the job, and `SinkMismatchError` for a sink that others write to as well; then nothing has changed.
    Raises `StorageError` when the storage refuses; then the job is marked, and nobody opens it.
    """
    parts = _parts(config)
    marker = _marked(config, why, run_id, _sinks(config) if sinks else ())
    crash_points.reached("drop.marked")
    for name, uri in marker.sinks.items():
        with doing(f"to delete sink '{name}' at {uri}"):
            JobFolder.of(config).at(uri).remove_folder()
    _remove_folder_of(config, parts)
    return marker


def _parts(config: JobConfig) -> dict[str, Usage]:
    parts = JobFolder.of(config).usage()
    if not parts:
        msg = f"job '{config.job}' has nothing in {config.job_folder}: it was never run, or is dropped already"
        raise ConfigError(msg)
    return parts


def _marked(config: JobConfig, why: str, run_id: str, sinks: Iterable[SinkToDrop]) -> DropMarker:
    """Hold the job and write the mark. Add sinks to a mark that exists already."""
    if refusals := [sink.refusal for sink in sinks if sink.refusal]:
        raise SinkMismatchError("\n".join(refusals))
    wanted = {sink.name: sink.uri for sink in sinks}
    before = read_marker(config)
    if before is not None:
        return _written(config, DropMarker(before.why, {**before.sinks, **wanted}, before.uid))
    log = CheckpointLog(JobFolder.of(config))
    if not log.exists:  # without a log, nobody can hold the job
        return _written(config, DropMarker(why, wanted))
    lease = JobLease(log, run_id, clock.unique_id(), config.run.lease.total_seconds())
    with lease.claimed():
        return _written(config, DropMarker(why, wanted, log.lineage.uid))


def _written(config: JobConfig, marker: DropMarker) -> DropMarker:
    write_marker(config, marker)
    return marker


def _remove_folder_of(config: JobConfig, parts: Iterable[str]) -> None:
    folder = JobFolder.of(config)
    for name in sorted(parts, key=lambda part: (part == CHECKPOINTS, part)):
        if name != MARKER:
            folder.remove_folder(name)
            folder.remove_file(name)
            crash_points.reached("drop.half")
    # A process that opened the job before the mark may have written once more.
    folder.delete(folder.files() - {MARKER})
    remove_local_copies(config)
    crash_points.reached("drop.deleted")
    folder.remove_file(MARKER)
    folder.remove_folder()


def _sinks(config: JobConfig) -> tuple[SinkToDrop, ...]:
    """Return the existing tables of the job's sinks, without those that an earlier drop has begun to delete."""
    marker = read_marker(config)
    begun = {} if marker is None else marker.sinks
    log = None if marker is not None else CheckpointLog(JobFolder.of(config))
    own, uid = (None, None if marker is None else marker.uid) if log is None else (log.incarnation, log.lineage.uid)
    sinks = (_sink(config, name, own, uid) for name in sorted(config.sinks) if name not in begun)
    return tuple(sink for sink in sinks if sink is not None)


def _sink(config: JobConfig, name: str, own: int | None, uid: int | None) -> SinkToDrop | None:
    sink, uri = sink_of(config, name), config.sinks[name].path
    with doing(f"to open sink '{name}' at {uri}"):
        try:
            table = sink.latest()
        except TableMissingError:
            return None
        published, incarnation = sink.published(table), sink.incarnation(table)
        owner = sink.owner(table)
        is_own = uid is not None and owner == owner_number(uid, name)
        of = None if owner is None or is_own else names_of_owner(table, owner, config.job)
        place = JobFolder.of(config).at(uri)
        files, usage = place.files(), sum(place.usage().values(), Usage())
    own_log = f"{config.sinks[name].table_path}/{LOG}/"
    where, refusal = f"sink '{name}' at {uri}", None
    if of is not None:
        refusal = f"{where} is the table of {of}"
    elif published == NEVER and _has_rows_of_others(table):
        refusal = f"{where} was never written by job '{config.job}', and others have written to it"
    elif own is not None and incarnation not in {None, own}:
        refusal = (
            f"{where} was written by another incarnation of job '{config.job}' than the one in {config.job_folder}"
        )
    elif nested := sorted(file for file in files if f"/{LOG}/" in file and not f"{uri}/{file}".startswith(own_log)):
        refusal = f"{where} has another table in its folder ({nested[0].partition(f'/{LOG}/')[0]})"
    if refusal is not None:
        refusal += ". Nothing was deleted: drop the job without --sinks, and delete by hand what is the job's."
    return SinkToDrop(name, uri, usage, published, refusal)


def _has_rows_of_others(table: Snapshot) -> bool:
    """Return whether somebody has written to a table that the job has not published to, since the job took it over."""
    for commit in table.history():
        claim = commit.info.claim
        if claim is not None and claim.is_empty:
            return False
        if commit.version and claim is None and not commit.keeps_rows:
            return True
    return False
