"""Edits of entries by hand: set, delete, expire.

A value is set as user code would set it: by the declared state, in a task of one key, which stamps lifetimes and sets the timers of
exact cleanup. Entries are deleted or expire as rows, so that also those go that no code of today can read.

The next micro-batch sees the new entries. No sink changes before: its rows are results of records and timers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec
import pyarrow as pa

from headrace import clock
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.graph import NULL_KEY, OperatorFunction, Process
from headrace.api.records import RowKind, unit_of
from headrace.api.states import AggregatingState, BroadcastState, ListState, MapState, ReducingState, State, ValueState
from headrace.api.ttl import TtlTime
from headrace.api.types import key_types
from headrace.commit.schema_check import check_schemas, declared_schemas
from headrace.config import JobConfig, parse_timestamp
from headrace.edits.edit import HandEdit, JobView
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution.bound_function import declared_states
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.log.checkpoint import Checkpoint
from headrace.log.declared import declared_keys
from headrace.log.facts import Edited
from headrace.log.ttl import declared_ttls, row_expiries
from headrace.plan.loader import plan_of
from headrace.plan.stages import KeyedStage, Plan
from headrace.records.column_types import columns_of
from headrace.records.keys import typed_key
from headrace.records.order import processing_time_order
from headrace.records.record_columns import UnfitRecord, from_struct_array, to_struct_array
from headrace.state.backend import EntryChange, HashMapBackend, StateBackend
from headrace.state.cleanup import CLEANUP_DOMAINS
from headrace.state.codec import KeyCodec, encode, key_texts
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.timers import TimerChange
from headrace.state.ttl import LiveTtl
from headrace.storage.predicate import OneOf
from headrace.tables.changelog import KeyedState
from headrace.tables.entries import rebuild
from headrace.tables.expiry import RowExpiry, deleted_if_dead
from headrace.tables.schemas import KEYED_STATE, TIMERS
from headrace.tables.view import TableView, in_milliseconds

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob


class EntryName(NamedTuple):
    """Entries of one key, as a person names them: `key` and `entry` are JSON, or plain text."""

    operator: str
    state: str
    key: str
    namespace: str | None = None
    """None: of all namespaces, for entries that go; none of them for a value that is set."""
    entry: str | None = None
    """Key within a map."""


class EntryDifference(NamedTuple):
    """One entry before and after an edit: values as JSON text, None where there is none."""

    key: str
    namespace: str | None
    user_key: str | None
    before: str | None
    after: str | None


@dataclass(frozen=True, slots=True)
class EntryEffect:
    """What an edit of entries does."""

    name: EntryName
    differences: tuple[EntryDifference, ...]
    changes: tuple[tuple[KeyedState, Sequence[EntryChange]], ...]
    timers: Sequence[TimerChange] = ()
    timers_left: int = 0
    """Timers of the key that stay, though nothing else is left of it."""


class EditEntries(HandEdit[EntryEffect]):
    """Edit of entries by hand. Raises `ConfigError` where it would change nothing."""

    __slots__ = ()

    name: EntryName
    why: str
    command: ClassVar[str]

    def additions(self, job: OpenJob, effect: EntryEffect) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`."""
        changelog = self.changelog(job, effect.name.operator)
        for store, changes in effect.changes:
            yield KEYED_STATE, changelog.values(store, changes)
        if effect.timers:
            yield TIMERS, changelog.timers(effect.timers)

    def facts(self, job: OpenJob, effect: EntryEffect, rows: int) -> dict[str, Any]:  # noqa: ARG002 - timers are rows, too
        """See `StateEdit.facts`."""
        name = effect.name
        return {
            "base": self._base(job.last, job.config.code),
            "metrics": {"entries_edited": len(effect.differences)},
            "note": f"state {self.command} of '{name.operator}.{name.state}': {self.why}",
            "cause": Edited(self.command, name.operator, name.state),
        }

    def _base(self, last: Checkpoint, code: Any) -> Checkpoint:  # noqa: ARG002 - for those that read the code
        return last.without_copies({self.name.operator})


