"""Compaction: rewrite state tables to live entries, and small files of sinks to larger ones.

Compaction: rewrite state tables to one row per live entry (FLIP-25, compaction filter).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from headrace import clock, crash_points
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.ttl import certain_expiries, declared_ttls
from headrace.plan.loader import plan_of
from headrace.sinks.registry import sink_of
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.files import StagedFile
from headrace.storage.table import TableMissingError, VersionTakenError
from headrace.tables.changelog import parts
from headrace.tables.expiry import RowExpiry, unexpired
from headrace.tables.live_rows import last_rows
from headrace.tables.requests import unexpired_answers
from headrace.tables.schemas import ALL_TABLES, ANSWERS, KEYED_STATE, QUARANTINE, tables_in


@dataclass(frozen=True, slots=True)
class SmallFiles:
    """Files that a compaction of a sink would rewrite: small ones, in partitions with at least two of them.

    `files` and `size` (bytes) count the whole table, `small_files` and `small_size` the files to rewrite. In a clustered sink,
    a compaction rewrites all files if it rewrites any.
    """

    sink: str
    files: int
    size: int
    small_files: int
    small_size: int

    @property
    def is_due(self) -> bool:
        """Return whether there are files to rewrite."""
        return self.small_files > 0


def find_small_files(config: JobConfig, target_size: int) -> list[SmallFiles]:
    """Return the small files of each existing sink whose files may be rewritten. Reads only logs.

    Raises `StorageError` when a sink's log cannot be read.
    """
    names = [name for name in sorted(config.sinks) if config.sinks[name].kind.kept_files is None]
    return [files for name in names if (files := _of_sink(config, name, target_size)) is not None]


def left_alone(config: JobConfig) -> list[str]:
    """Return a sentence for each sink whose files are never rewritten."""
    return [
        f"sink '{name}' at {sink.path} is left alone: {sink.kind.kept_files}."
        for name, sink in sorted(config.sinks.items())
        if sink.kind.kept_files is not None
    ]


def _of_sink(config: JobConfig, name: str, target_size: int) -> SmallFiles | None:
    sink = sink_of(config, name)
    try:
        actions = sink.latest().add_actions()
    except TableMissingError:
        return None
    partitions = [column for column in actions.schema.names if column.startswith("partition.")]
    small: dict[tuple[object, ...], list[int]] = defaultdict(list)
    sizes: Sequence[int] = actions["size_bytes"].to_pylist()
    for size, *values in zip(sizes, *(actions[column].to_pylist() for column in partitions), strict=True):
        if size < target_size:
            small[tuple(values)].append(size)
    rewritten = [size for group in small.values() if len(group) > 1 for size in group]
    return SmallFiles(name, len(sizes), sum(sizes), len(rewritten), sum(rewritten))


def rewrite_small_files(config: JobConfig, name: str, target_size: int) -> int | None:
    """Rewrite the small files of a sink in one commit that changes no row; return the new version, None without small files.

    The commit has no checkpoint and no transaction, so the job's position in the sink stays. The caller holds the job's lease,
    so no run publishes meanwhile. Raises `StorageError` when another program writes to the sink meanwhile: then the sink is
    not changed.
    """
    sink, columns = sink_of(config, name), config.sinks[name].cluster_by
    try:
        before = sink.latest().version
        after = sink.store.optimize(before, target_size, columns)
    except TableMissingError:
        return None
    except VersionTakenError as error:
        msg = (
            f"sink '{name}' at {sink.uri} was not compacted, since somebody else wrote to it meanwhile: {error}. Nothing "
            "was rewritten: compact again when the other writer is done."
        )
        raise StorageError(msg) from error
    return after if after > before else None


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
        crash_points.reached("compaction.prepared")
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
