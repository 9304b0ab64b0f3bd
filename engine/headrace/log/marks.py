"""Marks beside checkpoints: savepoints, erased checkpoints, vacuum intents, the mark of a dropped job.

Retention keeps each savepoint whose name was not dropped since.

An erasure rewrites the present state. Earlier checkpoints keep their table versions, and with them the rows, until
retention ends. `Checkpoint.erased` lists the ids of these checkpoints; a restore refuses them by default. After a
purge has deleted their files, nobody can read or restore them. The key itself is not recorded: the record would stay
for ever.

A vacuum intent is a committed list of files that may be deleted at any later time. A process may be suspended between
any two steps, for days, while other runs take the job and commit. So a vacuum deletes only what a committed intent
names. An intent is a Parquet file in the folder `vacuum` of the job, with the paths of the files. A checkpoint of kind
`vacuum` commits it, as a compare-and-set: it fails if another run has taken the job since this one did. From then on an
intent stays true, for three reasons: names of files are unique, so no file is made again; a run names only new files
and those of the last checkpoint; `restore` refuses a checkpoint that needs a file of an intent.

A drop deletes a job's folder file by file, and may die at any point. The rest then looks like a damaged job, or like no
job at all, and the next run would start anew beside it. So a drop first writes a file `dropped.parquet` into the
folder, and deletes that file last. No run, and no command that changes a job, opens a marked one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.config import JobConfig
from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.tables.folder import JobFolder


def live_savepoints(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the savepoints that were not dropped, oldest first. A name may be given again after it was dropped."""
    dropped = {
        checkpoint.name: checkpoint.checkpoint_id
        for checkpoint in checkpoints
        if checkpoint.kind is Kind.SAVEPOINT_DROP
    }
    savepoints = (checkpoint for checkpoint in checkpoints if checkpoint.kind is Kind.SAVEPOINT)
    return [checkpoint for checkpoint in savepoints if checkpoint.checkpoint_id > dropped.get(checkpoint.name, -1)]


def drop_of(checkpoints: Sequence[Checkpoint], name: str) -> Checkpoint | None:
    """Return the last checkpoint that dropped the savepoints with a name; None if there is none."""
    drops = (
        checkpoint
        for checkpoint in reversed(checkpoints)
        if checkpoint.kind is Kind.SAVEPOINT_DROP and checkpoint.name == name
    )
    return next(drops, None)


IdRanges = tuple[tuple[int, int], ...]
"""Ranges of checkpoint ids, both ends included."""


def id_ranges(ids: Collection[int]) -> IdRanges:
    """Return ids as sorted ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def ids_of(ranges: IdRanges) -> set[int]:
    """Return the ids in ranges."""
    return {number for first, last in ranges for number in range(first, last + 1)}


def erased_ids(checkpoints: Sequence[Checkpoint]) -> set[int]:
    """Return ids of the checkpoints that have, or had, rows which were erased later."""
    return {number for erasure in _of_kind(checkpoints, Kind.ERASURE) for number in ids_of(erasure.erased)}


def purged_ids(checkpoints: Sequence[Checkpoint]) -> set[int]:
    """Return ids of the checkpoints whose files a purge deleted because they had rows of an erased key."""
    return {number for purge in _of_kind(checkpoints, Kind.VACUUM) for number in ids_of(purge.erased)}


def refuse_purged(job: str, checkpoints: Sequence[Checkpoint], target_id: int) -> None:
    """Raise `StorageError` if a purge deleted files of a checkpoint because they had rows of an erased key."""
    purge = _naming(checkpoints, Kind.VACUUM, target_id)
    if purge is not None:
        msg = (
            f"checkpoint {target_id} can no longer be read or restored: its files had rows of an erased key, and "
            f"checkpoint {purge.checkpoint_id} deleted them ({purge.note}). Nothing was changed. Later checkpoints are not touched by that: "
            f"'headrace checkpoints {job}' lists all."
        )
        raise StorageError(msg)


def refuse_erased(job: str, checkpoints: Sequence[Checkpoint], target_id: int, *, brings_back: bool) -> None:
    """Refuse to restore a checkpoint that has rows of an erased key.

    Raises `StorageError` if its files were deleted for that reason, else `ConfigError`, unless `brings_back`.
    """
    refuse_purged(job, checkpoints, target_id)
    erasure = _naming(checkpoints, Kind.ERASURE, target_id)
    if erasure is not None and not brings_back:
        msg = (
            f"checkpoint {target_id} has rows of a key that checkpoint {erasure.checkpoint_id} erased ({erasure.note}); restoring "
            f"it would bring them back. Nothing was changed. Restore checkpoint {erasure.checkpoint_id} or a later one. If it has to "
            f"be this one, run 'headrace restore {job} --to {target_id} --bring-back-erased --why ...', and erase the key again "
            "at once."
        )
        raise ConfigError(msg)


def _naming(checkpoints: Sequence[Checkpoint], kind: Kind, target_id: int) -> Checkpoint | None:
    """Return the last checkpoint of a kind that names another one as erased; None if none does."""
    of_kind = reversed([*_of_kind(checkpoints, kind)])
    return next((checkpoint for checkpoint in of_kind if any(a <= target_id <= b for a, b in checkpoint.erased)), None)


def _of_kind(checkpoints: Sequence[Checkpoint], kind: Kind) -> Iterator[Checkpoint]:
    return (checkpoint for checkpoint in checkpoints if checkpoint.kind is kind)


INTENTS = "vacuum"
"""Name of the folder of the intents in the job's folder."""