def named_state(config: JobConfig, operator: str | None, state: str | None) -> tuple[str, str]:
    """Return the operator and the state that a person means, who may leave out what only one has.

    Raises `ConfigError` when several are meant, or none. What the code does not declare must be named in full.
    """
    if operator is not None and state is not None:
        return operator, state
    declared = [
        (stage.name, own.name)
        for stage in plan_of(config.code).keyed
        if isinstance(stage.operator, Process)
        for own in declared_states(stage.operator.function).values()
    ]
    meant = [pair for pair in declared if operator in {None, pair[0]} and state in {None, pair[1]}]
    if len(meant) == 1:
        return meant[0]
    pairs = "; ".join(f"--operator {name} --state {own}" for name, own in meant or declared) or "none"
    which = "several states are meant" if meant else "the code declares no such state"
    raise ConfigError(f"{which}: name one of them ({pairs}). Nothing was changed.")


# ------------------------------------------------------------------------------------------------------ a value is set


@dataclass(frozen=True, slots=True)
class SetEntry(EditEntries):
    """Edit that sets the value of an entry, typed by the state that the code declares.

    `value` is JSON, or plain text for a state of texts; of a list, a JSON array takes the place of all elements. With `fields`, the
    value has these fields of its record changed, each given as JSON or plain text.

    Raises `ConfigError` for an operator or a state that the code does not declare, for a key that has no such entry unless it
    `creates` one, and for a key or a value that does not fit its declared type; `StateSchemaError` when the code cannot read what is stored.
    """

    name: EntryName
    value: str | None = None
    fields: Mapping[str, str] | None = None
    creates: bool = False
    why: str = ""

    command: ClassVar[str] = "set"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        declared = DeclaredEntry.of(plan_of(job.config.code), self.name, job)
        before = declared.live_rows(job)
        rows = [row for row in before if declared.is_meant(row)]
        if not rows and not self.creates:
            raise ConfigError(
                f"{_no_entry(job, self.name, declared.key_json.decode())} To make a new one: --create. Nothing was changed."
            )
        value = declared.value(self.value, self.fields, rows)
        process = declared.set(job, value)
        changes = tuple((store, of_store) for store, of_store in process.changes() if of_store)
        after = {row.user_key: row for store, own in changes if store.name == self.name.state for row in own}
        differences = tuple(_differences(declared, rows, after))
        if not differences:
            raise ConfigError(f"{_shown(self.name)} has that value already. Nothing was changed.")
        return EntryEffect(self.name, differences, changes, process.timers.changes())

    def _base(self, last: Checkpoint, code: Any) -> Checkpoint:
        return as_declared(last, plan_of(code), self.name.operator)


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
            user_key = _entry_key(state, name)
        elif name.entry is not None:
            raise ConfigError(f"state '{name.state}' is no map, so it has no --entry. Nothing was changed.")
        return cls(declared, _key_of(declared.stage, name, job), name.namespace or "", user_key)

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
            return _typed(text or "", type_, f"the value of state '{self.state.name}'")
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
        types = _types_of_fields(type_)
        if types and (unknown := sorted({*fields} - {*types})):
            msg = f"{what} has no field {', '.join(unknown)} (it has: {', '.join(sorted(types))}). Nothing was changed."
            raise ConfigError(msg)
        # A number stays the text that it is: a float would not hold all digits of a decimal.
        changed = {name: _json_of(text, types.get(name, Any)) for name, text in fields.items()}
        return _typed(msgspec.json.encode({**record, **changed}).decode(), type_, what)

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


def _key_of(stage: KeyedStage, name: EntryName, job: JobView) -> bytes:
    """Return the stored key that a name means: where nothing declares its type, the only one that is there."""
    if all(key_types(record, key) is None for record, key in zip(stage.takes, stage.keys, strict=True)):
        live = {row["key"] for row in live_entries(job, name.operator, (name.state,), key_texts(name.key))}
        if len(live) == 1:
            return str(live.pop()).encode()
    return stored_key(stage, name.key)


