"""Compaction: state tables rewritten to one row per live entry (FLIP-25, compaction filter)."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pyarrow as pa

from engine import clock, faults
from engine.api import Process, StateTtl, TtlTime, UpdateType
from engine.checkpoint._delta import open_table, read
from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.checkpoint.files import StagedFile
from engine.checkpoint.open_job import OpenJob, open_job
from engine.checkpoint.state_files import parts, stage_state
from engine.checkpoint.tables import KEYED_STATE, QUARANTINE, STATE_TABLES
from engine.config import JobConfig
from engine.execution.declarations import declared_states
from engine.plan import plan_of

_CHUNKS = 8
"""A table is rewritten in so many ranges of key groups, so memory holds an eighth of it at a time."""


def compact(config: JobConfig, run_id: str, every: int | None = None) -> Checkpoint | None:
    """Rewrite the state tables, as a checkpoint of its own; the live state does not change.

    Drops overwritten and deleted entries and what TTL has expired. With `every`, does nothing (and
    returns None) unless at least that many runs committed micro-batches since the last compaction.
    """
    with open_job(config, run_id) as job:
        if every is not None and _runs_since_compaction(job) < every:
            return None
        versions = dict(job.versions)
        before = after = 0
        for name in STATE_TABLES:
            if name == QUARANTINE:
                continue
            staged, rows = _rewrite(job, name)
            if rows == sum(file.rows for file in staged) and len(staged) >= _file_count(job, name):
                continue
            before, after = before + rows, after + sum(file.rows for file in staged)
            versions[name] = job.tables.replace(name, staged, job.versions[name])
        faults.reached("compaction.prepared")
        metrics = {"rows_before": before, "rows_after": after}
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


def _rewrite(job: OpenJob, name: str) -> tuple[list[StagedFile], int]:
    staged: list[StagedFile] = []
    rows = 0
    for number, changes in enumerate(_chunks(job, name)):
        rows += changes.num_rows
        live = live_entries(changes, name, _expired(job) if name == KEYED_STATE else {})
        for part in parts(name, live):
            file = f"{job.next_id:010d}-compaction-{number}-{clock.unique_id()[:12]}.parquet"
            staged.append(stage_state(job.config.job_folder, name, file, part, job.config.storage_options))
    return staged, rows


def _chunks(job: OpenJob, name: str) -> Iterator[pa.Table]:
    table = open_table(job.tables.uri(name), version=job.versions[name], storage=job.config.storage_options)
    groups = job.last.max_parallelism
    step = -(-groups // _CHUNKS)
    for first in range(0, groups, step):
        predicate = f"key_group >= {first} AND key_group < {first + step}"
        yield read(table, STATE_TABLES[name].schema, predicate=predicate)


def live_entries(changes: pa.Table, name: str, expired: dict[tuple[str, str], int]) -> pa.Table:
    """The last row per entry, without removed and expired ones, in the table's own schema.

    `expired` gives, for (operator, state), the moment (ms) up to which `expires_at` means dead.
    """
    table = STATE_TABLES[name]
    entry = ", ".join(f'"{column}"' for column in table.entry)
    with duckdb.connect(":memory:", config={"threads": 2}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.register("changes", changes)
        live = connection.sql(
            f"SELECT * FROM changes QUALIFY NOT deleted AND row_number() OVER "  # noqa: S608 - our own column names
            f"(PARTITION BY {entry} ORDER BY checkpoint_id DESC) = 1"
        ).to_arrow_table()
    live = live.cast(table.schema)
    for (operator, state), moment in expired.items():
        live = _without_expired(live, operator, state, moment)
    return live


def _without_expired(live: pa.Table, operator: str, state: str, moment: int) -> pa.Table:
    import pyarrow.compute as pc

    at = pa.scalar(moment * 1000, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    dead = pc.and_(pc.equal(live["operator"], operator), pc.equal(live["state"], state))
    dead = pc.and_(dead, pc.fill_null(pc.less_equal(live["expires_at"], at), False))
    return live.filter(pc.invert(dead))


def _expired(job: OpenJob) -> dict[tuple[str, str], int]:
    """Which states expire by which clock: the last watermark, or the wall clock."""
    found: dict[tuple[str, str], int] = {}
    for stage_ in plan_of(job.config.pipeline).keyed:
        operator = stage_.operator
        if not isinstance(operator, Process):
            continue
        for state in declared_states(operator.function).values():
            moment = _clock_of(state.ttl, job.last.watermark)
            if moment is not None:
                found[operator.name, state.name] = moment
    return found


def _clock_of(ttl: StateTtl | None, watermark: int | None) -> int | None:
    if ttl is None or ttl.update is UpdateType.DISABLED:
        return None
    return clock.now() if ttl.time is TtlTime.PROCESSING else watermark
