"""A checkpoint: what one row of `checkpoints` says, and what kinds there are."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from headrace.checkpoint.sink_tables import SinkTables
from headrace.checkpoint.state_schemas import StateSchemas
from headrace.checkpoint.tables import FORMAT_VERSION
from headrace.checkpoint.ttl_history import TtlHistory


class Kind(enum.Enum):
    """Why a row of `checkpoints` exists. A lease row is a claim on the job, not a checkpoint.

    A vacuum leaves the state as it is, like a savepoint: it commits a list of files that may be deleted (`vacuum_intents`).
    """

    INITIAL = "initial"
    BATCH = "batch"
    COMPACTION = "compaction"
    MIGRATION = "migration"
    REQUEUE = "requeue"
    RESTORE = "restore"
    SAVEPOINT = "savepoint"
    VACUUM = "vacuum"
    LEASE = "lease"


class OutputFile(msgspec.Struct, frozen=True):
    """A staged file that belongs to a sink: path relative to the job's folder, rows, bytes."""

    path: str
    rows: int
    size: int


class Bucket(msgspec.Struct, frozen=True):
    """Where the watermark generator stands: the next ordinal, and the open bucket's latest time."""

    next_ordinal: int = 0
    open_max: int | None = None
    closed_max: int | None = None


class SourceOffset(msgspec.Struct, frozen=True):
    """How far a source was read: the last file taken up, in the source's order, and the bucket.

    Sources that meet share a line of ordinals: each has what is said of the line (`bucket`, `watermark`, `seen`, `repeated`). Each has
    what is said of the whole job, too (`held`, `pending`, `due`). `held` says that records which were taken in are still in
    `buffered_requests`; `repeated` are the watermarks (ordinal, ms) that not every operator of the line has seen for that reason.
    """

    last_file: str | None = None
    bucket: Bucket = Bucket()
    files_behind: int = 0
    held: bool = False
    repeated: tuple[tuple[int, int], ...] = ()
    pending: int = 0
    """Elements in `async_requests`."""
    due: int | None = None
    """When the first of them is to be called for (ms); None if none is."""
    names: tuple[str, ...] | None = None
    """Digests of the files at or behind `last_file` (an interval run: or before its end) that no earlier checkpoint of the line
    has recorded. None where nothing was recorded: earlier releases have only the count in `files_behind`."""
    number: int = 0
    """Of the source, given once: it orders rows of equal merge keys where sources meet."""
    unread: tuple[str, ...] = ()
    """Names of the files up to `last_file` that still have rows to take in: they are ahead of the sources that this one meets."""
    rows_taken: int = 0
    """How many rows of the first of them were taken in, in arrival order. The punctuation after its last row counts as one."""
    punctuated: int | None = None
    """The last punctuation of a source with complete intervals (ms)."""
    watermark: int | None = None
    """The last watermark of the source's line (ms)."""
    seen: int | None = None
    """The last watermark that all operators of the line have seen (ms): it is before those that are repeated."""
    taken_at: int | None = None
    """When rows of the source were last taken in (ms, processing time)."""
    idle: bool = False
    """Whether the source was idle in this micro-batch, so that others did not wait for it."""
    ended: bool = False
    """Whether the end of input was declared: no more rows are taken in."""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One committed checkpoint. Times are milliseconds since the epoch.

    `versions` names the Delta version of every state table. `outputs` names, per sink, the staged
    files to publish. `local_copies` names, per operator and key-group range, the local copy that
    this checkpoint's tasks left behind. `state_ttl` is what lives of entries depend on.
    `schemas_of` names the checkpoint whose row has `state_schemas`, the types of the stored states: a row has them only where
    they are not its parent's; `sinks_of` and `sink_tables` are the same for the tables of the sinks. `timers_fired` says, per operator and clock, up to which moment no timer is left (ms).
    `watermark` is the earliest one of all lines of ordinals. `lines` names, by operator, a source of its line: that source's offset
    has the operator's watermark (earlier releases had one line).
    `numbers` are those in the places of records: ranks of operators, and edges (earlier releases had none to record).
    `note` says who and why (restores, savepoints, migrations).
    """

    checkpoint_id: int
    kind: Kind
    run_id: str
    attempt_id: str
    max_parallelism: int
    versions: dict[str, int]
    committed_at: int
    parent_id: int | None = None
    name: str | None = None
    interval_start: int | None = None
    interval_end: int | None = None
    watermark: int | None = None
    lines: dict[str, str] = {}
    offsets: dict[str, SourceOffset] = {}
    numbers: dict[str, int] = {}
    outputs: dict[str, list[OutputFile]] = {}
    local_copies: dict[str, dict[str, str]] = {}
    state_ttl: TtlHistory = TtlHistory()
    state_schemas: StateSchemas | None = None
    schemas_of: int | None = None
    sink_tables: SinkTables | None = None
    sinks_of: int | None = None
    timers_fired: dict[str, dict[str, int]] = {}
    metrics: dict[str, Any] = {}
    note: str | None = None
    restored_from: int | None = None
    format_version: int = FORMAT_VERSION

    @property
    def held(self) -> bool:
        """Whether records that were taken in are still in `buffered_requests`."""
        return any(offset.held for offset in self.offsets.values())

    @property
    def pending(self) -> int:
        """Elements in `async_requests`: each source says it of all."""
        return max((offset.pending for offset in self.offsets.values()), default=0)

    @property
    def due(self) -> int | None:
        """When the first of them is to be called for (ms); None if none is."""
        return min((offset.due for offset in self.offsets.values() if offset.due is not None), default=None)

    def watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that all operators of an operator's line have seen (ms)."""
        return self._offset_of(operator).seen if operator in self.lines else self.watermark

    def latest_watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that any operator of an operator's line has seen (ms)."""
        if operator in self.lines:
            return self._offset_of(operator).watermark
        repeated = [offset.repeated[-1][1] for offset in self.offsets.values() if offset.repeated]
        return max(repeated, default=self.watermark)

    def _offset_of(self, operator: str) -> SourceOffset:
        """Return the offset that has the watermarks of an operator. A source that never had a file has none."""
        return self.offsets.get(self.lines[operator], SourceOffset())

    def watermarks(self, sources: Iterable[str]) -> tuple[int | None, int | None]:
        """Return the last watermark of the line that these sources share, and the last one that all its operators have seen (ms)."""
        offsets = [self.offsets[name] for name in sources if name in self.offsets]
        return latest_watermark(offsets), _latest(offset.seen for offset in offsets)

    def line(self, sources: Iterable[str]) -> Bucket:
        """Return where the line of ordinals stands that these sources share."""
        return line_of(self.offsets[name] for name in sources if name in self.offsets)