def stored_key(stage: KeyedStage, text: str) -> bytes:
    """Return the JSON text under which an operator stores a key that somebody has written. Raises `ConfigError` where it does not fit.

    Where nothing declares the type of the key, it must be JSON as it is stored, or text that is no JSON. `[null]` is the key of records
    whose key is null, which an outer join keeps.
    """
    if _is_null_key(text):
        return _null_key(stage)
    record, key = next((record, key) for record, key in zip(stage.takes, stage.keys, strict=True) if key is not None)
    types = key_types(record, key)
    if types is None and len(key_texts(text)) > 1 and not text.lstrip().startswith('"'):
        msg = (
            f"nobody can tell whether {text!r:.200} is a text or a number: the key of operator '{stage.name}' is a function without the type that it "
            "returns. Annotate it, or write a text as JSON, in quotes. Nothing was changed."
        )
        raise ConfigError(msg)
    target: Any = Any if types is None else types[0] if len(types) == 1 else tuple[types]  # type: ignore[valid-type]
    try:
        value = _read(text, target)
        return encode(typed_key([*value] if isinstance(value, tuple) else value, types, key))
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        msg = f"{text!r:.200} is no key of operator '{stage.name}' (its key is {key}): {error}. Nothing was changed."
        raise ConfigError(msg) from error


def _is_null_key(text: str) -> bool:
    try:
        return bool(msgspec.json.decode(text) == NULL_KEY)
    except msgspec.DecodeError:
        return False


def _null_key(stage: KeyedStage) -> bytes:
    assert isinstance(stage.operator, Process)  # noqa: S101 - by `keyed_stage`
    function = stage.operator.function
    if not (isinstance(function, OperatorFunction) and function.takes_null_keys):
        msg = (
            f"[null] is the key of records whose key is null, and operator '{stage.name}' takes none: they go to the quarantine. A text is written "
            "as JSON, in quotes. Nothing was changed."
        )
        raise ConfigError(msg)
    return encode(NULL_KEY)


def _read(text: str, type_: Any) -> Any:
    """Return what somebody has written as JSON of a type, or else as plain text. Raises `msgspec.ValidationError` where neither fits."""
    try:
        return msgspec.json.decode(text, type=type_)
    except msgspec.DecodeError as error:
        try:
            return msgspec.convert(text, type=type_)
        except msgspec.ValidationError:
            raise msgspec.ValidationError(str(error)) from error


def _entry_key(state: MapState[Any, Any], name: EntryName) -> bytes:
    codec: KeyCodec[Any] = KeyCodec(state.key_type, f"state '{state.name}'")
    return codec.encode(_typed(name.entry or "", state.key_type, f"the key within state '{state.name}'"))


def _typed(text: str, type_: Any, what: str) -> Any:
    """Return a value that somebody has written as JSON, or as plain text where that fits. Raises `ConfigError` where neither does."""
    try:
        return _as_stored(_read(text, type_), type_)
    except msgspec.ValidationError as error:
        msg = f"{what} must be {_name(type_)}, as JSON: {error}. Given: {text!r:.200}. Nothing was changed."
        raise ConfigError(msg) from error
    except UnfitRecord as error:
        field = error.field.removeprefix("value").removeprefix(".")
        raise ConfigError(f"{what} does not fit: {field} {error.why}. Nothing was changed.") from error


def _types_of_fields(type_: Any) -> dict[str, Any]:
    """Return the types of a record's fields, by their names in JSON; nothing for a type without declared fields."""
    if not _is_struct(type_):
        return {}
    return {field.encode_name: field.type for field in msgspec.structs.fields(type_)}


