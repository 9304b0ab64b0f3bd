"""Compaction: state tables rewritten to one row per live entry (FLIP-25, compaction filter)."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock, faults
from headrace.checkpoint._delta import open_table, read
from headrace.checkpoint.checkpoint import Checkpoint, Kind
from headrace.checkpoint.expiry import NEVER, certain_expiries, is_dead
from headrace.checkpoint.files import StagedFile
from headrace.checkpoint.open_job import OpenJob
from headrace.checkpoint.opening import open_job
from headrace.checkpoint.state_files import parts, stage_state
from headrace.checkpoint.tables import KEYED_STATE, QUARANTINE, STATE_TABLES
from headrace.checkpoint.ttl_history import declared_ttls
from headrace.config import JobConfig
from headrace.plan.pipelines import plan_of

_CHUNKS = 8
"""A table is rewritten in so many ranges of key groups, so memory holds an eighth of it at a time."""


def compact(config: JobConfig, run_id: str, every: int | None = None) -> Checkpoint | None:
    """Rewrite the state tables, as a checkpoint of its own; the live state does not change.

    Drops overwritten and deleted entries and, one by one, those that the TTL which the job declares now has expired,
    unless `Cleanup.at_compaction` is off. With `every`, does nothing (and returns None) unless at least that many runs
    committed micro-batches since the last compaction.
    """
    with open_job(config, run_id) as job:
        if every is not None and _runs_since_compaction(job) < every:
            return None
        versions = dict(job.versions)
        before = after = expired = 0
        for name in STATE_TABLES:
            if name == QUARANTINE:
                continue
            staged, rows, dead = _rewrite(job, name)
            if rows == sum(file.rows for file in staged) and len(staged) >= _file_count(job, name):
                continue
            before, after = before + rows, after + sum(file.rows for file in staged)
            expired += dead
            versions[name] = job.tables.replace(name, staged, job.versions[name])
        faults.reached("compaction.prepared")
        metrics = {"rows_before": before, "rows_after": after, "expired": expired}
        checkpoint = job.commit(Kind.COMPACTION, versions=versions, metrics=metrics)
        job.lease.compact_log()
        return checkpoint


def _runs_since_compaction(job: OpenJob) -> int:
    runs: set[str] = set()
    for checkpoint in reversed(job.log.checkpoints):
        if checkpoint.kind is Kind.COMPACTION:
            break
        if checkpoint.kind is Kind.BATCH:
            runs.add(checkpoint.run_id)
    return len(runs)


def _file_count(job: OpenJob, name: str) -> int:
    table = open_table(job.tables.uri(name), version=job.versions[name], storage=job.config.storage_options)
    return len(table.file_uris())


def _rewrite(job: OpenJob, name: str) -> tuple[list[StagedFile], int, int]:
    """The files that take the place of a table's, the rows that it has, and how many entries have expired."""
    staged: list[StagedFile] = []
    rows = expired = 0
    dead = _dead(job) if name == KEYED_STATE else NEVER
    for number, changes in enumerate(_chunks(job, name)):
        rows += changes.num_rows
        live, dropped = _live_and_dead(changes, name, dead)
        expired += dropped
        for part in parts(name, live):
            file = f"{job.next_id:010d}-compaction-{number}-{clock.unique_id()[:12]}.parquet"
            staged.append(stage_state(job.config.job_folder, name, file, part, job.config.storage_options))
    return staged, rows, expired


def _chunks(job: OpenJob, name: str) -> Iterator[pa.Table]:
    table = open_table(job.tables.uri(name), version=job.versions[name], storage=job.config.storage_options)
    groups = job.last.max_parallelism
    step = -(-groups // _CHUNKS)
    for first in range(0, groups, step):
        predicate = f"key_group >= {first} AND key_group < {first + step}"
        yield read(table, STATE_TABLES[name].schema, predicate=predicate)


def live_entries(changes: pa.Table, name: str, dead: str = NEVER) -> pa.Table:
    """The last row per entry, without removed and expired ones, in the table's own schema.

    `dead` is SQL that is true of an entry's last row when it has expired (see `expiry.is_dead`).
    """
    return _live_and_dead(changes, name, dead)[0]


def _live_and_dead(changes: pa.Table, name: str, dead: str) -> tuple[pa.Table, int]:
    """The entries that live, and the number of those that have expired."""
    table = STATE_TABLES[name]
    entry = ", ".join(f'"{column}"' for column in table.entry)
    with duckdb.connect(":memory:", config={"threads": 2}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("changes", changes)
        last = connection.sql(
            f"SELECT *, {dead} AS is_dead FROM changes QUALIFY NOT deleted AND row_number() OVER "  # noqa: S608 - our own SQL
            f"(PARTITION BY {entry} ORDER BY checkpoint_id DESC) = 1"
        ).to_arrow_table()
    live = last.filter(pc.invert(last["is_dead"]))
    return live.select(table.schema.names).cast(table.schema), last.num_rows - live.num_rows


def _dead(job: OpenJob) -> str:
    declared = declared_ttls(plan_of(job.config.code))
    dropped = {name: ttl for name, ttl in declared.items() if ttl is not None and ttl.cleanup.at_compaction}
    return is_dead(certain_expiries(job.log, job.last, dropped, clock.now()))
