"""Vacuum intents: committed lists of files that may be deleted at any later time.

A process may be suspended between any two steps, for days, while other runs take the job and commit. So a vacuum deletes only
what a committed intent names. An intent is a Parquet file in the folder `vacuum` of the job, with the paths of the files. A
checkpoint of kind `vacuum` commits it, as a compare-and-set: it fails if another run has taken the job since this one did.
From then on an intent stays true, for three reasons: names of files are unique, so no file is made again; a run names only
new files and those of the last checkpoint; `restore` refuses a checkpoint that needs a file of an intent.

An intent is open until all its files are deleted; then its own file is deleted, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.protocol import OpenJob
from headrace.config import JobConfig
from headrace.names import counted
from headrace.tables.files import delete_files, list_files, read_parquet, stage
from headrace.tables.store import storage_errors

INTENTS = "vacuum"
"""Name of the folder of the intents in the job's folder."""


@dataclass(frozen=True, slots=True)
class VacuumIntent:
    """Committed intent: its own path and the paths of its files, relative to the job's folder."""

    path: str
    files: frozenset[str]


def commit_intent(
    job: OpenJob, files: Collection[str], *, erased: Sequence[tuple[int, int]] = (), note: str | None = None
) -> None:
    """Commit that `files`, given relative to the job's folder, may be deleted.

    `erased` has the ranges of checkpoints that become unreadable, within the retention or not; `note` says why.

    Raises `FencedError` when another run has taken the job: then no file may be deleted.
    """
    path = _intent_path(job.next_id, job.attempt_id)
    paths = pa.table({"path": pa.array(sorted(files), pa.string())})
    stage(job.config.job_folder, path, paths, job.config.storage_options)
    note = note or f"deletes {counted(len(files), 'file')}"
    metrics = {"files_deleted": len(files)}
    job.commit(Kind.VACUUM, versions=job.versions, metrics=metrics, note=note, erased=tuple(erased))


def open_intents(config: JobConfig, checkpoints: Sequence[Checkpoint]) -> list[VacuumIntent]:
    """Return the committed intents whose files may still exist, oldest first."""
    committed = {_intent_path(c.checkpoint_id, c.attempt_id) for c in checkpoints if c.kind is Kind.VACUUM}
    folder = f"{config.job_folder}/{INTENTS}"
    with storage_errors(f"to read vacuum intents in {folder}"):
        present = {f"{INTENTS}/{name}" for name in list_files(folder, config.storage_options)}
        return [intent for path in sorted(committed & present) for intent in _read(config, path)]


def complete(config: JobConfig, intent: VacuumIntent, spared: Collection[str] = ()) -> None:
    """Delete the files that a committed intent names, then its own file.

    Files in `spared` stay: branches that were made meanwhile need them. A later vacuum lists them again.
    """
    with storage_errors(f"to delete files of the vacuum intent {config.job_folder}/{intent.path}"):
        delete_files(config.job_folder, [*sorted(intent.files.difference(spared)), intent.path], config.storage_options)


def _read(config: JobConfig, path: str) -> Iterator[VacuumIntent]:
    """Yield the intent at `path`; nothing if another vacuum has completed it since the folder was listed."""
    try:
        paths = read_parquet(f"{config.job_folder}/{path}", config.storage_options)["path"]
    except FileNotFoundError:
        return
    yield VacuumIntent(path, frozenset(paths.to_pylist()))


def _intent_path(checkpoint_id: int, attempt_id: str) -> str:
    return f"{INTENTS}/{checkpoint_id:010d}-{attempt_id}.parquet"