def _json_of(text: str, type_: Any) -> msgspec.Raw | str:
    """Return what somebody has written as JSON of a type, or as a time where the type is one, or else as plain text."""
    try:
        msgspec.json.decode(text, type=type_)
    except msgspec.DecodeError:
        return _time_of(text, type_) or text
    return msgspec.Raw(text.encode())


def _time_of(text: str, type_: Any) -> msgspec.Raw | None:
    """Return a time as the number that a field of a time holds; None for another type, and for what is no time."""
    per_millisecond = {"ms": 1, "us": 1000}.get(unit_of(type_) or "")
    try:
        return None if per_millisecond is None else msgspec.Raw(b"%d" % (parse_timestamp(text) * per_millisecond))
    except ValueError:
        return None


def _as_stored(value: Any, type_: Any) -> Any:
    """Return a value as it comes back from columns: decimals have their declared digits. Raises `UnfitRecord` where they don't fit."""
    record = msgspec.defstruct("Value", [("value", type_)])
    try:
        columns_of(record)
    except ConfigError:  # a state may hold what has no columns
        return value
    (stored,) = from_struct_array(to_struct_array([record(value)], record), record)
    return stored.value  # type: ignore[union-attr]  # its record has a value


def _name(type_: Any) -> str:
    name: str = getattr(type_, "__name__", "") if isinstance(type_, type) else ""
    return name or str(type_)


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _differences(
    declared: DeclaredEntry, rows: Sequence[Mapping[str, Any]], after: Mapping[bytes | None, EntryChange]
) -> Iterator[EntryDifference]:
    key = declared.key_json.decode()
    left = dict(after)
    for row in rows:
        user_key = None if row["user_key"] is None else row["user_key"].encode()
        change = left.pop(user_key, None)
        if change is None:
            continue
        raw = None if change.raw is None else change.raw.decode()
        if raw != row["value"]:
            yield EntryDifference(key, row["namespace"], row["user_key"], row["value"], raw)
    for user_key, change in left.items():
        if change.raw is not None:
            shown = None if user_key is None else user_key.decode()
            yield EntryDifference(key, change.namespace or None, shown, None, change.raw.decode())


# ------------------------------------------------------------------------------------------------------- entries go


@dataclass(frozen=True, slots=True)
class DeleteEntries(EditEntries):
    """Edit that deletes entries of a key. Its timers stay. Raises `ConfigError` when nothing is stored under the name."""

    name: EntryName
    why: str = ""

    command: ClassVar[str] = "delete"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        rows = _named_rows(job, self.name)
        changes = [EntryChange(row["key"].encode(), None, 0, 0, row["namespace"] or "", _bytes(row)) for row in rows]
        deleted = _gone(rows)
        return EntryEffect(
            self.name, deleted, ((_Stored(self.name.state), changes),), timers_left=_timers_left(job, self.name, rows)
        )


@dataclass(frozen=True, slots=True)
class ExpireEntries(EditEntries):
    """Edit that ends the lifetime of entries of a key, as if their TTL had passed.

    Raises `ConfigError` when nothing is stored under the name, and for a state without a TTL, or whose clock has not begun.
    """

    name: EntryName
    why: str = ""

    command: ClassVar[str] = "expire"

    def look(self, job: JobView) -> EntryEffect:
        """See `StateEdit.look`."""
        rows = _named_rows(job, self.name)
        expiry = next((expiry for expiry in _expiries(job) if (expiry.operator, expiry.state) == self.name[:2]), None)
        stamps = [None if expiry is None else expiry.live.dead_until(expiry.clock, row["ttl_ms"] or 0) for row in rows]
        if expiry is None or None in stamps:
            msg = (
                f"state '{self.name.state}' of operator '{self.name.operator}' has no TTL, or its clock has not begun, so that nothing in it "
                "expires: delete the entries instead (headrace state delete). Nothing was changed."
            )
            raise ConfigError(msg)
        changes = [
            EntryChange(
                row["key"].encode(),
                row["value"].encode(),
                stamp or 0,
                row["ttl_ms"] or 0,
                row["namespace"] or "",
                _bytes(row),
            )
            for row, stamp in zip(rows, stamps, strict=True)
        ]
        deleted = _gone(rows)
        return EntryEffect(self.name, deleted, ((_Stored(self.name.state, expiry.live), changes),))


