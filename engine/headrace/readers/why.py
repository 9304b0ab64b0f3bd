"""Causes of what a key has: its changes, newest first, each with the input, timers, calls and edits of its checkpoint.

A micro-batch stores what it changed, not which row changed it. So the rows of a key are looked up in the files that the micro-batch
took in, as far as they are still there, and as far as a row reaches the operator with the type that its source gives it: behind a map,
a flat_map or another operator only the files are known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import msgspec

from headrace.api.graph import AsyncWait, Filter, FlatMap, Map, SourceNode, SparkTransform
from headrace.errors import ConfigError, SourceError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import HISTORY_STATE
from headrace.log.facts import Edited
from headrace.log.intervals import taken_in
from headrace.names import counted
from headrace.plan.loader import plan_of
from headrace.plan.stages import Flow, KeyedStage, Plan, Through, ToStage
from headrace.readers.history import ChangeRow, ConditionsAt, changes_of, identity, key_history
from headrace.readers.job_at import JobAtCheckpoint, key_conditions
from headrace.readers.query import milliseconds
from headrace.records.keys import key_reader
from headrace.records.record_columns import from_struct_array
from headrace.report import Time
from headrace.sources.folder.format import UNREADABLE
from headrace.sources.position import NO_FACTS, SourceFacts
from headrace.sources.registry import read_rows_of, source_of
from headrace.sources.row_check import RowCheck
from headrace.sources.source import SourceFile, Want
from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.codec import encode, written_keys
from headrace.state.timers import DOMAINS
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ASYNC_REQUESTS, MATERIALIZER_HISTORY, TIMERS
from headrace.tables.view import entries_of

_MOST_FILES = 100
"""Files of one micro-batch that are searched for rows of the key."""


@dataclass(frozen=True, slots=True)
class InputRows:
    """Rows of the key in one file that a micro-batch took in, by their numbers in the file from 0; None: nobody can tell."""

    source: str
    file: str
    rows: tuple[int, ...] | None
    records: Sequence[Any] = ()
    """The records of these rows."""


@dataclass(slots=True)
class Cause:
    """A checkpoint that changed the key: what it did, and what it took in."""

    checkpoint: Checkpoint | None
    """None: what happened since the last one, as entries that expired."""

    changes: list[ChangeRow] = field(default_factory=list)
    """Events of `key_history`, each with the value before it as `before`."""

    timers: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    inputs: list[InputRows] = field(default_factory=list)


@dataclass(slots=True)
class Why:
    """Causes, newest first, and sentences on what nobody can tell."""

    causes: list[Cause]
    untold: list[str]


def why(
    job: JobAtCheckpoint,
    key: str,
    *,
    operator: str | None = None,
    field_name: str | None = None,
    sink: str | None = None,
    limit: int = 10,
) -> Why:
    """Return what led to what a key has: the last `limit` checkpoints that changed it.

    With `field_name`, only changes of this field of a value; with `sink`, only those of operators that lead to it. Raises `ConfigError` for an
    unknown operator, and a field that no value has; `StorageError` when the files of the checkpoint are gone.
    """
    plan = plan_of(job.config.code)
    events = [*_changes(job, key, operator), *_history_rows(job, key, operator)]
    if sink is not None:
        leading = {stage.name for stage in plan.keyed if sink in plan.sinks_behind(stage.name)}
        events = [event for event in events if event["operator"] in leading]
    if field_name is not None:
        _check_field(field_name, events)
        events = [
            event for event in events if _field(event["before"], field_name) != _field(event["value"], field_name)
        ]
    by_checkpoint: dict[int | None, list[ChangeRow]] = defaultdict(list)
    for event in events:
        by_checkpoint[event["checkpoint_id"]].append(event)
    checkpoints = {checkpoint.checkpoint_id: checkpoint for checkpoint in job.lineage.checkpoints}
    numbers = sorted(by_checkpoint, key=lambda number: (number is None, number or 0), reverse=True)
    causes = [
        Cause(None if number is None else checkpoints.get(number), by_checkpoint[number]) for number in numbers[:limit]
    ]
    answer = Why(causes, [])
    _add_waiting(job, key, operator, causes)
    InputSearch(job, plan, key, answer).add()
    _add_turns(job, answer)
    if len(numbers) > limit:
        answer.untold.append(f"{counted(len(numbers) - limit, 'earlier checkpoint')} changed the key as well (-n).")
    return answer


def _add_turns(job: JobAtCheckpoint, answer: Why) -> None:
    """Add sentences on restores and promotions since the first cause: what they undid is not among the causes."""
    first = min((cause.checkpoint.checkpoint_id for cause in answer.causes if cause.checkpoint is not None), default=0)
    for checkpoint in job.lineage.newest_first():
        if checkpoint.checkpoint_id < first:
            return
        note = f"{'' if checkpoint.note is None else f' ({checkpoint.note})'}"
        if checkpoint.kind is Kind.RESTORE:
            answer.untold.append(
                f"Checkpoint {checkpoint.checkpoint_id} restored the job to {checkpoint.restored_from}{note}: what came between is undone."
            )
        elif checkpoint.kind is Kind.PROMOTION:
            answer.untold.append(
                f"Checkpoint {checkpoint.checkpoint_id} promoted branch '{checkpoint.name}'{note}: it holds all that the branch changed."
            )


def _changes(job: JobAtCheckpoint, key: str, operator: str | None) -> Iterator[ChangeRow]:
    before: dict[Any, str | None] = {}
    for event in key_history(job, key, operator).dicts():
        value = event["value"]
        yield {**event, "before": before.get(identity(event))}
        before[identity(event)] = value


def _conditions_at(key: str, operator: str | None) -> ConditionsAt:
    return lambda checkpoint: [*key_conditions(key, checkpoint.max_parallelism), *entries_of(operator)]


def _history_rows(job: JobAtCheckpoint, key: str, operator: str | None) -> Iterator[ChangeRow]:
    """Yield the changes of a materializer's history as events: who wrote the row of a sink, and who replaced or took it back."""
    by_hand = {
        checkpoint.checkpoint_id
        for checkpoint in job.lineage.checkpoints
        if isinstance(cause := checkpoint.cause, Edited) and cause.state == HISTORY_STATE
    }
    changes = changes_of(job, MATERIALIZER_HISTORY, _conditions_at(key, operator), "checkpoint_id, sequence_number")
    before: dict[tuple[Any, ...], str | None] = {}
    for row in changes.dicts():
        own = (row["operator"], row["key"], row["sequence_number"])
        what = f"row {row['row_kind']} of the history"
        if row["deleted"]:
            what = f"row of the history taken {'out by hand' if row['checkpoint_id'] in by_hand else 'back'}"
        event = {**row, "state": HISTORY_STATE, "what": what, "value": row["row"], "user_key": None}
        yield {**event, "before": before.get(own)}
        before[own] = row["row"]


