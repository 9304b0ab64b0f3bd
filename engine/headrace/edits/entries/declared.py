"""States and entries as the code declares them, whose values are set as user code sets them.

A task of one key does it, which stamps lifetimes and sets the timers of exact cleanup.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace import clock
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import Process
from headrace.api.records import RowKind
from headrace.api.states import AggregatingState, BroadcastState, ListState, MapState, ReducingState, State, ValueState
from headrace.api.ttl import TtlTime
from headrace.commit.schema_check import check_schemas, declared_schemas
from headrace.edits.edit import JobView
from headrace.edits.entries.edit import EntryName, live_entries
from headrace.edits.entries.written import entry_key, json_of, key_of, typed, types_of_fields
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution.bound_function import declared_states
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.log.checkpoint import Checkpoint
from headrace.log.declared import declared_keys
from headrace.plan.stages import KeyedStage, Plan
from headrace.records.order import processing_time_order
from headrace.state.backend import HashMapBackend, StateBackend
from headrace.state.cleanup import CLEANUP_DOMAINS
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.storage.predicate import OneOf
from headrace.tables.entries import rebuild
from headrace.tables.schemas import TIMERS
from headrace.tables.view import TableView


def as_declared(last: Checkpoint, plan: Plan, operator: str) -> Checkpoint:
    """Return a checkpoint that records what the code declares of an operator: an edit may store what no run has stored yet."""
    check = check_schemas(last.state_schemas, declared_schemas(plan))
    declared = last.declared.with_states({**last.state_schemas, operator: check.schemas[operator]})
    if operator not in last.operator_keys:
        declared = declared.with_keys({**last.operator_keys, operator: declared_keys(plan)[operator]})
    return msgspec.structs.replace(last.without_copies({operator}), declared=declared)


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """A state as the code declares it, whose values can be set as user code sets them."""

    stage: KeyedStage
    state: State

    @classmethod
    def of(cls, plan: Plan, operator: str, state: str, job: JobView) -> DeclaredState:
        """Return a state. Raises as `SetEntry` does."""
        stage = keyed_stage(plan, operator, job.config.job)
        declared = cls(stage, _state(stage, state))
        check_stored(job, plan, operator, state)
        return declared

    @property
    def operator(self) -> Process:
        """Return the operator."""
        assert isinstance(self.stage.operator, Process)  # noqa: S101 - by `keyed_stage`
        return self.stage.operator

    @property
    def type(self) -> Any:
        """Return the type of what is set: the value, that of one key of a map, or all elements of a list."""
        own: Any = self.state
        return list[own.type] if isinstance(own, ListState) else own.type

    def set(self, job: JobView, backend: StateBackend, values: Iterable[tuple[bytes, SetValue]]) -> KeyedProcess:
        """Return a finished process in which user code has set the value of each key (JSON). The stored entries are in `backend`."""
        last, operator = job.last, self.operator
        watermark = last.watermark_of(operator.name)
        keyed = (
            state for state in declared_states(operator.function).values() if not isinstance(state, BroadcastState)
        )
        states = {f"{_OWN}{state.name}": _plain(state) for state in keyed}
        function: type[_SetsValues] = type("_SetsValues", (_SetsValues,), states)
        process = KeyedProcess(
            Process(operator.name, operator.key, function(self.state.name)),
            backend,
            records=(SetValue,),
            watermark=watermark,
            last_watermark=None,
            stage=self.stage.number,
            lifetimes=last.state_ttl.lifetimes(operator.name),
        )
        now = self.time(job)
        order = processing_time_order(last.timeline(self.stage.sources).bucket.next_ordinal, last.checkpoint_id + 1)
        elements = [
            Element(order, now if value.time is None else value.time, RowKind.INSERT, key_json, value)
            for key_json, value in values
        ]
        process.run([elements], ())
        return process

    def time(self, job: JobView) -> int:
        """Return the event time of what is set (ms): the watermark, or before the first one the latest event time, or else now."""
        name = self.operator.name
        reached = (job.last.watermark_of(name), job.last.latest_event_of(name), clock.now())
        return next(time for time in reached if time is not None)

    def needs_times(self, job: JobView) -> bool:
        """Return whether nothing tells when the lifetime of what is set begins: it counts event time, and the job has seen none."""
        ttl, name = self.state.ttl, self.operator.name
        counts = ttl is not None and ttl.time is TtlTime.EVENT
        return counts and job.last.watermark_of(name) is None and job.last.latest_event_of(name) is None


class SetValue(msgspec.Struct, frozen=True):
    """The record that a key gets whose value is set."""

    value: Any
    namespace: str = ""
    entry: Any = None
    """Key within a map."""
    time: int | None = None
    """Event time (ms); None: that of the job."""


_OWN = "own_"
"""Beginning of the attributes with states: a state may be called as a method is."""


class _SetsValues(KeyedProcessFunction[SetValue, SetValue]):
    """Function whose records set values. A subclass has the states of an operator's function."""

    def __init__(self, state: str) -> None:
        """Take the name of the state."""
        self._attribute = f"{_OWN}{state}"

    def process(self, record: SetValue, ctx: Context, /) -> None:  # type: ignore[override]  # noqa: ARG002 - the record says it
        """Set the value."""
        handle = getattr(self, self._attribute).namespace(record.namespace)
        if record.entry is None:
            handle.update(record.value)
        else:
            handle.put(record.entry, record.value)


