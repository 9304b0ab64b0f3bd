"""Events behind the versions of a key (`Stream.apply_changes`): what each of them did, and the input row that it was."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.api.graph import Process, VersionedFunction
from headrace.api.states import MapState
from headrace.errors import ConfigError
from headrace.plan.loader import plan_of
from headrace.plan.stages import Plan
from headrace.readers.history import key_history
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import Rows
from headrace.readers.state import fullest_keys, get
from headrace.readers.why import Cause, InputRows, InputSearch, Why
from headrace.state.broadcast import BROADCAST_KEY
from headrace.state.codec import Codec

_EVERYBODY = BROADCAST_KEY.decode()


@dataclass(frozen=True, slots=True)
class EventOfVersion:
    """Event of a key that an operator stores for its versions."""

    operator: str
    what: str
    """What it did: it opens a version, goes on with the one before it, deletes, or truncates."""

    fields: dict[str, Any] | None
    """Fields of the row that it made; None for a deletion and a truncate."""

    at: int
    """Event time (ms)."""

    sequence: Any
    """Record with its place in the sequence."""

    checkpoint_id: int | None
    """Checkpoint that stored it first; None: a vacuum has removed the files that say so."""

    source: InputRows | None
    """The one row of its file that it was; None: nobody can tell."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Events by operator, each in the order of its sequence, and sentences on what nobody can tell."""

    events: list[EventOfVersion]
    untold: list[str]


def versions_of(job: JobAtCheckpoint, key: str, operator: str | None = None) -> Versions:
    """Return the events of a key that operators store for versions of a row.

    Raises `StorageError` when the files of the checkpoint are gone or damaged.
    """
    answer = Why([], [])
    events: list[EventOfVersion] = []
    for name, function in _with_versions(job, operator):
        with suppress(ConfigError):  # the checkpoint is older than the operator, or than the state
            events += _KeyOfOperator(job, key, name, function).events(answer)
    return Versions(events, answer.untold if events else [])


def keys_with_most_events(job: JobAtCheckpoint, operator: str | None = None, limit: int = 20) -> Rows:
    """Return the keys with most events that operators store for versions, those with most first: events, and bytes.

    Raises `StorageError` when the files of the checkpoint are gone or damaged.
    """
    rows: list[tuple[Any, ...]] = []
    for name, function in _with_versions(job, operator):
        of_operator = fullest_keys(job, name, type(function).events.name, limit).dicts()
        rows += ((name, row["key"], row["entries"], row["bytes"]) for row in of_operator)
    return Rows(["operator", "key", "events", "bytes"], sorted(rows, key=lambda row: (-row[2], row[:2]))[:limit])


def _with_versions(job: JobAtCheckpoint, operator: str | None) -> Iterator[tuple[str, VersionedFunction]]:
    """Yield the operators of the pipeline that store events for versions: all of them, or the one of this name."""
    for stage in plan_of(job.config.code).keyed:
        function: object = stage.operator.function if isinstance(stage.operator, Process) else None
        if isinstance(function, VersionedFunction) and operator in {None, stage.name}:
            yield stage.name, function


@dataclass(frozen=True, slots=True)
class _KeyOfOperator:
    """One key of an operator that stores events."""

    job: JobAtCheckpoint
    key: str
    operator: str
    function: VersionedFunction

    def events(self, answer: Why) -> Iterator[EventOfVersion]:
        """Yield the events in the order of their sequence; `answer` takes what nobody can tell."""
        stored = self._stored()
        truncates = _of(stored, self._truncates())
        written = _of(stored, self._written(self.key, self._state.name)) | truncates
        numbers = {number for place, number in written.items() if place not in truncates}
        inputs = self._inputs(numbers, InputSearch(self.job, self._plan, self.key, answer))
        of_truncates = InputSearch(self.job, self._plan, _EVERYBODY, answer, is_broadcast=True)
        inputs_of_truncates = self._inputs({*truncates.values()}, of_truncates)
        for of_place in self.function.told(stored, truncates):
            event, number = stored[of_place.place], written.get(of_place.place)
            taken = (inputs_of_truncates if of_place.place in truncates else inputs).get(number, ())
            row = self._row_at(of_place.place, event, taken)
            yield EventOfVersion(self.operator, of_place.what, of_place.fields, event.at, event.sequence, number, row)

    @property
    def _plan(self) -> Plan:
        return plan_of(self.job.config.code)

    @property
    def _state(self) -> MapState[str, Any]:
        """Return the declared state: in a task that runs in this process, a handle has its place in the function itself."""
        return type(self.function).events

    def _stored(self) -> dict[str, Any]:
        """Return the stored events by place."""
        state = self._state
        codec: Codec[Any] = Codec(state.type, f"state '{state.name}' of operator '{self.operator}'")
        rows = get(self.job, self.key, self.operator, state.name).dicts()
        return {_place(row): codec.decode(row["value"].encode()) for row in rows}

    def _truncates(self) -> dict[str, int]:
        """Return by place the checkpoint that stored a truncate; nothing where the operator has none, or had none then."""
        state = type(self.function).truncates
        with suppress(ConfigError):
            return {} if state is None else self._written(_EVERYBODY, state.name)
        return {}

    def _written(self, key: str, state: str) -> dict[str, int]:
        """Return by place the checkpoint that stored an event first, since it was removed for the last time."""
        first: dict[str, int] = {}
        for event in key_history(self.job, key, self.operator, state).dicts():
            if event["deleted"]:
                first.pop(_place(event), None)
            elif event["checkpoint_id"] is not None:
                first.setdefault(_place(event), event["checkpoint_id"])
        return first

    def _inputs(self, numbers: Iterable[int], search: InputSearch) -> dict[int | None, list[InputRows]]:
        """Return by checkpoint the rows of its input that a search finds."""
        known = {checkpoint.checkpoint_id: checkpoint for checkpoint in self.job.lineage.checkpoints}
        causes = {number: Cause(known.get(number), [{"operator": self.operator}]) for number in sorted(numbers)}
        search.answer.causes = [*causes.values()]
        search.add()
        return {number: cause.inputs for number, cause in causes.items()}

    def _row_at(self, place: str, event: Any, inputs: Iterable[InputRows]) -> InputRows | None:
        """Return the row among the input of a checkpoint that may be an event; the first of equal ones."""
        for rows in inputs:
            for number, record in zip(rows.rows or (), rows.records, strict=False):
                if self.function.may_be(record, place, event):
                    return InputRows(rows.source, rows.file, (number,))
        return None


def _of(stored: Mapping[str, Any], numbers: Mapping[str, int]) -> dict[str, int]:
    """Return the checkpoints of the stored places."""
    return {place: number for place, number in numbers.items() if place in stored}


def _place(entry: dict[str, Any]) -> str:
    return msgspec.json.decode(entry["user_key"], type=str)