@dataclass(slots=True)
class _Stored:
    """State whose entries are changed as rows. Without `lifetime` they go."""

    name: str
    lifetime: LiveTtl | None = None

    def expires_at(self, stamp: int, own_ttl: int = 0, /) -> int | None:
        """Return when an entry expires (ms); None if it is removed."""
        return None if self.lifetime is None else self.lifetime.expires_at(stamp, own_ttl)


def _gone(rows: Sequence[Mapping[str, Any]]) -> tuple[EntryDifference, ...]:
    """Return the differences of entries that go."""
    return tuple(EntryDifference(row["key"], row["namespace"], row["user_key"], row["value"], None) for row in rows)


def _named_rows(job: JobView, name: EntryName) -> list[dict[str, Any]]:
    rows = [row for row in live_entries(job, name.operator, (name.state,), key_texts(name.key)) if _is_named(name, row)]
    if not rows:
        raise ConfigError(f"{_no_entry(job, name, name.key)} Nothing was changed.")
    for what, column in (("key", "key"), ("entry", "user_key")):
        meant = sorted({row[column] for row in rows if row[column] is not None})
        if len(meant) > 1 and (what == "key" or name.entry is not None):
            raise ConfigError(
                f"several are meant by {what} {getattr(name, what)}: {', '.join(meant)}. Write it as JSON, in single quotes. Nothing was changed."
            )
    return rows


def _is_named(name: EntryName, row: Mapping[str, Any]) -> bool:
    is_in = name.namespace is None or (row["namespace"] or "") == name.namespace
    return is_in and (name.entry is None or row["user_key"] in key_texts(name.entry))


def _timers_left(job: JobView, name: EntryName, rows: Sequence[Mapping[str, Any]]) -> int:
    """Return the number of user code's timers of the rows' keys."""
    timers = job.view(TIMERS).of(name.operator, keys={row["key"] for row in rows}).live(["domain"])
    return sum(domain not in CLEANUP_DOMAINS for domain in timers["domain"].to_pylist())


def _bytes(row: Mapping[str, Any]) -> bytes | None:
    return None if row["user_key"] is None else row["user_key"].encode()


def live_entries(job: JobView, operator: str, states: Iterable[str], keys: Iterable[str]) -> list[dict[str, Any]]:
    """Return the entries of some keys (JSON texts) that are stored and have not expired, with times in milliseconds."""
    keys = [*keys]
    groups = {key_group(key.encode(), job.last.max_parallelism) for key in keys}
    view: TableView = (
        job.view(KEYED_STATE).of(operator, keys=keys, states=states).where(OneOf("key_group", tuple(sorted(groups))))
    )
    rows = deleted_if_dead(view.live(), _expiries(job))
    return [row for row in in_milliseconds(rows).to_pylist() if not row["deleted"]]


def _expiries(job: JobView) -> list[RowExpiry]:
    declared = declared_ttls(plan_of(job.config.code))
    paused_since = job.lineage.last_micro_batch()
    return row_expiries(declared, job.last, processing_time=clock.now(), paused_since=paused_since)


def _no_entry(job: JobView, name: EntryName, key: str) -> str:
    return (
        f"{_shown(name)} has no live entry of key {key}: it isn't there, or it has expired. 'headrace state get {job.config.job} KEY' shows "
        "what a key has."
    )


def _shown(name: EntryName) -> str:
    within = "".join(
        f", {label} {text}"
        for label, text in (("namespace", name.namespace), ("entry", name.entry))
        if text is not None
    )
    return f"state '{name.state}' of operator '{name.operator}'{within}"
