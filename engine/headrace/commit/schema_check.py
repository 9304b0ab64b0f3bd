"""Check of types and keys before any task runs: states, operators and sinks, as declared and as stored."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from headrace.api.graph import LagNode, Process, UpsertMaterialize
from headrace.api.states import (
    AggregatingState,
    BroadcastState,
    ListState,
    MapState,
    Migration,
    ReducingState,
    State,
    ValueState,
)
from headrace.config import JobConfig
from headrace.errors import ConfigError, StateSchemaError
from headrace.execution.bound_function import declared_states
from headrace.log.declared import (
    HISTORY_STATE,
    OperatorKeys,
    SinkTable,
    SinkTables,
    StateSchema,
    StateSchemas,
    declared_keys,
)
from headrace.log.log import CheckpointLog
from headrace.plan.stages import KeyedStage, Plan
from headrace.state.type_schema import TypeSchema, differences, type_schema_of

_KINDS: dict[type[State], str] = {
    ValueState: "value",
    ListState: "list",
    MapState: "map",
    ReducingState: "reducing",
    AggregatingState: "aggregating",
    BroadcastState: "broadcast",
}

_WAYS_OUT = (
    "Give the state a migration from the old type (migrate=Migration(Old, function)), take the change back, or restore a "
    "checkpoint from before it ('headrace checkpoints {job}' lists them, 'headrace restore {job} --to ID --why ...' goes back to one). Fields may be added with defaults and removed, and numbers widened, without one."
)


_WAYS_OF_STATES = "If it was renamed, give it its old name back: the name belongs to what is stored (the attribute may be called anything)."

_NO_MIGRATION = (
    "A materializer's rows cannot be migrated: take the change back, or fill the sink anew under another operator name."
)


_NO_HISTORY = (
    "operator '{operator}' has kept no history so far, since its upsert key was its primary key, and the code asks for one: it would "
    "miss the rows that the sink has, and a deletion of one of them would find nothing and leave it there. Take the change back: give "
    "upsert_key= the fields of the primary key, if each has one row at a time, without force, ttl or on_conflict. Or fill the sink from "
    "the beginning: headrace restore {job} --to 0 --why ..., and the next run takes in all input again."
)


@dataclass(frozen=True, slots=True)
class DeclaredState:
    """State as the present code declares it."""

    kind: str
    type: Any
    schema: TypeSchema
    key_type: TypeSchema | None = None
    migrations: tuple[Migration[Any, Any], ...] = ()
    kept: bool = True

    @property
    def version(self) -> int:
        """Return the number of its last migration."""
        return self.migrations[-1].number if self.migrations else 0

    def stored(self) -> StateSchema:
        """Return the schema to record when all stored values have this type."""
        key_type = None if self.key_type is None else self.key_type.stored()
        types = (self.schema.stored(),)
        return StateSchema(kind=self.kind, types=types, key_type=key_type, version=self.version, kept=self.kept)


DeclaredStates = Mapping[str, Mapping[str, DeclaredState]]
"""Declared states, by operator and name."""


@dataclass(frozen=True, slots=True)
class PendingMigration:
    """State whose entries must be rewritten, all at once, before a task may read them.

    Without `steps` it is a materializer's history. A history finds its rows by their JSON text, which depends on the type: after a
    field was added, removed, moved or widened, older rows would never match again.
    """

    operator: str
    state: str
    steps: tuple[Migration[Any, Any], ...]
    declared: DeclaredState


@dataclass(slots=True)
class SchemaCheck:
    """Result of the comparison: schemas to record from now on, migrations to run before, and problems."""

    job: str = "JOB"
    schemas: StateSchemas = field(default_factory=dict)
    migrations: list[PendingMigration] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def raise_problems(self) -> None:
        """Raise `StateSchemaError` with all problems, if there are any."""
        if self.problems:
            raise StateSchemaError("\n".join([*self.problems, "Nothing was taken in."]))


def declared_schemas(plan: Plan) -> DeclaredStates:
    """Return the states of a pipeline's keyed operators."""
    schemas: dict[str, dict[str, DeclaredState]] = {}
    for stage in plan.keyed:
        operator = stage.operator
        if isinstance(operator, Process):
            states = declared_states(operator.function).values()
            schemas[operator.name] = {state.name: _declared(state) for state in states}
        else:
            record = stage.takes[0]
            kept = operator.is_needed if isinstance(operator, UpsertMaterialize) else True
            history = DeclaredState(HISTORY_STATE, record, type_schema_of(record), kept=kept)
            schemas[operator.name] = {HISTORY_STATE: history}
    return schemas


