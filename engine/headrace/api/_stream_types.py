"""What a graph asks of functions and records when it is built: their types, and the types of keys."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from headrace.api._functions import AsyncFunction, KeyedProcessFunction
from headrace.api._graph import KeyBy, name_of


def check_field(record: type[msgspec.Struct], name: str) -> None:
    """Raise `ValueError` for a field that the record lacks."""
    if name not in record.__struct_fields__:
        known = ", ".join(record.__struct_fields__)
        msg = f"{record.__name__} has no field '{name}'; it has {known}"
        raise ValueError(msg)


def check_plain(method: str, function: object) -> None:
    """Raise `TypeError` unless `function` is a plain function."""
    if not callable(function):
        raise TypeError(f"{method}() takes a function, not {function!r:.60}")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise asynchronous(method, function)
    if inspect.isgeneratorfunction(function):
        msg = f"{method}({name_of(function)}): the function has a yield; use flat_map(), or return the value"
        raise TypeError(msg)


def asynchronous(method: str, function: Callable[..., Any]) -> TypeError:
    """Return the error for an `async def` where a plain function belongs."""
    return TypeError(
        f"{method}({name_of(function)}): the function is 'async def'; use async_wait() for calls to services"
    )


def returned_type(method: str, function: Callable[..., Any]) -> type[Any]:
    """Return the type of records that a function's annotation says it returns.

    Raises `TypeError` where it says none.
    """
    found = function if isinstance(function, type) else hints_of(function).get("return")
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found
    msg = f"{method}({name_of(function)}) needs the type of its records: annotate what it returns, or give record=..."
    raise TypeError(msg)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return a function's annotations; none where they cannot be resolved."""
    called = function if inspect.isroutine(function) else type(function).__call__
    try:
        hints: dict[str, Any] = get_type_hints(called)
    except (NameError, TypeError):  # a name that only type checkers see
        return {}
    return hints


def key_types(record: type[msgspec.Struct], key: KeyBy | None) -> tuple[Any, ...] | None:
    """Return the types of a key's parts; None where nothing says them."""
    if key is None:
        return None
    if key.function is not None:
        returned = hints_of(key.function).get("return")
        return None if returned is None else _parts(returned)
    found = {field.name: field.type for field in msgspec.structs.fields(record)}
    return tuple(_bare(found[name]) for name in key.fields)


def _parts(annotation: Any) -> tuple[Any, ...]:
    """The types of the parts of a key that a function returns."""
    if get_origin(annotation) is tuple:
        return tuple(_bare(part) for part in get_args(annotation))
    return (_bare(annotation),)


def _bare(annotation: Any) -> Any:
    """A type without None and without metadata: what its values are."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(parts[0]) if len(parts) == 1 else annotation
    return annotation


def shown_types(parts: tuple[Any, ...]) -> str:
    """Return the types of a key's parts, for people."""
    return ", ".join(getattr(part, "__name__", str(part)) for part in parts)


def output_type(function: AsyncFunction[Any, Any] | KeyedProcessFunction[Any, Any]) -> type[msgspec.Struct]:
    """The `Out` in `AsyncFunction[In, Out]` or `KeyedProcessFunction[In, Out]`.

    Raises `TypeError` when the class was derived without naming its types.
    """
    return _named_type(function, 1)


def input_type(function: AsyncFunction[Any, Any] | KeyedProcessFunction[Any, Any]) -> type[msgspec.Struct]:
    """The `In` in `AsyncFunction[In, Out]` or `KeyedProcessFunction[In, Out]`; `TypeError` as `output_type`."""
    return _named_type(function, 0)


def _named_type(function: AsyncFunction[Any, Any] | KeyedProcessFunction[Any, Any], place: int) -> type[msgspec.Struct]:
    for cls in type(function).__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            origin = get_origin(base)
            if isinstance(origin, type) and issubclass(origin, AsyncFunction | KeyedProcessFunction):
                named = get_args(base)[place]
                if isinstance(named, type):
                    return named
    msg = f"{type(function).__name__} must name its types, as in KeyedProcessFunction[Leg, Delay]"
    raise TypeError(msg)
