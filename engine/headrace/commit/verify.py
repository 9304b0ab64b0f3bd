"""Checks of a job's committed tables and sinks, for the `verify` step after each run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import msgspec
import pyarrow as pa

from headrace.commit.job_tables import Versions
from headrace.commit.protocol import sinks_of
from headrace.commit.sink_position import SinkPosition, sent_messages
from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import to_schemas
from headrace.log.log import CheckpointLog
from headrace.names import counted
from headrace.sinks.delta import DeltaTableSink
from headrace.sinks.registry import sink_of
from headrace.sinks.sink import NEVER
from headrace.storage.damage import FileDamage, faults, way_on
from headrace.storage.delta_commits import OPENED_TABLES
from headrace.storage.overlay import is_elsewhere
from headrace.storage.refusals import doing, reason_of
from headrace.storage.table import TableMissingError, logged_sizes
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS, tables_in

_SHOWN = 10
"""Number of damaged files of a table that are named."""

_WHOLE_FOLDER = "Bring the whole job folder back from a backup that is not older than the job's sinks."
_TABLE = "Bring the files back, or the whole table from a backup that has what the job published last."


class CheckResult(msgspec.Struct, frozen=True):
    """Result of one check: its name, whether it holds, and details."""

    check: str
    ok: bool
    detail: str


def verify(config: JobConfig) -> list[CheckResult]:
    """Compare the last checkpoint with the tables and sinks, and read the whole log of each. Changes nothing, needs no lease."""
    OPENED_TABLES.forget()
    try:
        log = CheckpointLog(JobFolder.of(config))
    except StorageError as error:
        return [*_without_log(config, error)]
    last = log.last
    if last is None:
        return [
            CheckResult(
                "checkpoints",
                False,
                f"job '{config.job}' has no checkpoints in {config.job_folder}: it was never run, or its folder is gone",
            )
        ]
    return [
        _ids_grow(log.checkpoints),
        _versions_follow(log.checkpoints),
        *_tables(config, last),
        *_sinks(config, log),
        *_sent(config, log),
    ]


def _without_log(config: JobConfig, error: StorageError) -> Iterator[CheckResult]:
    """Yield what can be said of a job whose checkpoints cannot be read: which files of its tables and sinks are whole."""
    log = _latest(config, "checkpoints", f"{config.job_folder}/{CHECKPOINTS}", _WHOLE_FOLDER)
    yield CheckResult("checkpoints", False, str(error) if log is None or log.ok else f"{error} {log.detail}")
    places = {f"table {name}": f"{config.job_folder}/{name}" for name in ALL_TABLES}
    sinks = {f"sink {name} has whole files": sink.table_path for name, sink in sorted(config.sinks.items())}
    tables = (_latest(config, check, uri, _WHOLE_FOLDER) for check, uri in places.items())
    tables_of_sinks = (_latest(config, check, uri, _TABLE) for check, uri in sinks.items())
    yield from filter(None, (*tables, *tables_of_sinks))


def _latest(config: JobConfig, check: str, uri: str, advice: str) -> CheckResult | None:
    """Return whether the files of a table's latest version are whole; None if there is no table."""
    try:
        latest = JobFolder.of(config).at(uri).table().latest()
        files = logged_sizes(latest)
        damaged = _damaged(uri, files, config, advice)
    except TableMissingError:
        return None
    except (StorageError, OSError) as refusal:
        return CheckResult(check, False, str(reason_of(refusal)))
    whole = f"version {latest.version}, the latest: {counted(len(files), 'file')}"
    return CheckResult(check, damaged is None, damaged or whole)


def _ids_grow(checkpoints: list[Checkpoint]) -> CheckResult:
    ids = [checkpoint.checkpoint_id for checkpoint in checkpoints]
    wrong = [
        second.checkpoint_id for first, second in pairwise(checkpoints) if not _may_follow(first.checkpoint_id, second)
    ]
    detail = (
        f"{counted(len(ids), 'checkpoint')}, {ids[0]} to {ids[-1]}" if not wrong else f"gap or repeat before {wrong}"
    )
    return CheckResult("checkpoint ids grow", not wrong, detail)


