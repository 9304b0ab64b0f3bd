"""Keyed functions written as one function: its states are its default arguments."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Union, get_args, get_origin

import msgspec

from headrace.api.changelog import ChangelogMode
from headrace.api.functions import Context, KeyedProcessFunction
from headrace.api.records import RowKind
from headrace.api.states import State
from headrace.api.types import hints_of, signature_of


def keyed_function(function: Callable[..., Any], /) -> KeyedProcessFunction[Any, Any]:
    """Make a keyed function of one function of a record, for `process`. Its states are default arguments.

        @keyed_function
        async def warmed_up(reading: Reading, last: ValueState[float] = ValueState("last", float)) -> Warmer | None:
            before = await last.value()
            await last.update(reading.celsius)
            return None if before is None or before >= reading.celsius else Warmer(reading.sensor, before, reading.celsius)

        readings.key_by("sensor").process("warmed_up", warmed_up)

    The first parameter takes the record; one more without a default takes the `Context`. What the function returns is emitted as an insert
    with the record's event time: a record, None for none, or a list of records. Annotations name both types. `async def` and
    plain `def` are as for `KeyedProcessFunction`, which a function with timers, row kinds or side outputs derives from. A record that
    updates or deletes a row fails the micro-batch: call `additions()` before it.

    Raises `TypeError` for a function whose annotations do not name a record to take and one to give, one with a `yield`, and a
    parameter that is none of these.
    """
    name = getattr(function, "__name__", type(function).__name__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = f"keyed_function {name}: it has a yield: return a list of records"
        raise TypeError(msg)
    record, context, states = _parameters(name, function)
    hints = hints_of(function)
    takes = _record_type(name, hints.get(record), f"parameter '{record}' needs the type of the record")
    gives, is_list = _result(name, hints.get("return"))
    members: dict[str, Any] = {
        **states,
        "_emits": ChangelogMode.INSERT,
        "process": (_coroutine if inspect.iscoroutinefunction(function) else _plain)(
            function, context, [*states], is_list=is_list
        ),
        "__module__": function.__module__,
        "__qualname__": name,
        "__doc__": function.__doc__,
    }
    bases: Any = (KeyedProcessFunction[takes, gives],)  # type: ignore[valid-type]  # known when it is called
    keyed: type[KeyedProcessFunction[Any, Any]] = types.new_class(
        name, bases, exec_body=lambda body: body.update(members)
    )
    return keyed()


def _parameters(name: str, function: Callable[..., Any]) -> tuple[str, str | None, dict[str, State]]:
    """Return the names of the parameters for the record and the context, and the states by parameter."""
    parameters = [*signature_of(function).parameters.values()]
    if not parameters:
        msg = f"keyed_function {name} takes no record: give it a parameter with the type of the record"
        raise TypeError(msg)
    first, *rest = parameters
    states = {parameter.name: parameter.default for parameter in rest if isinstance(parameter.default, State)}
    others = [parameter for parameter in rest if parameter.name not in states]
    context = others[0].name if len(others) == 1 and others[0].default is inspect.Parameter.empty else None
    if others and context is None:
        msg = (
            f"keyed_function {name}: parameter '{others[-1].name}' gets no value: beside the record and one parameter for the context, "
            "parameters have a state as their default, as in last=ValueState('last', float)"
        )
        raise TypeError(msg)
    return first.name, context, states


def _record_type(name: str, annotation: Any, reason: str) -> type[msgspec.Struct]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        return annotation
    msg = f"keyed_function {name}: {reason} as its annotation, a class derived from Struct, not {annotation!r:.60}"
    raise TypeError(msg)


def _result(name: str, annotation: Any) -> tuple[type[msgspec.Struct], bool]:
    """Return the type of the results, and whether the function returns several of them."""
    reason = "it needs the type of its results (Row, Row | None or list[Row])"
    if get_origin(annotation) in {Union, types.UnionType}:
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _record_type(name, parts[0] if len(parts) == 1 else annotation, reason), False
    origin = get_origin(annotation)
    if isinstance(origin, type) and issubclass(origin, Iterable):
        return _record_type(name, next(iter(get_args(annotation)), None), reason), True
    return _record_type(name, annotation, reason), False


def _coroutine(
    function: Callable[..., Any], context: str | None, states: list[str], *, is_list: bool
) -> Callable[[Any, Any, Context], Any]:
    async def process(self: Any, record: Any, ctx: Context, /) -> None:
        _emit(ctx, await function(record, **_arguments(self, ctx, context, states)), is_list=is_list)

    return process


def _plain(
    function: Callable[..., Any], context: str | None, states: list[str], *, is_list: bool
) -> Callable[[Any, Any, Context], None]:
    def process(self: Any, record: Any, ctx: Context, /) -> None:
        _emit(ctx, function(record, **_arguments(self, ctx, context, states)), is_list=is_list)

    return process


def _arguments(bound: Any, ctx: Context, context: str | None, states: list[str]) -> dict[str, Any]:
    if ctx.row_kind is not RowKind.INSERT:
        msg = (
            f"a keyed_function takes inserts alone, and this record is {ctx.row_kind.symbol}: call additions() before key_by(), which makes each "
            "version of a row a new one; or derive a class from KeyedProcessFunction, which sees ctx.row_kind"
        )
        raise ValueError(msg)
    arguments = {state: getattr(bound, state) for state in states}
    return arguments if context is None else {**arguments, context: ctx}


def _emit(ctx: Context, result: Any, *, is_list: bool) -> None:
    if result is None:
        return
    for row in result if is_list else (result,):
        ctx.collect(row)
