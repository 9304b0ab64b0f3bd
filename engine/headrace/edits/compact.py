"""Compaction: rewrite state tables to live entries, and small files of sinks to larger ones.

Compaction: rewrite state tables to one row per live entry (FLIP-25, compaction filter).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from headrace import clock
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.edits.edit import BlindEdit, Rewrite, carry_out
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.log.ttl import certain_expiries, declared_ttls
from headrace.plan.loader import plan_of
from headrace.sinks.registry import sink_of
from headrace.storage.files import StagedFile
from headrace.storage.table import TableMissingError, VersionTakenError
from headrace.tables.expiry import RowExpiry, unexpired
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import last_rows
from headrace.tables.requests import unexpired_responses
from headrace.tables.schemas import ALL_TABLES, KEYED_STATE, QUARANTINE, RESPONSES, tables_in


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
    names = [name for name in sorted(config.sinks) if _kept_files(config, name) is None]
    return [files for name in names if (files := _of_sink(config, name, target_size)) is not None]


def left_alone(config: JobConfig) -> list[str]:
    """Return a sentence for each sink whose files are never rewritten. Raises `StorageError` when a sink's log cannot be read."""
    reasons = ((name, _kept_files(config, name)) for name in sorted(config.sinks))
    return [
        f"sink '{name}' at {config.sinks[name].path} is left alone: {why}." for name, why in reasons if why is not None
    ]


def _kept_files(config: JobConfig, name: str) -> str | None:
    """Return why a sink's files are never rewritten; None where they are."""
    if (why := config.sinks[name].kind.kept_files) is not None:
        return why
    try:
        form = sink_of(config, name).latest().form
    except TableMissingError:
        return None
    features = [*form.beyond, *form.needs_spark, *(["column mapping"] if form.maps_columns else [])]
    return f"deltalake does not rewrite its files ({', '.join(features)}); OPTIMIZE in Spark does" if features else None


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
        if every is not None and _runs_since_compaction(job.checkpoints) < every:
            return None
        checkpoint = carry_out(job, _Compaction())
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


def is_compaction_due(config: JobConfig) -> bool:
    """Return whether as many runs as the job's file says (`compaction.every`) have committed since the last compaction. Needs no lease."""
    every = config.compaction.every
    return every is not None and _runs_since_compaction(CheckpointLog(JobFolder.of(config)).checkpoints) >= every


def _runs_since_compaction(checkpoints: Sequence[Checkpoint]) -> int:
    runs: set[str] = set()
    for checkpoint in reversed(checkpoints):
        if checkpoint.kind is Kind.COMPACTION:
            break
        if checkpoint.kind is Kind.BATCH:
            runs.add(checkpoint.run_id)
    return len(runs)


@dataclass(slots=True)
class _Table:
    """One table of a compaction."""

    job: OpenJob
    name: str
    before: int = 0
    """Rows so far."""
    after: int = 0
    expired: int = 0

    def rewrite(self) -> Rewrite:
        """Return the rows that replace those of the table: on a branch, its own."""
        own = self.job.view(self.name).own
        return Rewrite(
            self.name,
            "compaction",
            own,
            self._compacted(self.job.view(self.name).has_base, _expiries(self.job) if self.name == KEYED_STATE else []),
            of_changes=True,
            replaces=True,
            is_worthwhile=lambda staged: self._is_worthwhile(staged, len(own.files())),
        )

    def _compacted(self, is_on_branch: bool, expiries: Sequence[RowExpiry]) -> Callable[[pa.Table], pa.Table]:  # noqa: FBT001 - of one caller
        def change(changes: pa.Table) -> pa.Table:
            live = last_rows(changes, ALL_TABLES[self.name], keeps_deleted=is_on_branch)
            kept = live if is_on_branch else unexpired(live, expiries)
            if self.name == RESPONSES and not is_on_branch:
                kept = unexpired_responses(kept, clock.now())
            self.before += changes.num_rows
            self.expired += live.num_rows - kept.num_rows
            return kept

        return change

    def _is_worthwhile(self, staged: Sequence[StagedFile], files: int) -> bool:
        """Return whether fewer rows, or fewer files, take the place of those that are there; else nothing of the table counts."""
        self.after = sum(file.rows for file in staged)
        if self.before == self.after and len(staged) >= files:
            self.before = self.after = self.expired = 0
            return False
        return True


@dataclass(slots=True)
class _Compaction(BlindEdit):
    """Edit that changes no live entry."""

    tables: list[_Table] = field(default_factory=list)

    kind: ClassVar[Kind] = Kind.COMPACTION
    crash_point: ClassVar[str] = "compaction.prepared"

    def rewrites(self, job: OpenJob, effect: None) -> Iterator[Rewrite]:  # noqa: ARG002 - it looks for nothing
        """See `StateEdit.rewrites`. What the quarantine has is input, and stays."""
        for name in tables_in(job.versions):
            if name != QUARANTINE:
                self.tables.append(_Table(job, name))
                yield self.tables[-1].rewrite()

    def facts(self, job: OpenJob, effect: None, rows: int) -> dict[str, Any]:  # noqa: ARG002 - it counts by table
        """See `StateEdit.facts`."""
        counts = {
            "rows_before": sum(table.before for table in self.tables),
            "rows_after": sum(table.after for table in self.tables),
            "expired": sum(table.expired for table in self.tables),
        }
        return {"metrics": counts}


def _expiries(job: OpenJob) -> list[RowExpiry]:
    declared = declared_ttls(plan_of(job.config.code))
    dropped = {name: ttl for name, ttl in declared.items() if ttl is not None and ttl.cleanup.at_compaction}
    paused_since = job.lineage.last_micro_batch()
    return certain_expiries(dropped, job.last, processing_time=clock.now(), paused_since=paused_since)
