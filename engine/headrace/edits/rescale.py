"""Rescaling: change the number of key groups, by rewriting every row of the state tables with the new group of its key.

A key's group depends only on its text and the number of groups. So afterwards the state equals that of a job which had this number
from its first run. A rescaling is one checkpoint of kind `migration`. Tasks rebuild their local copies.

The job's file has the number as well. Opening a job compares both, so no run starts between the rescaling and the change of the
file, in either order.
"""

from __future__ import annotations

from dataclasses import dataclass

from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.branch_code import refuse_on_branch
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.edits.rewrite import in_key_groups
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.names import counted
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.files import StagedFile
from headrace.tables.changelog import parts
from headrace.tables.schemas import tables_in
from headrace.tables.view import state_view


@dataclass(frozen=True, slots=True)
class Rescaling:
    """Effect of a rescaling: the number of key groups before and after, and the number of live rows to rewrite, by table."""

    before: int
    after: int
    rows: dict[str, int]


def plan_rescaling(config: JobConfig, max_parallelism: int) -> Rescaling:
    """Return what `rescale` would do, as of the last checkpoint. Changes nothing, needs no lease.

    Raises `ConfigError` as `rescale` does.
    """
    refuse_on_branch(config, "change its key groups")
    last = CheckpointLog(config.job_folder, config.storage_options).resolve(config)
    _check_number(config, last, max_parallelism)
    rows = {}
    for table in tables_in(last.versions):
        view = state_view(config.job_folder, table, last.versions[table], config.storage_options)
        ranges = view.ranges(KeyGroupRange.all_of(last.max_parallelism))
        rows[table] = sum(part.live(["key"]).num_rows for part in ranges)
    return Rescaling(last.max_parallelism, max_parallelism, {table: count for table, count in rows.items() if count})


def rescale(config: JobConfig, max_parallelism: int, why: str, run_id: str) -> Checkpoint:
    """Give the state another number of key groups, as one checkpoint, whatever number the job's file has.

    Raises `ConfigError` if the state has this number already, or if it is below the job's `parallelism`;
    `FencedError` while a run holds the job; then nothing has changed.
    """
    refuse_on_branch(config, "change its key groups")
    last = CheckpointLog(config.job_folder, config.storage_options).resolve(config)
    _check_number(config, last, max_parallelism)
    with open_job(replace(config, max_parallelism=last.max_parallelism), run_id) as job:
        return rescale_in(job, max_parallelism, why)


def rescale_in(job: OpenJob, max_parallelism: int, why: str | None = None) -> Checkpoint:
    """Rescale a job that is open already."""
    before = job.last.max_parallelism
    versions, rows = dict(job.versions), 0
    for table in tables_in(job.versions):
        if job.view(table).files():
            staged = _rewritten(job, table, max_parallelism)
            versions[table] = job.replace_table(table, staged)
            rows += sum(file.rows for file in staged)
    crash_points.reached("rescale.prepared")
    note = f"{counted(max_parallelism, 'key group')} instead of {before}"
    checkpoint = job.commit(
        Kind.MIGRATION,
        versions=versions,
        max_parallelism=max_parallelism,
        base=job.last.without_copies(),
        metrics={"rows_rewritten": rows},
        note=note if why is None else f"{note}: {why}",
    )
    job.notify("migrated", f"checkpoint {checkpoint.checkpoint_id}: {note}")
    return checkpoint


def _rewritten(job: OpenJob, table: str, max_parallelism: int) -> list[StagedFile]:
    ranges = job.view(table).ranges(KeyGroupRange.all_of(job.last.max_parallelism))
    return [
        job.stage(table, f"rescale-{number}", file)
        for number, part in enumerate(ranges)
        for file in parts(table, in_key_groups(part.live(), max_parallelism))
    ]


def _check_number(config: JobConfig, last: Checkpoint, max_parallelism: int) -> None:
    if max_parallelism < 1:
        raise ConfigError(f"a job has at least one key group, not {max_parallelism}. Nothing was changed.")
    if max_parallelism == last.max_parallelism:
        raise ConfigError(
            f"the state of job '{config.job}' has {counted(max_parallelism, 'key group')} already. Nothing was changed."
        )
    if (config.parallelism or 1) > max_parallelism:
        msg = (
            f"{config.where('parallelism')}: {counted(config.parallelism or 1, 'task')} cannot share {counted(max_parallelism, 'key group')}. Nothing was "
            "changed: lower parallelism first, or ask for more key groups."
        )
        raise ConfigError(msg)
