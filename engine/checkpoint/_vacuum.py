"""Vacuum: removing files that no checkpoint within retention needs, and no savepoint ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from engine import clock
from engine.checkpoint._delta import open_table
from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.checkpoint.open_job import OpenJob, open_job
from engine.checkpoint.tables import STATE_TABLES
from engine.config import JobConfig
from engine.errors import ConfigError

_HOUR = 3_600_000


def vacuum(config: JobConfig, run_id: str, *, dry_run: bool = True) -> list[str]:
    """Remove files older than the retention that no kept checkpoint names; return their paths.

    Kept are the last checkpoint, those younger than `retention.hours`, and all savepoints. With
    `dry_run` nothing is removed. State on an object store is refused with `ConfigError`: use its
    life-cycle rules there.
    """
    if "://" in config.job_folder:
        msg = f"vacuum works on local and mounted folders, not on {config.job_folder}"
        raise ConfigError(msg)
    with open_job(config, run_id) as job:
        unneeded = list(_unneeded(job))
        if not dry_run:
            for path in unneeded:
                path.unlink(missing_ok=True)
    return [str(path) for path in unneeded]


def _unneeded(job: OpenJob) -> Iterator[Path]:
    oldest = clock.now() - job.config.retention.hours * _HOUR
    kept = [checkpoint for checkpoint in job.log.checkpoints if _is_kept(checkpoint, job, oldest)]
    for name in STATE_TABLES:
        table = Path(job.tables.uri(name))
        versions = {checkpoint.versions[name] for checkpoint in kept} | {job.versions[name]}
        needed = {file for version in versions for file in _files(table, version)}
        for path in table.glob("*.parquet"):
            if path.name not in needed and _is_older(path, oldest):
                yield path
    # What dead attempts left between their stages, and outputs that were published long ago.
    for folder in ("transit", "outputs"):
        for path in Path(job.config.job_folder, folder).rglob("*.parquet"):
            if _is_older(path, oldest) and str(path.relative_to(job.config.job_folder)) not in _due(job):
                yield path


def _is_older(path: Path, oldest: int) -> bool:
    return path.stat().st_mtime * 1000 < oldest


def _due(job: OpenJob) -> set[str]:
    return {file.path for files in job.last.outputs.values() for file in files}


def _is_kept(checkpoint: Checkpoint, job: OpenJob, oldest: int) -> bool:
    return (
        checkpoint.kind is Kind.SAVEPOINT
        or checkpoint.checkpoint_id == job.last.checkpoint_id
        or checkpoint.committed_at >= oldest
    )


def _files(folder: Path, version: int) -> set[str]:
    return {Path(uri).name for uri in open_table(str(folder), version=version).file_uris()}