def _declared(state: Any) -> DeclaredState:
    kind = next(kind for cls, kind in _KINDS.items() if isinstance(state, cls))
    key_type = type_schema_of(state.key_type) if isinstance(state, MapState | BroadcastState) else None
    return DeclaredState(kind, state.type, type_schema_of(state.type), key_type, state.migrations)


def check_schemas(stored: StateSchemas, declared: DeclaredStates, job: str = "JOB") -> SchemaCheck:
    """Compare stored and declared states. `job` is the job's name in commands of messages.

    Raises nothing: see `SchemaCheck.raise_problems`.
    """
    check = SchemaCheck(job)
    in_use, known, now = _in_use(stored), set(stored), set(declared)
    ways_out = _ways_of_operators(job, in_use - now, now - known)
    _check_names(check, "operator", ways_out, in_use=in_use, known=known, now=now)
    for operator, states in declared.items():
        _check_operator(check, operator, stored.get(operator, {}), states)
    for operator in sorted(stored.keys() - declared.keys()):
        check.schemas[operator] = {name: _removed(state) for name, state in stored[operator].items()}
    return check


def _in_use(stored: StateSchemas) -> set[str]:
    return {name for name, states in stored.items() if any(not state.removed for state in states.values())}


def _check_operator(
    check: SchemaCheck, operator: str, stored: Mapping[str, StateSchema], declared: Mapping[str, DeclaredState]
) -> None:
    in_use = {name for name, state in stored.items() if not state.removed}
    if stored:
        _check_names(
            check, f"operator '{operator}', state", _WAYS_OF_STATES, in_use=in_use, known=set(stored), now=set(declared)
        )
    schemas = check.schemas[operator] = {
        name: _removed(state) for name, state in stored.items() if name not in declared
    }
    for name, state in declared.items():
        if name in stored:
            schemas[name] = _settled(check, operator, name, stored[name], state)
        else:
            schemas[name] = state.stored()


def _check_names(
    check: SchemaCheck, what: str, ways_out: str, *, in_use: set[str], known: set[str], now: set[str]
) -> None:
    """Add a problem if names are missing while others are new: probably a rename, and the new name would start empty."""
    missing, new = sorted(in_use - now), sorted(now - known)
    if not missing or not new:
        return
    before, after = (", ".join(map(repr, names)) for names in (missing, new))
    check.problems.append(
        f"{what} {before}: has stored state and is not declared any more, while {what.rpartition(' ')[2]} {after} is new and would "
        f"start empty. {ways_out} Or make two releases of it: remove {before}, run the job once, then add {after}; what is removed "
        "stays stored, and comes back with its name."
    )


def _ways_of_operators(job: str, missing: set[str], new: set[str]) -> str:
    old = next(iter(missing)) if len(missing) == 1 else "OLD"
    to = next(iter(new)) if len(new) == 1 else "NEW"
    return (
        f"If it was renamed, move its state to the new name (headrace state rename {job} --operator {old} --to {to}), or give it "
        f"its old name back. If it was removed, delete its state (headrace state drop {job} --operator {old}). Both are a dry run "
        "without --apply."
    )


def _settled(check: SchemaCheck, operator: str, name: str, stored: StateSchema, declared: DeclaredState) -> StateSchema:
    """Return the schema to record of a state that is stored already; add its problems or migrations to `check`."""
    if declared.kept and not stored.kept:
        check.problems.append(_NO_HISTORY.format(operator=operator, job=check.job))
        return stored
    problems = list(_problems(stored, declared))
    if problems:
        where = f"operator '{operator}', state '{name}'"
        way_out = _NO_MIGRATION if declared.kind == HISTORY_STATE else _WAYS_OUT.format(job=check.job)
        check.problems += [f"{where}: {problem}. {way_out}" for problem in problems]
        return stored
    steps = _pending(stored, declared)
    if steps or _has_other_texts(stored, declared):
        check.migrations.append(PendingMigration(operator, name, steps, declared))
        return declared.stored()
    now = declared.schema.stored()
    types = (*(stored_type for stored_type in stored.types if stored_type != now), now)
    return msgspec.structs.replace(stored, types=types, removed=False, kept=stored.kept and declared.kept)


def _has_other_texts(stored: StateSchema, declared: DeclaredState) -> bool:
    return declared.kind == HISTORY_STATE and any(
        stored_type != declared.schema.stored() for stored_type in stored.types
    )


