"""Changelog modes and unique keys of all streams of a graph, operator by operator (Flink: `FlinkChangelogModeInferenceProgram`).

The functions of users are opaque, so the rules are plain. What cannot be right is refused, with the operator that mends it.

    source          insert; with `row_kind`, retract; without a value for `-U`, upsert of a key that the next operator names
    map, flat_map   as the input; keys stay where `keeps=` names their fields
    filter          as the input; over upsert, a refused row deletes its key
    additions       insert
    union           insert, if all are; else retract; upsert is refused
    process         what `emits=` declares; else retract, assumed
    side outputs    insert; late records as the input
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from headrace.api.changelog import INSERTS, ChangelogMode, StreamChanges
from headrace.api.functions import AsyncFunction, function_types, own_mode
from headrace.api.graph import (
    Additions,
    AsyncWait,
    DropUpdateBefore,
    Filter,
    FlatMap,
    Input,
    LagNode,
    Map,
    Operator,
    OperatorFunction,
    OutputMode,
    Process,
    SourceNode,
    SparkTransform,
    Union,
    UpsertMaterialize,
)

_Inputs = Sequence[Input]
_Taken = Sequence[StreamChanges]
_NORMALIZE = "call normalize() before it, which makes whole updates of them"


def changes_of(node_input: Input) -> StreamChanges:
    """Return the changes of a stream."""
    node, side = node_input.node, node_input.side
    if side is None:
        return node.changes
    late_input = _late_sides(node.operator).get(side)
    return INSERTS if late_input is None else replace(changes_of(node.inputs[late_input]), unique=())


def _late_sides(operator: Operator) -> dict[str, int]:
    if isinstance(operator, Process) and isinstance(operator.function, OperatorFunction):
        return operator.function.late_sides()
    return {}


def may_retract(node_input: Input) -> bool:
    """Return whether a stream may have `-U` and `-D`, as far as the graph knows.

    The graph does not know what process functions without `emits=` emit: for them it returns False.
    """
    return changes_of(node_input).may_retract


def output_changes(operator: Operator, inputs: Sequence[Input]) -> StreamChanges:
    """Return the changes of an operator's main output. Raises `ValueError` where its result could not be right."""
    taken = [changes_of(node_input) for node_input in inputs]
    rule = _RULES.get(type(operator))
    return taken[0] if rule is None else rule(operator, inputs, taken)


def _declared(mode: ChangelogMode) -> StreamChanges:
    """Return the changes of a stream whose mode is declared."""
    return StreamChanges(mode, unique=(mode.key,) if mode.key else ())


def _source(source: SourceNode, _: _Inputs, __: _Taken) -> StreamChanges:
    return StreamChanges(source.changelog_mode)


def _in_spark(_: SparkTransform, inputs: _Inputs, taken: _Taken) -> StreamChanges:
    if taken[0].mode.is_upsert:
        name = inputs[0].node.operator.name
        msg = (
            f"Spark's transform over '{name}' may drop the new row of an update, and nothing would say which row that replaces: '{name}' has no "
            "value for -U. Leave the transform out, and use normalize(), then map() and filter()"
        )
        raise ValueError(msg)
    return replace(taken[0], unique=(), may_lack_updates=True)


def _mapped(transform: Map | FlatMap, _: _Inputs, changes: _Taken) -> StreamChanges:
    taken, keeps = changes[0], transform.keeps
    if taken.mode.is_upsert:
        if isinstance(transform, FlatMap):
            msg = (
                f"{transform.name}: the stream is {taken.mode}, and a record without results would leave the row of its key: "
                f"{_NORMALIZE}; or use filter() and map(keeps=...)"
            )
            raise ValueError(msg)
        if missing := [name for name in taken.mode.key if name not in keeps]:
            msg = (
                f"{transform.name}: the stream is {taken.mode}, and nothing says that the results have the same {', '.join(missing)}: "
                f"give map(..., keeps={taken.mode.key!r}), or {_NORMALIZE}"
            )
            raise ValueError(msg)
    is_one = isinstance(transform, Map)
    unique = tuple(key for key in taken.unique if is_one and {*key} <= {*keeps})
    within = taken.ordered_within if taken.ordered_within is None or {*taken.ordered_within} <= {*keeps} else None
    return replace(taken, unique=unique, ordered_within=within, may_lack_updates=taken.may_lack_updates or not is_one)