def line_of(offsets: Iterable[SourceOffset]) -> Bucket:
    """Return where the line of ordinals stands that sources share: the furthest that one of them knows."""
    buckets = [offset.bucket for offset in offsets]
    return max(buckets, key=lambda bucket: bucket.next_ordinal, default=Bucket())


def latest_watermark(offsets: Iterable[SourceOffset]) -> int | None:
    """Return the last watermark of the line that sources share (ms)."""
    return _latest(offset.watermark for offset in offsets)


def _latest(times: Iterable[int | None]) -> int | None:
    return max((time for time in times if time is not None), default=None)


def last_micro_batch(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return when the micro-batch was committed that left the present state (ms); None before the first.

    Compactions and savepoints in between are no sign of life. After a restore it is the one that was restored: for the
    state, all time since then was lost.
    """
    by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
    at = checkpoints[-1] if checkpoints else None
    while at is not None and at.kind is not Kind.BATCH:
        before = at.parent_id if at.restored_from is None else at.restored_from
        at = None if before is None else by_id.get(before)
    return None if at is None else at.committed_at


class Lease(msgspec.Struct, frozen=True):
    """A claim on a job, renewed by its holder until `expires_at` (ms)."""

    run_id: str
    attempt_id: str
    holder: str
    expires_at: int
    claimed_at: int