def _check_field(name: str, events: Sequence[ChangeRow]) -> None:
    """Raise `ConfigError` for a field that none of the values has."""
    values = [msgspec.json.decode(raw) for event in events for raw in (event["value"], event["before"]) if raw]
    known = dict.fromkeys(field for value in values if isinstance(value, dict) for field in value)
    if events and name not in known:
        listed = f"they have: {', '.join(known)}" if known else "none of them has fields"
        msg = f"no value of this key has a field '{name}' ({listed})"
        raise ConfigError(msg)


def _field(raw: str | None, name: str) -> Any:
    if raw is None:
        return None
    value = msgspec.json.decode(raw)
    return value.get(name) if isinstance(value, dict) else None


def _add_waiting(job: JobAtCheckpoint, key: str, operator: str | None, causes: Iterable[Cause]) -> None:
    """Add the timers and calls of the key that each checkpoint set, or ended."""
    by_number = {cause.checkpoint.checkpoint_id: cause for cause in causes if cause.checkpoint is not None}
    conditions_at = _conditions_at(key, operator)
    for row in changes_of(job, TIMERS, conditions_at, "timestamp, checkpoint_id").dicts():
        cause = by_number.get(row["checkpoint_id"])
        if cause is not None and not DOMAINS[row["domain"]].is_internal:
            what = "fired or deleted" if row["deleted"] else "set"
            cause.timers.append(f"{row['operator']}: timer of {row['domain']} at {_utc(row['timestamp'])} {what}")
    for row in changes_of(job, ASYNC_REQUESTS, conditions_at, "sequence, checkpoint_id").dicts():
        cause = by_number.get(row["checkpoint_id"])
        if cause is not None:
            state = "ended" if row["deleted"] else f"{row['status']}, {counted(row['attempts'], 'attempt')}"
            error = f" (last error: {row['last_error']})" if row["last_error"] else ""
            cause.calls.append(f"{row['operator']}: call {state}{error}")