def _filtered(transform: Filter, _: _Inputs, changes: _Taken) -> StreamChanges:
    taken = changes[0]
    if taken.mode.is_upsert and not taken.mode.key:
        msg = (
            f"{transform.name}: the updates before it come without their old rows, and nothing declares their key: a refused row could not "
            'delete the row of its key. Declare it, as in drop_update_before("id") or process(..., emits=ChangelogMode.upsert("id")), '
            "or emit -U before +U"
        )
        raise ValueError(msg)
    return replace(taken, may_lack_updates=True)


def _upserted(transform: DropUpdateBefore, _: _Inputs, changes: _Taken) -> StreamChanges:
    taken = changes[0]
    if taken.mode.is_insert or taken.mode.key:
        return taken
    keys = (transform.key,) if transform.key else taken.unique
    if len(keys) != 1:
        known = " or ".join(str(known) for known in keys)
        msg = (
            'drop_update_before() needs the fields that identify a row, as in drop_update_before("id"): without the old row of '
            f"an update nothing else says which row the new one replaces{f'. Known are {known}' if known else ''}"
        )
        raise ValueError(msg)
    if taken.may_lack_updates:
        msg = (
            "drop_update_before() comes behind a step that may drop rows (filter, flat_map, an inner join, a transform of Spark): of an update "
            "whose new row was dropped, nothing would be left, and the old row would stay. Call it before that step: behind it, filter() "
            "turns such rows into -D; or leave it out"
        )
        raise ValueError(msg)
    return replace(taken, mode=ChangelogMode.upsert(*keys[0]), unique=(keys[0],), is_known=True)


def _united(_: Union, inputs: _Inputs, taken: _Taken) -> StreamChanges:
    for node_input, changes in zip(inputs, taken, strict=True):
        if changes.mode.is_upsert:
            msg = (
                f"union: the stream of '{node_input.node.operator.name}' is {changes.mode}: an update of a key would not say which "
                f"stream's row it replaces. Union the streams before drop_update_before(), or {_NORMALIZE}"
            )
            raise ValueError(msg)
    first = next((changes for changes in taken if not changes.mode.is_insert), taken[0])
    reordered = next((changes for changes in taken if changes.reordered_by is not None), first)
    return StreamChanges(
        first.mode,
        is_known=any(changes.may_retract for changes in taken) or all(changes.is_known for changes in taken),
        reordered_by=reordered.reordered_by,
        may_lack_updates=any(changes.may_lack_updates for changes in taken),
        dated_back_by=next((changes.dated_back_by for changes in taken if changes.dated_back_by is not None), None),
    )


def _answered(wait: AsyncWait, _: _Inputs, changes: _Taken) -> StreamChanges:
    taken = changes[0]
    if taken.mode.is_insert or not taken.is_known:
        return replace(taken, unique=())
    key = () if wait.key is None else wait.key.fields
    if taken.mode.is_upsert:
        return _answered_upserts(wait, key, taken.mode, taken)
    if not wait.function.deterministic:
        msg = (
            f"async_wait '{wait.name}' gets rows before updates (-U): another response to one of them would take back a row that never "
            "was. Call drop_update_before(KEY) or normalize() before it, or declare `deterministic = True` in "
            f"{type(wait.function).__name__} if equal records always have equal responses"
        )
        raise ValueError(msg)
    return replace(taken, unique=(), may_lack_updates=True, **_order_behind(wait, key, taken))


def _order_behind(wait: AsyncWait, key: tuple[str, ...], taken: StreamChanges) -> dict[str, Any]:
    if wait.mode is OutputMode.ORDERED:
        return {}
    is_kept = bool(key) and taken.keeps_order_of(key)
    return {"reordered_by": wait.name, "ordered_within": key if is_kept else None}