def _may_follow(number: int, checkpoint: Checkpoint) -> bool:
    """Return whether a checkpoint may follow the one with id `number`.

    Ids grow by one. They may grow by more at a reconciliation, and at a promotion and the checkpoints that it brings.
    """
    leaves_lineage = checkpoint.kind in {Kind.RESTORE, Kind.PROMOTION} or not checkpoint.has_state
    return checkpoint.checkpoint_id == number + 1 or (leaves_lineage and checkpoint.checkpoint_id > number + 1)


def _versions_follow(checkpoints: list[Checkpoint]) -> CheckResult:
    wrong = [
        f"{name} at checkpoint {second.checkpoint_id}"
        for first, second in pairwise(checkpoint for checkpoint in checkpoints if checkpoint.has_state)
        for name in tables_in(first.versions)
        if second.versions.get(name, -1) < first.versions[name]
    ]
    return CheckResult("table versions never go back", not wrong, ", ".join(wrong) or "all tables")


def _tables(config: JobConfig, last: Checkpoint) -> Iterator[CheckResult]:
    for name in tables_in(last.versions):
        uri = f"{config.job_folder}/{name}"
        committed = last.versions[name]
        store = JobFolder.of(config).table(name)
        try:
            latest = store.latest().version
            files = logged_sizes(store.at(committed))
            damaged = _damaged(uri, files, config, _WHOLE_FOLDER)
        except (TableMissingError, StorageError, OSError) as error:
            yield CheckResult(f"table {name}", False, str(reason_of(error)))
            continue
        ahead = (
            f"; {counted(latest - committed, 'uncommitted version')}, which the next run undoes"
            if latest > committed
            else ""
        )
        detail = damaged or f"version {committed}, {counted(len(files), 'file')}{ahead}"
        yield CheckResult(f"table {name}", damaged is None and latest >= committed, detail)


def refuse_damaged_state(config: JobConfig, versions: Versions) -> None:
    """Raise `StorageError` if a data file of the state at these versions is gone or cut off.

    A task with a local copy of its state reads no such file, and a run would commit on top of the damage. Looks only on disks: an object
    store takes a request for each file, and `verify` makes them.
    """
    folder = JobFolder.of(config)
    if not folder.is_on_local_disk:
        return
    for name in tables_in(versions):
        table = folder.below(name)
        logged = logged_sizes(folder.view(name, versions[name]).snapshot)
        own = {path: size for path, size in logged.items() if not is_elsewhere(path)}
        wrong = faults(table.uri, own, table.sizes_of(own))
        if wrong:
            raise StorageError(f"{_named(wrong)}. {_way_on(config, wrong[0].uri)}")


def _way_on(config: JobConfig, file: str) -> str:
    """Return what to do about a damaged file of the state."""
    if config.branch is None:
        return way_on(file)
    on_branch = f"{config.job} --branch {config.branch}"
    return (
        f"Nothing was committed. Bring the file back, or drop the branch ('headrace branch drop {config.job} {config.branch}') and fork it "
        f"anew. 'headrace verify {on_branch}' lists all files that are gone or cut off."
    )


def _named(wrong: Sequence[FileDamage]) -> str:
    """Return the first faults of a table, and the number of further ones."""
    more = f" and {len(wrong) - _SHOWN:,} more" if len(wrong) > _SHOWN else ""
    return f"{', '.join(map(str, wrong[:_SHOWN]))}{more}"