def _utc(value: Any) -> str:
    return str(Time(milliseconds(value)))


@dataclass(slots=True)
class InputSearch:
    """Looks for rows of the key in what micro-batches took in; with `is_broadcast`, for rows that all keys get."""

    job: JobAtCheckpoint
    plan: Plan
    key: str
    answer: Why
    is_broadcast: bool = False

    def add(self) -> None:
        """Add the rows to the causes, and sentences on what cannot be known."""
        lineage = self.job.lineage.checkpoints
        before = {after.checkpoint_id: former for former, after in pairwise(lineage)}
        for cause in self.answer.causes:
            checkpoint = cause.checkpoint
            if checkpoint is None or checkpoint.kind is not Kind.BATCH or checkpoint.checkpoint_id not in before:
                continue
            self._say_resumed(before[checkpoint.checkpoint_id], checkpoint)
            operators = dict.fromkeys(change["operator"] for change in cause.changes)
            stages = [stage for stage in self.plan.keyed if stage.name in operators]
            for name in dict.fromkeys(name for stage in stages for name in stage.sources):
                own = [stage for stage in stages if name in stage.sources]
                cause.inputs += self._of_source(name, own, before[checkpoint.checkpoint_id], checkpoint)

    def _say_resumed(self, before: Checkpoint, after: Checkpoint) -> None:
        """Say where a micro-batch went on with what had waited: its rows are in files that earlier ones took in."""
        resumed = before.work.pending + before.work.held
        if resumed:
            self._say(
                f"checkpoint {after.checkpoint_id} also went on with {counted(resumed, 'record')} that had waited for a service or were held: the change may "
                "come from one of them, whose row an earlier checkpoint took in."
            )

    def _of_source(
        self, name: str, stages: Sequence[KeyedStage], before: Checkpoint, after: Checkpoint
    ) -> Iterator[InputRows]:
        node = next(source for source in self.plan.sources if source.name == name)
        since, reached = (checkpoint.sources.get(name, NO_FACTS) for checkpoint in (before, after))
        if reached.partitions:
            self._say(f"source '{name}' is a topic: its offsets are known, and its messages are not searched.")
            yield from _offsets(name, since, reached)
            return
        try:
            files = self._files(node, before, after)
        except SourceError as error:
            self._say(f"source '{name}': what checkpoint {after.checkpoint_id} took in is not there any more: {error}")
            return
        flow = next(source.flow for source in self.plan.source_stages if source.name == name)
        all_ways = [way for stage in stages for way in _ways(flow, stage.name, node.record)]
        ways = [way for way in all_ways if (way.reader is None) == self.is_broadcast]
        if not ways and files:
            self._say(
                f"source '{name}': its rows reach the operator changed, or through another operator, so only its files are known."
            )
        if len(files) > _MOST_FILES:
            self._say(
                f"source '{name}': checkpoint {after.checkpoint_id} took in {counted(len(files), 'file')}, too many to search."
            )
            ways = []
        for file in files:
            records = self._records(node, file, ways) if ways else None
            if records is None or records:
                numbers = None if records is None else tuple(number for number, _ in records)
                yield InputRows(name, file.name, numbers, [record for _, record in records or ()])

    def _files(self, node: SourceNode, before: Checkpoint, after: Checkpoint) -> Sequence[SourceFile]:
        """Return the files that a micro-batch took in, also those of which it took a part."""
        since, reached = (checkpoint.sources.get(node.name, NO_FACTS) for checkpoint in (before, after))
        if not reached.last and not reached.begun:
            return ()
        if since.begun or reached.begun:
            self._say(
                f"source '{node.name}': several checkpoints took in parts of a file; its rows are shown at each of them."
            )
        earlier = [c for c in self.job.lineage.checkpoints if c.checkpoint_id <= before.checkpoint_id]
        until = max(reached.last, *reached.begun, "")
        want = Want(taken_in(earlier, node.name), after.interval, until)
        return source_of(node, self.job.config).plan(since, want).files

    def _records(self, node: SourceNode, file: SourceFile, ways: Sequence[_Way]) -> list[tuple[int, Any]] | None:
        """Return the records of the key in a file with their numbers; None if nobody can tell."""
        try:
            rows = read_rows_of(file, node, JobFolder.of(self.job.config))
            checked = RowCheck(node, rows.decoder).check(rows.table, rows.problems)
        except UNREADABLE as error:
            self._say(f"source '{node.name}': {file.path} cannot be read: {error}")
            return None
        wanted = {text.encode() for text in written_keys(self.key)}
        records = from_struct_array(checked.columns, node.record)
        try:
            return [
                (number, record)
                for number, record in enumerate(records)
                if record is not None and any(way.key_of(record) in wanted for way in ways)
            ]
        except Exception as error:  # noqa: BLE001 - a filter or a key is code of the job
            self._say(
                f"source '{node.name}': the job's code failed at a row of {file.path}: {type(error).__name__}: {error}"
            )
            return None

    def _say(self, sentence: str) -> None:
        if sentence not in self.answer.untold:
            self.answer.untold.append(sentence)