@dataclass(frozen=True, slots=True)
class VacuumIntent:
    """Committed intent: its own path and the paths of its files, relative to the job's folder."""

    path: str
    files: frozenset[str]


def open_intents(config: JobConfig, checkpoints: Sequence[Checkpoint]) -> list[VacuumIntent]:
    """Return the committed intents whose files may still exist, oldest first."""
    committed = {intent_path(c.checkpoint_id, c.attempt_id) for c in checkpoints if c.kind is Kind.VACUUM}
    present = {f"{INTENTS}/{name}" for name in JobFolder.of(config).files(INTENTS)}
    return [intent for path in sorted(committed & present) for intent in _read(config, path)]


def complete(config: JobConfig, intent: VacuumIntent, spared: Collection[str] = ()) -> None:
    """Delete the files that a committed intent names, then its own file.

    Files in `spared` stay: branches that were made meanwhile need them. A later vacuum lists them again.
    """
    JobFolder.of(config).delete([*sorted(intent.files.difference(spared)), intent.path])


def _read(config: JobConfig, path: str) -> Iterator[VacuumIntent]:
    """Yield the intent at `path`; nothing if another vacuum has completed it since the folder was listed."""
    intent = JobFolder.of(config).find_parquet(path)
    if intent is not None:
        yield VacuumIntent(path, frozenset(intent["path"].to_pylist()))


def intent_path(checkpoint_id: int, attempt_id: str) -> str:
    """Return the path of the file that holds an intent, below the folder of its job."""
    return f"{INTENTS}/{checkpoint_id:010d}-{attempt_id}.parquet"


MARKER = "dropped.parquet"
"""Name of the file in the job's folder."""


@dataclass(frozen=True, slots=True)
class DropMarker:
    """Reason why a job is dropped, the tables of its sinks that are deleted with it, by sink, and its uid."""

    why: str
    sinks: dict[str, str]
    uid: int | None = None
    """None for a job without checkpoints."""


def read_marker(config: JobConfig) -> DropMarker | None:
    """Return the mark of a job; None if nobody is dropping it."""
    marker = JobFolder.of(config).find_parquet(MARKER)
    if marker is None:
        return None
    rows = marker.to_pylist()
    sinks = {row["sink"]: row["uri"] for row in rows if row["sink"] is not None}
    return DropMarker(rows[0]["why"], sinks, rows[0].get("uid"))


def write_marker(config: JobConfig, marker: DropMarker) -> None:
    """Mark a job. Once the call returns, the mark survives a power failure."""
    common = {"why": marker.why, "uid": marker.uid}
    rows = [{**common, "sink": sink, "uri": uri} for sink, uri in marker.sinks.items()]
    schema = pa.schema([*((name, pa.string()) for name in ("why", "sink", "uri")), ("uid", pa.int64())])
    table = pa.Table.from_pylist(rows or [common], schema)
    JobFolder.of(config).stage(MARKER, table)


def refuse_dropped(config: JobConfig) -> None:
    """Raise `ConfigError` for a job that is being dropped."""
    marker = read_marker(config)
    if marker is not None:
        msg = (
            f"job '{config.job}' is being dropped ({marker.why}), and parts of {config.job_folder} may be gone. Nothing was "
            f"changed. Finish it: headrace drop {config.job} --apply --why ...; then a run begins anew."
        )
        raise ConfigError(msg)