def _answered_upserts(
    wait: AsyncWait, key: tuple[str, ...], mode: ChangelogMode, taken: StreamChanges
) -> StreamChanges:
    fields = mode.key
    if not fields:
        msg = (
            f"async_wait '{wait.name}' gets {mode}: a record without a response could not delete the row of its key. Declare it, as in "
            'drop_update_before("id") or process(..., emits=ChangelogMode.upsert("id"))'
        )
        raise ValueError(msg)
    (takes,), gives = function_types(wait.function)
    if missing := [name for name in fields if name not in gives.__struct_fields__]:
        msg = (
            f"async_wait '{wait.name}' gets {mode}, and its results, {gives.__name__}, have no field {', '.join(missing)}: give them "
            f"the field, or {_NORMALIZE}"
        )
        raise ValueError(msg)
    if type(wait.function).deleted is AsyncFunction.deleted and (missing := _required(gives, takes)):
        msg = (
            f"async_wait '{wait.name}' gets {mode}, and {takes.__name__} does not have all that a -D of {gives.__name__} needs: "
            f"{', '.join(missing)}. Give these fields defaults, or {type(wait.function).__name__} the method deleted(), which makes "
            "the record of a -D without a call"
        )
        raise ValueError(msg)
    is_ordered = wait.mode is OutputMode.ORDERED or (key and {*key} <= {*fields})
    if not is_ordered:
        msg = (
            f"async_wait '{wait.name}' gets {mode}, and in mode {wait.mode.name} a later change of a key may overtake an earlier "
            f"one: give mode=OutputMode.ORDERED, or key_by{fields!r} and mode=OutputMode.KEYED_ORDERED"
        )
        raise ValueError(msg)
    return taken


def _required(gives: type[Any], takes: type[Any]) -> list[str]:
    """Return the fields without a default that the other type lacks."""
    fields = msgspec.structs.fields(gives)
    return [field.name for field in fields if field.required and field.name not in takes.__struct_fields__]


def check_normalized(taker: str, key: tuple[str, ...], changes: StreamChanges) -> None:
    """Check the key of `normalize`.

    Raises `ValueError` without one, for another one than that of the upserts, and where the changes of a key may come in
    another order.
    """
    if not key:
        msg = f'{taker} needs the fields that identify a row, as in normalize("latest", key=("id",))'
        raise ValueError(msg)
    if changes.mode.key and {*key} != {*changes.mode.key}:
        msg = (
            f"{taker}: the stream is {changes.mode}, so its rows are identified by {changes.mode.key!r}, not by {key!r}"
        )
        raise ValueError(msg)
    if not changes.keeps_order_of(key):
        msg = (
            f"{taker}: '{changes.reordered_by}' before it may change the order of a key's rows, so the last one is not known: call "
            "normalize() before it, or give it mode=OutputMode.ORDERED"
        )
        raise ValueError(msg)


def _processed(process: Process, inputs: _Inputs, taken: _Taken) -> StreamChanges:
    function = process.function
    if isinstance(function, OperatorFunction):
        return _operated(process.name, function, inputs, taken)
    mode = process.emits or own_mode(function)
    return StreamChanges(ChangelogMode.RETRACT, is_known=False) if mode is None else _declared(mode)


def _operated(name: str, function: OperatorFunction, inputs: _Inputs, taken: _Taken) -> StreamChanges:
    for number, changes in enumerate(taken):
        if changes.mode.is_upsert and number not in function.takes_upserts:
            msg = (
                f"{function.TAKER} '{name}' gets {changes.mode} from '{inputs[number].node.operator.name}', and needs the old "
                f"row of an update: {_NORMALIZE}, or leave drop_update_before() out"
            )
            raise ValueError(msg)
    return function.changes(name, [node_input.key for node_input in inputs], taken)


def _materialized(materializer: UpsertMaterialize, _: _Inputs, taken: _Taken) -> StreamChanges:
    mode, name = taken[0].mode, materializer.name
    if mode.is_upsert:
        key = mode.key or materializer.primary_key
        if {*(materializer.upsert_key or ())} != {*key}:
            msg = f"'{name}' gets {mode}: its updates replace the rows of this key, so give upsert_key={key!r}, or {_NORMALIZE}"
            raise ValueError(msg)
        if not {*materializer.keyed_by} <= {*key}:
            msg = (
                f"'{name}' gets {mode}, and keeps rows by {', '.join(materializer.keyed_by)}: an update that changes one of these "
                f"fields would leave the old row. {_NORMALIZE.capitalize()}"
            )
            raise ValueError(msg)
    return _declared(ChangelogMode.upsert(*materializer.primary_key))


_RULES: dict[type, Callable[[Any, _Inputs, _Taken], StreamChanges]] = {
    SourceNode: _source,
    SparkTransform: _in_spark,
    Map: _mapped,
    FlatMap: _mapped,
    Filter: _filtered,
    DropUpdateBefore: _upserted,
    Additions: lambda *_: INSERTS,
    Union: _united,
    AsyncWait: _answered,
    Process: _processed,
    UpsertMaterialize: _materialized,
    LagNode: _materialized,
}
"""Rules by operator. Operators without one, another event time and the end of a stream, give what they take."""
