"""A checkpoint: what one row of `checkpoints` says, and what kinds there are."""

from __future__ import annotations

import enum
from collections.abc import Sequence
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
    """How far a source was read: the last file taken in, in the source's order, and the bucket.

    `held` says that records which were taken in are still in `buffered_requests`; `repeated` are the watermarks (ordinal, ms)
    that not every operator has seen for that reason.
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


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One committed checkpoint. Times are milliseconds since the epoch.

    `versions` names the Delta version of every state table. `outputs` names, per sink, the staged
    files to publish. `local_copies` names, per operator and key-group range, the local copy that
    this checkpoint's tasks left behind. `state_ttl` is what lives of entries depend on.
    `schemas_of` names the checkpoint whose row has `state_schemas`, the types of the stored states: a row has them only where
    they are not its parent's; `sinks_of` and `sink_tables` are the same for the tables of the sinks. `timers_fired` says, per operator and clock, up to which moment no timer is left (ms).
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
    offsets: dict[str, SourceOffset] = {}
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
    def latest_watermark(self) -> int | None:
        """The last watermark that any operator has seen (ms); `watermark` is the last one that all have."""
        repeated = [offset.repeated[-1][1] for offset in self.offsets.values() if offset.repeated]
        return max(repeated, default=self.watermark)


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