@dataclass(frozen=True, slots=True)
class DeclaredEntry:
    """An entry as the code declares it: its state and its key, in the form in which they are stored."""

    declared: DeclaredState
    key_json: bytes
    namespace: str
    user_key: bytes | None

    @classmethod
    def of(cls, plan: Plan, name: EntryName, job: JobView) -> DeclaredEntry:
        """Return the entry of a name. Raises as `SetEntry` does."""
        declared = DeclaredState.of(plan, name.operator, name.state, job)
        state, user_key = declared.state, None
        if isinstance(state, MapState):
            if name.entry is None:
                raise ConfigError(
                    f"state '{name.state}' is a map: name the key within it (--entry). Nothing was changed."
                )
            user_key = entry_key(state, name)
        elif name.entry is not None:
            raise ConfigError(f"state '{name.state}' is no map, so it has no --entry. Nothing was changed.")
        return cls(declared, key_of(declared.stage, name, job), name.namespace or "", user_key)

    @property
    def state(self) -> State:
        """Return the state."""
        return self.declared.state

    def live_rows(self, job: JobView) -> list[dict[str, Any]]:
        """Return the live entries of the key in this state, with times in milliseconds."""
        return live_entries(job, self.declared.operator.name, (self.state.name,), [self.key_json.decode()])

    def is_meant(self, row: Mapping[str, Any]) -> bool:
        """Return whether a row is one of those that the edit replaces."""
        wanted = None if self.user_key is None else self.user_key.decode()
        return (row["namespace"] or "") == self.namespace and (
            not isinstance(self.state, MapState) or row["user_key"] == wanted
        )

    def value(self, text: str | None, fields: Mapping[str, str] | None, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Return the new value. Raises `ConfigError` where it does not fit the declared type."""
        type_ = self.declared.type
        if not fields:
            return typed(text or "", type_, f"the value of state '{self.state.name}'")
        if not rows or isinstance(self.state, ListState):
            msg = f"--field changes fields of the value that is there, and {'a list has several' if rows else 'there is none'}: give the whole value. Nothing was changed."
            raise ConfigError(msg)
        what = f"the value of state '{self.state.name}'"
        try:
            record = msgspec.json.decode(rows[0]["value"], type=dict[str, msgspec.Raw])
        except msgspec.ValidationError as error:
            raise ConfigError(
                f"{what} is no record with fields, so --field does not fit: give the value. Nothing was changed."
            ) from error
        types = types_of_fields(type_)
        if types and (unknown := sorted({*fields} - {*types})):
            msg = f"{what} has no field {', '.join(unknown)} (it has: {', '.join(sorted(types))}). Nothing was changed."
            raise ConfigError(msg)
        # A number stays the text that it is: a float would not hold all digits of a decimal.
        changed = {name: json_of(text, types.get(name, Any)) for name, text in fields.items()}
        return typed(msgspec.json.encode({**record, **changed}).decode(), type_, what)

    def set(self, job: JobView, value: Any) -> KeyedProcess:
        """Return a finished process of the key, in which user code has set the value."""
        entry = None
        if isinstance(self.state, MapState):
            entry = msgspec.json.decode(self.user_key or b"", type=self.state.key_type)
        return self.declared.set(
            job,
            entries_of_key(job, self.declared.operator.name, self.key_json),
            [(self.key_json, SetValue(value, self.namespace, entry))],
        )


def entries_of_key(job: JobView, operator: str, key_json: bytes) -> HashMapBackend:
    """Return the entries of a key, and its timers of exact cleanup. A timer of user code must not fire in an edit."""
    backend, group = HashMapBackend(), key_group(key_json, job.last.max_parallelism)

    def view_of(table: str) -> TableView:
        view = job.view(table).of(keys=[key_json.decode()])
        return view.where(OneOf("domain", CLEANUP_DOMAINS)) if table == TIMERS else view

    rebuild(backend, view_of, operator, KeyGroupRange(group, group))
    return backend


def _plain(state: State) -> State:
    """Return a state as one whose value can be set: that of accumulators is stored as a value."""
    if isinstance(state, ReducingState | AggregatingState):
        return ValueState(state.name, state.type, ttl=state.ttl)
    return state


def keyed_stage(plan: Plan, operator: str, job: str) -> KeyedStage:
    """Return the stage of an operator with keyed state. Raises `ConfigError` when the code declares none of that name."""
    stages = {stage.name: stage for stage in plan.keyed if isinstance(stage.operator, Process)}
    if operator not in stages:
        msg = (
            f"the code has no operator '{operator}' with keyed state (it has: {', '.join(sorted(stages)) or 'none'}); "
            f"'headrace state list {job}' shows what is stored. Nothing was changed."
        )
        raise ConfigError(msg)
    return stages[operator]


def _state(stage: KeyedStage, name: str) -> State:
    assert isinstance(stage.operator, Process)  # noqa: S101 - by `keyed_stage`
    states = {state.name: state for state in declared_states(stage.operator.function).values()}
    if name not in states:
        msg = f"operator '{stage.name}' declares no state '{name}' (it declares: {', '.join(sorted(states)) or 'none'}). Nothing was changed."
        raise ConfigError(msg)
    state = states[name]
    if isinstance(state, BroadcastState):
        msg = f"state '{name}' is broadcast: it has no key, and only records of its stream change it. Nothing was changed."
        raise ConfigError(msg)
    return state


def check_stored(job: JobView, plan: Plan, operator: str, state: str) -> None:
    """Raise `StateSchemaError` unless today's code can read what is stored of the state as it is."""
    check = check_schemas(job.last.state_schemas, declared_schemas(plan), job.config.job)
    check.raise_problems()
    if any((pending.operator, pending.state) == (operator, state) for pending in check.migrations):
        msg = (
            f"state '{state}' of operator '{operator}' has a migration that the next run applies: run the job once "
            f"(headrace run {job.config.job}), then change it. Nothing was changed."
        )
        raise StateSchemaError(msg)
