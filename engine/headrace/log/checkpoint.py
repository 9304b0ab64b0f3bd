"""Checkpoints: their kinds and content, and their records of services.

A cause says why a checkpoint was made, as data that later commands read. Notes are for people: no command reads them.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from headrace.async_io.metrics import ServiceMetrics
from headrace.log.declared import OperatorKeys, SinkTables, StateSchemas
from headrace.log.facts import (
    NO_DECLARATIONS,
    Cause,
    Declarations,
    JobWork,
    OperatorFacts,
    Requeued,
    RowTimes,
    WatermarkStep,
    history_of,
    renamed,
    without_copies,
)
from headrace.metrics import METRICS
from headrace.records.watermarks import Timeline, latest, parts_of, timeline_of
from headrace.sinks.sink import OutputFile
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts
from headrace.state.ttl import Gap, TtlHistory
from headrace.tables.schemas import FORMAT_VERSION


class Kind(enum.Enum):
    """Kind of a row of `checkpoints`. A lease row is a claim on the job, not a checkpoint.

    A fork is the first checkpoint of a branch. Checkpoints before it in the branch's log are the job's, and have no `versions`.

    A promotion makes the state of a branch the state of the job. Before it, the log has the checkpoints of the branch since its fork,
    without `versions`; the first of them continues from the fork.

    A vacuum does not change the state, like a savepoint: it commits a list of files that may be deleted (`log.marks`).

    An acknowledgement does not change the state either: it records anew what files of sources are like.

    An edit changes entries, timers or calls that somebody names.
    """

    INITIAL = "initial"
    BATCH = "batch"
    COMPACTION = "compaction"
    MIGRATION = "migration"
    ERASURE = "erasure"
    REQUEUE = "requeue"
    EDIT = "edit"
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
    `watermark` is the earliest one of all timelines. `sources` has the facts of each source, `timelines` the ordinals and
    watermarks that sources share, by the first of them, `operators` the facts of each operator. `edges` has the numbers of
    streams that are used more than once: with the ranks of operators, they order records. `pauses` are those long enough to prolong
    lifetimes of entries. `declared` is what the code of the last micro-batch declares. `incarnation` is unique to this incarnation of
    the job: one folder from its first checkpoint on. A job that was started anew, here or elsewhere, gets another number.
    `metrics` counts what the micro-batch, or the edit, did; `seconds` is how long its phases took. `services` has what async operators
    measured, `row_times` counts of late rows and doubtful times by operator or source, `watermark_steps` the steps that timers may wait for.
    `erased` has ranges of ids, both ends included. An erasure lists the checkpoints whose versions have rows that it
    erased; a vacuum lists those whose files it deletes for that reason. `note` says who did it and why (restores,
    savepoints, migrations), for people; what later commands have to know is in `cause`. `processing_time` is when a micro-batch
    began, by the clock of its lineage: its operators saw this processing time. On a branch, `follows` names the job's checkpoint whose
    input and time it took, and `ended_at` is when it ended by that clock (null: at `committed_at`).
    """

    checkpoint_id: int
    kind: Kind
    run_id: str
    attempt_id: str
    max_parallelism: int
    versions: dict[str, int]
    committed_at: int
    incarnation: int
    parent_id: int | None = None
    name: str | None = None
    interval_start: int | None = None
    interval_end: int | None = None
    watermark: int | None = None
    sources: dict[str, SourceFacts] = {}
    timelines: dict[str, Timeline] = {}
    work: JobWork = JobWork()
    operators: dict[str, OperatorFacts] = {}
    edges: dict[str, int] = {}
    pauses: tuple[Gap, ...] = ()
    declared: Declarations = NO_DECLARATIONS
    outputs: dict[str, list[OutputFile]] = {}
    metrics: dict[str, int] = {}
    seconds: dict[str, float] = {}
    services: dict[str, ServiceMetrics] = {}
    row_times: dict[str, RowTimes] = {}
    watermark_steps: tuple[WatermarkStep, ...] = ()
    note: str | None = None
    cause: Cause | None = None
    restored_from: int | None = None
    erased: tuple[tuple[int, int], ...] = ()
    processing_time: int | None = None
    ended_at: int | None = None
    follows: int | None = None
    format_version: int = FORMAT_VERSION

    @property
    def lineage_time(self) -> int:
        """Return when the checkpoint was made, by the clock of its lineage (ms). A branch that follows its job uses the job's clock."""
        return max(self.committed_at if self.ended_at is None else self.ended_at, self.processing_time or 0)

    @property
    def has_state(self) -> bool:
        """Return whether the checkpoint's state is in this lineage's tables.

        State before a branch's fork is in the job's tables; state of checkpoints that a promotion brought is not stored.
        """
        return bool(self.versions)

    def count(self, name: str) -> int | None:
        """Return what the micro-batch counted of a metric, that of its services together; None if it did not count it."""
        if name in self.metrics:
            return self.metrics[name]
        total = None
        for measured in self.services.values():
            value = getattr(measured, name, None)
            total = METRICS[name].together(total, value) if isinstance(value, int) else total
        return total

    @property
    def requeues(self) -> bool:
        """Return whether the checkpoint took rows of sources or elements out of the quarantine, for a later run to take in again."""
        has_rows = any(facts.requeued for facts in self.sources.values())
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
    def interval(self) -> Interval | None:
        """Return the interval of the input that was taken in last; None without intervals."""
        start, end = self.interval_start, self.interval_end
        return None if start is None or end is None else Interval(start, end)

    @property
    def holds_records(self) -> bool:
        """Return whether operators hold records, or watermarks that some of them have not seen: a run resumes them before new input."""
        return self.work.held > 0 or any(timeline.repeated for timeline in self.timelines.values())

    @property
    def state_ttl(self) -> TtlHistory:
        """Return the values that lifetimes of entries depend on, as the micro-batch knew them."""
        return history_of(self.operators, self.declared, self.pauses)

    @property
    def state_schemas(self) -> StateSchemas:
        """Return the types of the states, by operator; none before the first micro-batch."""
        return self.declared.states

    @property
    def operator_keys(self) -> OperatorKeys:
        """Return the keys of the operators; none before the first micro-batch."""
        return self.declared.keys

    @property
    def sink_tables(self) -> SinkTables:
        """Return the tables of the job's sinks."""
        return self.declared.sinks

    def local_copies(self, operator: str) -> dict[str, str]:
        """Return the local copies of an operator, by range of key groups."""
        return self.operators.get(operator, _NO_FACTS).local_copies

    def fired_until(self, operator: str) -> dict[str, int]:
        """Return, by clock, the time up to which all timers of an operator have fired (ms)."""
        return self.operators.get(operator, _NO_FACTS).fired_until

    def timeline(self, sources: Sequence[str]) -> Timeline:
        """Return the timeline that these sources share."""
        return timeline_of(self.timelines, sources)

    def parts_of(self, sources: Sequence[str]) -> list[Timeline]:
        """Return the timelines that have some of these sources: several where they meet now and did not then."""
        return parts_of(self.timelines, sources)

    def timeline_of(self, operator: str) -> Timeline | None:
        """Return the timeline of an operator; None if the code of this checkpoint has no such operator."""
        first = self.operators.get(operator, _NO_FACTS).timeline
        return None if first is None else self.timeline([first])

    def watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that all operators of an operator's timeline have seen (ms)."""
        timeline = self.timeline_of(operator)
        return self.watermark if timeline is None else timeline.seen

    def latest_watermark_of(self, operator: str) -> int | None:
        """Return the last watermark that any operator of an operator's timeline has seen (ms)."""
        timeline = self.timeline_of(operator)
        if timeline is not None:
            return timeline.watermark
        repeated = [timeline.repeated[-1][1] for timeline in self.timelines.values() if timeline.repeated]
        return max(repeated, default=self.watermark)

    def latest_event_of(self, operator: str) -> int | None:
        """Return the latest event time that an operator's timeline has taken in since its last watermark (ms)."""
        own = self.timeline_of(operator)
        timelines = self.timelines.values() if own is None else [own]
        return latest(timeline.bucket.open_max for timeline in timelines)

    def renamed(self, old: str, new: str) -> Checkpoint:
        """Return the checkpoint with an operator under its new name. Its local copies go: tasks build them anew."""
        operators = renamed(without_copies(self.operators, {old}), old, new)
        pauses = tuple(gap._replace(by_operator=renamed(gap.by_operator, old, new)) for gap in self.pauses)
        return replace(self, operators=operators, pauses=pauses, declared=self.declared.renamed(old, new)).unordered()

    def without(self, operator: str) -> Checkpoint:
        """Return the checkpoint without the facts of an operator."""
        operators = {name: facts for name, facts in self.operators.items() if name != operator}
        return replace(self, operators=operators, declared=self.declared.without(operator))

    def unordered(self) -> Checkpoint:
        """Return the checkpoint without the order of records: no record waits in it, so the next graph may have any order."""
        operators = {name: replace(facts, rank=None) for name, facts in self.operators.items()}
        return replace(self, operators=operators, edges={})

    def without_copies(self, operators: Collection[str] | None = None) -> Checkpoint:
        """Return the checkpoint without the local copies of these operators; None: of all."""
        return replace(self, operators=without_copies(self.operators, operators))


_NO_FACTS = OperatorFacts()


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


def open_breakers(lineage: Sequence[Checkpoint]) -> dict[str, int]:
    """Return when each open breaker lets its next probe through (ms), by operator.

    Skips checkpoints without metrics of the operator: compactions, requeues, and micro-batches in which it had nothing to do.
    """
    last: dict[str, ServiceMetrics] = {}
    for checkpoint in reversed(lineage):
        last = {**checkpoint.services, **last}
    return {name: metrics.open_until for name, metrics in last.items() if metrics.open_until}