def _problems(stored: StateSchema, declared: DeclaredState) -> Iterator[str]:
    if stored.kind != declared.kind:
        yield f"it is stored as a {stored.kind} state, and declared as a {declared.kind} state. No migration leads there"
        return
    if declared.key_type is not None and stored.key_type != declared.key_type.stored():
        yield f"its keys are stored as {stored.key_type}, and declared as {declared.key_type}. No migration leads there"
    steps = _pending(stored, declared)
    if declared.migrations and declared.version < stored.version:
        yield f"migration {stored.version} was applied to it, and the code knows only up to {declared.version}"
    elif steps and steps[0].number != stored.version + 1:
        yield f"it is at migration {stored.version}, and the code lacks the next one: its first is {steps[0].number}"
    else:
        target = type_schema_of(steps[0].old) if steps else declared.schema
        by = f" by the old type of migration {steps[0].number}" if steps else ""
        texts = {str(text) for type_ in stored.types for text in differences(type_, target)}
        yield from (f"{text}{by}" for text in sorted(texts))


def _pending(stored: StateSchema, declared: DeclaredState) -> tuple[Migration[Any, Any], ...]:
    return tuple(step for step in declared.migrations if step.number > stored.version)


def _removed(state: StateSchema) -> StateSchema:
    return msgspec.structs.replace(state, removed=True)


def operator_key_problems(
    job: str, stored: OperatorKeys, plan: Plan, has_state: Callable[[str], bool]
) -> Iterator[str]:
    """Yield a sentence for each operator whose key differs from the key of its stored state, with the ways out.

    `has_state` returns whether an operator has live rows; it is called for operators whose key has changed. Operators without a
    recorded key pass.
    """
    for name, change in changed_keys(stored, plan):
        if has_state(name):
            yield (
                f"{change} Nothing was changed. Take the change back. Or give the operator a new name, which starts empty, and "
                f"delete the state of the old one: headrace state drop {job} --operator {name}. If both give the same keys, and a "
                "field has another name only, key by a function that returns it."
            )


def changed_keys(stored: OperatorKeys, plan: Plan) -> Iterator[tuple[str, str]]:
    """Yield each operator whose key differs from the recorded one, with a sentence that has both keys."""
    declared = declared_keys(plan)
    for stage in plan.keyed:
        for number, (before, now) in enumerate(zip(stored.get(stage.name, ()), declared[stage.name], strict=False)):
            if before is not None and now is not None and before.differs(now):
                which = f", input {number + 1}" if len(stage.takes) > 1 else ""
                term = _term(stage)
                sentence = (
                    f"operator '{stage.name}'{which}: its state is stored by the {term} {before}, and the code has the {term} "
                    f"{now}: nothing that is stored would be found."
                )
                yield stage.name, sentence


def check_sink_keys(config: JobConfig, log: CheckpointLog, now: SinkTables) -> None:
    """Raise `ConfigError` for sinks whose primary key has changed since they were written."""
    if problems := [*sink_key_problems(config, log, now)]:
        raise ConfigError("\n".join(problems))


def sink_key_problems(config: JobConfig, log: CheckpointLog, now: SinkTables) -> Iterator[str]:
    """Yield a sentence for each sink whose primary key has changed since it was written."""
    stored = {} if log.last is None else log.last.sink_tables
    for name, table in now.items():
        if name in stored and stored[name].key != table.key and _was_written(log, name):
            yield (
                f"sink '{name}' at {config.sinks[name].path} {_written(stored[name], 'was')}, and the pipeline has it "
                f"{_written(table, '')}: rows of the one key are not found by the other. Nothing was changed. Take the change "
                f"back. Or give the sink a new path ({config.where(f'sinks.{name}.path')}) and fill it from the beginning: "
                f"headrace restore {config.job} --to 0 --why ..., and the next run takes in all input again."
            )


def _term(stage: KeyedStage) -> str:
    if isinstance(stage.operator, LagNode):
        return "partition_by"
    return "primary_key" if isinstance(stage.operator, UpsertMaterialize) else "key"


def _written(table: SinkTable, verb: str) -> str:
    how = f"merged by the primary key {', '.join(table.key)}" if table.key else "only appended to"
    return f"{verb} {how}".strip()


def _was_written(log: CheckpointLog, sink: str) -> bool:
    return any(checkpoint.outputs.get(sink) for checkpoint in log.lineage.newest_first())