def _damaged(uri: str, files: Mapping[str, int], config: JobConfig, advice: str) -> str | None:
    """Return a sentence on files of a table that are gone or cut off; `files` has their sizes in the log. None if all are whole."""
    own = {path: size for path, size in files.items() if not is_elsewhere(path)}
    wrong = faults(uri, own, JobFolder.of(config).at(uri).sizes())
    if not wrong:
        return None
    return f"{_named(wrong)} ({len(wrong):,} of {counted(len(files), 'file')} damaged). {advice}"


def _sinks(config: JobConfig, log: CheckpointLog) -> Iterator[CheckResult]:
    for name, (schema, keys) in to_schemas(sinks_of(config, log)).items():
        try:
            yield from _sink(config, log, name, schema, keys)
        except StorageError as error:
            yield CheckResult(f"sink {name} can be read", False, str(error))


def _sink(
    config: JobConfig, log: CheckpointLog, name: str, schema: pa.Schema, keys: tuple[str, ...]
) -> Iterator[CheckResult]:
    position = SinkPosition(config, name, log.checkpoints)
    problem = position.problem()
    if problem is not None:
        log.refresh()  # compare once more: a run may have committed and published meanwhile
        position = SinkPosition(config, name, log.checkpoints)
        problem = position.problem()
    yield _published(name, position, problem)
    if position.exists:
        uri = config.sinks[name].table_path
        damaged = _damaged(uri, logged_sizes(JobFolder.of(config).at(uri).table().latest()), config, _TABLE)
        if damaged is not None:
            yield CheckResult(f"sink {name} has whole files", False, damaged)
            return
    if keys and position.exists:
        yield _unique(name, config.sinks[name].table_path, schema, keys, config)
    if position.exists:
        yield from _shown(sink_of(config, name))


def _published(name: str, position: SinkPosition, problem: str | None) -> CheckResult:
    check = f"sink {name} is published"
    if problem is not None:
        return CheckResult(check, False, problem)
    if not position.exists:
        return CheckResult(check, False, "the table is gone; the next run makes an empty one")
    published = position.published
    detail = f"published up to checkpoint {published}" if published != NEVER else "nothing published yet"
    if position.first_missing is not None:
        detail += f"; the next run publishes checkpoint {position.first_missing}"
    return CheckResult(check, position.first_missing is None, detail)


def _shown(sink: DeltaTableSink) -> Iterator[CheckResult]:
    """Yield whether readers see the published files, where they read these files and not the table."""
    with doing(f"to list the files of sink '{sink.name}' at {sink.uri}"):
        differences = sink.differences()
    if differences is None:
        return
    _, missing, surplus = differences
    check = f"sink {sink.name} shows what was published"
    if not missing and not surplus:
        yield CheckResult(check, True, f"all files are in {sink.uri}")
        return
    lacks = f"lacks {counted(len(missing), 'file')}, or has damage there, such as {min(missing)}" if missing else ""
    has = (
        f"has {counted(len(surplus), 'file that is', 'files that are')} not published, such as {surplus[0]}"
        if surplus
        else ""
    )
    wrong = " and ".join(filter(None, (lacks, has)))
    yield CheckResult(check, False, f"{sink.uri} {wrong}; the next publication to the sink mends that")


def _sent(config: JobConfig, log: CheckpointLog) -> Iterator[CheckResult]:
    try:
        for messages in sent_messages(config, log.checkpoints):
            yield CheckResult(f"sink {messages.sink} is sent", not messages.is_behind, str(messages))
    except StorageError as error:
        yield CheckResult("messages are sent", False, str(error))


def _unique(name: str, uri: str, schema: pa.Schema, keys: tuple[str, ...], config: JobConfig) -> CheckResult:
    rows = JobFolder.of(config).at(uri).table().latest().read(schema, columns=keys)
    distinct = rows.group_by(list(keys)).aggregate([]).num_rows
    detail = f"{counted(rows.num_rows, 'row')}, {counted(distinct, 'key')}"
    return CheckResult(f"sink {name} has one row a key", distinct == rows.num_rows, detail)
