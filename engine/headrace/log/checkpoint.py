"""Checkpoints: their kinds, causes, and records of services.

Checkpoints: the content of a row of `checkpoints`, and its kinds.

Cause of a checkpoint: why it was made, as data that later commands read. Notes are for people: no command reads them.

A requeue always has a cause. Its row without one was written by an earlier release, which recorded the cause in the note; only of
such rows is the note read (`cause_in_note`).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from headrace.async_io.metrics import ServiceMetrics
from headrace.log.declared import OperatorKeys, SinkTables, StateSchemas
from headrace.records.watermarks import Bucket, latest
from headrace.sinks.sink import OutputFile
from headrace.sources.interval import Interval
from headrace.sources.position import SourceOffset, latest_watermark, line_of
from headrace.state.ttl import TtlHistory
from headrace.tables.schemas import FORMAT_VERSION

_REPEATED: Final = re.compile(r"the requeue of checkpoint (\d+) again")
_BACKFILL: Final = re.compile(r"backfill of (\S+) to (\S+)")


class Requeued(msgspec.Struct, frozen=True, tag="requeue", omit_defaults=True):
    """Cause of a requeue."""

    repeats: int | None = None
    """Requeue of the job that a branch repeats: its checkpoint. None: somebody asked for it."""
    operators: tuple[str, ...] = ()
    """Async operators whose failed elements it moved."""


class Restored(msgspec.Struct, frozen=True, tag="restore", omit_defaults=True):
    """Cause of a restore: somebody asked for it."""


Cause = Requeued | Restored


def cause_in_note(kind: str, note: str | None) -> dict[str, Any] | None:
    """Return the cause of a checkpoint that an earlier release wrote, as stored; None for other kinds than requeues."""
    return msgspec.to_builtins(_requeued(note or "")) if kind == "requeue" else None


def interval_in_note(note: str | None) -> Interval | None:
    """Return the interval that an earlier release made a branch for; None if no backfill made it."""
    return _interval(_BACKFILL, note or "")


def _requeued(note: str) -> Cause:
    repeated = _REPEATED.fullmatch(note)
    return Requeued(None if repeated is None else int(repeated[1]))


def _interval(pattern: re.Pattern[str], note: str) -> Interval | None:
    match = pattern.fullmatch(note)
    return None if match is None else Interval.named(*match.groups())


class Kind(enum.Enum):
    """Kind of a row of `checkpoints`. A lease row is a claim on the job, not a checkpoint.

    A fork is the first checkpoint of a branch. Checkpoints before it in the branch's log are the job's, and have no `versions`.

    A promotion makes the state of a branch the state of the job. Before it, the log has the checkpoints of the branch since its fork,
    without `versions`; the first of them continues from the fork.

    A vacuum does not change the state, like a savepoint: it commits a list of files that may be deleted (`vacuum_intents`).

    An acknowledgement does not change the state either: it records anew what files of sources are like.
    """

    INITIAL = "initial"
    BATCH = "batch"
    COMPACTION = "compaction"
    MIGRATION = "migration"
    ERASURE = "erasure"
    REQUEUE = "requeue"
    RESTORE = "restore"
    SAVEPOINT = "savepoint"
    SAVEPOINT_DROP = "savepoint_drop"
    VACUUM = "vacuum"
    ACKNOWLEDGEMENT = "acknowledgement"
    FORK = "fork"
    PROMOTION = "promotion"
    LEASE = "lease"


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One committed checkpoint. Times are milliseconds since the epoch.

    `versions` names the Delta version of every state table. `outputs` names, per sink, the staged files to publish.
    `local_copies` names, per operator and key-group range, the local copy that this checkpoint's tasks left behind.
    `state_ttl` has the values that lifetimes of entries depend on. `schemas_of` names the checkpoint whose row has
    `state_schemas` (types of the stored states) and `operator_keys` (keys under which they are stored): a row repeats
    them only where they differ from its parent's. `sinks_of` and `sink_tables` do the same for the tables of the
    sinks. `timers_fired` has, per operator and clock, the time up to which all timers have fired (ms). `watermark` is
    the earliest one of all lines of ordinals. `lines` names, by operator, a source of its line: that source's offset
    has the operator's watermark (earlier releases had one line). `numbers` has the numbers in the places of records:
    ranks of operators, and edges (earlier releases recorded none). `incarnation` is unique to this incarnation of the
    job: one folder from its first checkpoint on. A job that was started anew, here or elsewhere, gets another number.
    `erased` has ranges of ids, both ends included. An erasure lists the checkpoints whose versions have rows that it
    erased; a vacuum lists those whose files it deletes for that reason. `note` says who did it and why (restores,
    savepoints, migrations), for people; what later commands have to know is in `cause`. `processing_time` is when a micro-batch began, by the clock of its line: its operators
    saw this processing time. On a branch, `follows` names the job's checkpoint whose input and time it took, and
    `ended_at` is when it ended by that clock (null: at `committed_at`). Earlier releases recorded none of the three.
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
    operator_keys: OperatorKeys | None = None
    schemas_of: int | None = None
    sink_tables: SinkTables | None = None
    sinks_of: int | None = None
    timers_fired: dict[str, dict[str, int]] = {}
    metrics: dict[str, Any] = {}
    note: str | None = None
    cause: Cause | None = None
    restored_from: int | None = None
    erased: tuple[tuple[int, int], ...] = ()
    incarnation: int | None = None
    processing_time: int | None = None
    ended_at: int | None = None
    follows: int | None = None
    format_version: int = FORMAT_VERSION

    @property
    def line_time(self) -> int:
        """Return when the checkpoint was made, by the clock of its line (ms). A branch that follows its job uses the job's clock."""
        return max(self.committed_at if self.ended_at is None else self.ended_at, self.processing_time or 0)

    @property
    def has_state(self) -> bool:
        """Return whether the checkpoint's state is in this line's tables.

        State before a branch's fork is in the job's tables; state of checkpoints that a promotion brought is not stored.
        """
        return bool(self.versions)

    @property
    def requeues(self) -> bool:
        """Return whether the checkpoint took rows of sources or elements out of the quarantine, for a later run to take in again."""
        has_rows = any(offset.requeued for offset in self.offsets.values())
        return self.kind is Kind.REQUEUE and (has_rows or bool(self.requeued_operators))

    @property
    def requeued_operators(self) -> tuple[str, ...]:
        """Return the async operators whose failed elements a requeue moved; none for other checkpoints."""
        return self.cause.operators if isinstance(self.cause, Requeued) else ()

    @property
    def repeats(self) -> int | None:
        """Return the checkpoint whose requeue this one repeats; None if it repeats none."""
        return self.cause.repeats if isinstance(self.cause, Requeued) else None

    @property
    def held(self) -> bool:
        """Return whether `buffered_requests` holds records."""
        return any(offset.held for offset in self.offsets.values())

    @property
    def pending(self) -> int:
        """Return the number of elements in `async_requests`. The offset of each source has the total."""
        return max((offset.pending for offset in self.offsets.values()), default=0)

    @property
    def due(self) -> int | None:
        """Return when the first element in `async_requests` is due (ms); None if none waits."""
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

    def latest_event_of(self, operator: str) -> int | None:
        """Return the latest event time that an operator's line has taken in since its last watermark (ms)."""
        offsets = [self._offset_of(operator)] if operator in self.lines else self.offsets.values()
        return latest(offset.bucket.open_max for offset in offsets)

    def _offset_of(self, operator: str) -> SourceOffset:
        """Return the offset that has the watermarks of an operator; an empty one for a source without files so far."""
        return self.offsets.get(self.lines[operator], SourceOffset())

    def watermarks(self, sources: Iterable[str]) -> tuple[int | None, int | None]:
        """Return two watermarks (ms) of the line that these sources share: its last, and the last that all its operators have seen."""
        offsets = [self.offsets[name] for name in sources if name in self.offsets]
        return latest_watermark(offsets), latest(offset.seen for offset in offsets)

    def line(self, sources: Iterable[str]) -> Bucket:
        """Return the position of the line of ordinals that these sources share."""
        return line_of(self.offsets[name] for name in sources if name in self.offsets)