def _offsets(source: str, since: SourceFacts, reached: SourceFacts) -> Iterator[InputRows]:
    """Yield the offsets of a topic that a micro-batch took in, by partition."""
    for number, partition in sorted(reached.partitions.items()):
        first = since.partitions[number].next if number in since.partitions else 0
        if first < partition.next:
            yield InputRows(source, f"partition {number}, offsets {first} to {partition.next - 1}", None)


@dataclass(frozen=True, slots=True)
class _Way:
    """A way on which rows of a source reach an operator as they are: the filters on it, and the key; None: all keys get them."""

    filters: tuple[Callable[[Any], object], ...]
    reader: Callable[[Any], object] | None

    def key_of(self, record: Any) -> bytes | None:
        """Return the key of a record as JSON; None for one that a filter takes out. Raises the errors of the job's code."""
        if not all(predicate(record) for predicate in self.filters):
            return None
        return BROADCAST_KEY if self.reader is None else encode(self.reader(record))


def _ways(flow: Flow, stage: str, record: type, filters: tuple[Callable[[Any], object], ...] = ()) -> Iterator[_Way]:
    """Yield the ways from a flow to a stage on which no code changes the records."""
    for use in flow.uses:
        if isinstance(use.to, ToStage):
            if use.to.stage == stage:
                yield _Way(filters, None if use.to.key is None else key_reader(use.to.key))
        elif (
            isinstance(use.to, Through) and use.to.flow.record is record and not isinstance(use.to.transform, _CHANGES)
        ):
            own = use.to.transform
            yield from _ways(
                use.to.flow, stage, record, (*filters, own.predicate) if isinstance(own, Filter) else filters
            )


_CHANGES = Map | FlatMap | SparkTransform | AsyncWait
"""Transforms that may give other records."""
