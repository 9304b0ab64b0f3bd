"""Compaction: rewrite state tables to one row per live entry (FLIP-25, compaction filter)."""

from __future__ import annotations

from headrace import clock, faults
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.ttl_history import certain_expiries, declared_ttls
from headrace.config import JobConfig
from headrace.plan.pipelines import plan_of
from headrace.sinks.small_files import find_small_files, rewrite_small_files
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.answers import unexpired_answers
from headrace.tables.files import StagedFile
from headrace.tables.last_rows import last_rows
from headrace.tables.row_expiry import RowExpiry, unexpired
from headrace.tables.schemas import ALL_TABLES, ANSWERS, KEYED_STATE, QUARANTINE, tables_in
from headrace.tables.state_files import parts


def compact(config: JobConfig, run_id: str, every: int | None = None) -> Checkpoint | None:
    """Rewrite the state tables in a separate checkpoint; the live state does not change.

    Drops overwritten and deleted entries, and entries that have expired by the TTL which the job declares now, unless
    `Cleanup.at_compaction` is off. On a branch, rewrites only the branch's own rows and keeps deletions as rows: the base still
    has these entries. With `every`, does nothing (and returns None) unless at least that many runs have committed micro-batches
    since the last compaction.
    """
    with open_job(config, run_id) as job:
        if every is not None and _runs_since_compaction(job) < every:
            return None
        versions = dict(job.versions)
        before = after = expired = 0
        for name in tables_in(job.versions):
            if name == QUARANTINE:
                continue
            staged, rows, dead = _rewrite(job, name)
            if rows == sum(file.rows for file in staged) and len(staged) >= _file_count(job, name):
                continue
            before, after = before + rows, after + sum(file.rows for file in staged)
            expired += dead
            versions[name] = job.replace_table(name, staged)
        faults.reached("compaction.prepared")
        metrics = {"rows_before": before, "rows_after": after, "expired": expired}
        checkpoint = job.commit(Kind.COMPACTION, versions=versions, metrics=metrics)
        job.compact_log()
        return checkpoint


def compact_sinks(config: JobConfig, run_id: str, target_size: int) -> dict[str, int]:
    """Rewrite small files of the job's sinks into files of about `target_size` bytes; return the new versions of those sinks.

    Holds the job meanwhile, and publishes the last checkpoint first. Raises `StorageError` when another program
    writes to a sink meanwhile; earlier sinks are compacted then.
    """
    with open_job(config, run_id):
        versions: dict[str, int] = {}
        for small in find_small_files(config, target_size):
            if small.is_due:
                version = rewrite_small_files(config, small.sink, target_size)
                if version is not None:
                    versions[small.sink] = version
        return versions


def _runs_since_compaction(job: OpenJob) -> int:
    runs: set[str] = set()
    for checkpoint in reversed(job.checkpoints):
        if checkpoint.kind is Kind.COMPACTION:
            break
        if checkpoint.kind is Kind.BATCH:
            runs.add(checkpoint.run_id)
    return len(runs)


def _file_count(job: OpenJob, name: str) -> int:
    return len(job.view(name).own.files())


def _rewrite(job: OpenJob, name: str) -> tuple[list[StagedFile], int, int]:
    """Return the files that replace those of a table, the number of its rows, and the number of expired entries."""
    staged: list[StagedFile] = []
    rows = expired = 0
    expiries = _expiries(job) if name == KEYED_STATE else []
    is_on_branch = job.view(name).has_base
    for number, part in enumerate(job.view(name).own.ranges(KeyGroupRange.all_of(job.last.max_parallelism))):
        changes = part.changes()
        rows += changes.num_rows
        live = last_rows(changes, ALL_TABLES[name], keeps_deleted=is_on_branch)
        kept = live if is_on_branch else unexpired(live, expiries)
        if name == ANSWERS and not is_on_branch:
            kept = unexpired_answers(kept, clock.now())
        expired += live.num_rows - kept.num_rows
        staged += [job.stage(name, f"compaction-{number}", file) for file in parts(name, kept)]
    return staged, rows, expired


def _expiries(job: OpenJob) -> list[RowExpiry]:
    declared = declared_ttls(plan_of(job.config.code))
    dropped = {name: ttl for name, ttl in declared.items() if ttl is not None and ttl.cleanup.at_compaction}
    paused_since = job.lineage.last_micro_batch()
    return certain_expiries(dropped, job.last, processing_time=clock.now(), paused_since=paused_since)