class Lease(msgspec.Struct, frozen=True):
    """A claim on a job, renewed by its holder until `expires_at` (ms)."""

    run_id: str
    attempt_id: str
    holder: str
    expires_at: int
    claimed_at: int
    """Time of the claim or its last renewal (ms), by the holder's clock."""

    def left(self, now: int) -> int:
        """Return how long the claim still holds (ms); 0 when it has ended or was given up.

        The holder's clock may run ahead of the clock of `now`, so the result is never more than the claim's whole length.
        """
        return max(0, min(self.expires_at - now, self.expires_at - self.claimed_at))


def metrics_of(counted: Mapping[str, int], durations: Mapping[str, float]) -> dict[str, Any]:
    """Return the metrics of a checkpoint: counts, and seconds by phase, rounded to milliseconds."""
    return {**dict(sorted(counted.items())), "seconds": {k: round(v, 3) for k, v in durations.items()}}


_KEY = "services"


def services_entry(services: Mapping[str, ServiceMetrics]) -> dict[str, Any]:
    """Return the entry of services in the metrics of a checkpoint, by operator; empty if no service was called."""
    return {_KEY: {name: metrics.shown() for name, metrics in services.items()}} if services else {}


def open_breakers(line: Sequence[Checkpoint]) -> dict[str, int]:
    """Return when each open breaker lets its next probe through (ms), by operator.

    Skips checkpoints without metrics of the operator: compactions, requeues, and micro-batches in which it had nothing to do.
    """
    last: dict[str, dict[str, Any]] = {}
    for checkpoint in reversed(line):
        last = {**checkpoint.metrics.get(_KEY, {}), **last}
    return {name: metrics["open_until"] for name, metrics in last.items() if metrics.get("open_until")}
