"""Checks of functions and records when a graph is built: their types, and the types of keys."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Collection
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

from headrace.api.changelog import ChangelogMode
from headrace.api.functions import AsyncFunction, KeyedFunction, function_types
from headrace.api.graph import KeyBy, name_of
from headrace.api.records import MOST_DIGITS, Digits, NaiveDatetime, TimestampMicros, digits_of, is_naive, unit_of
from headrace.names import check_name


def check_field(record: type[msgspec.Struct], name: str) -> None:
    """Raise `ValueError` for a field that the record lacks."""
    if name not in record.__struct_fields__:
        known = ", ".join(record.__struct_fields__)
        msg = f"{record.__name__} has no field '{name}'; it has {known}"
        raise ValueError(msg)


def check_emitted(taker: str, emits: ChangelogMode | None, record: type[msgspec.Struct]) -> None:
    """Check what a function declares to emit.

    Raises `TypeError` unless it is a `ChangelogMode`, `ValueError` for a key that the record lacks.
    """
    if emits is None:
        return
    if not isinstance(cast("object", emits), ChangelogMode):
        msg = f"{taker}: emits is ChangelogMode.INSERT, ChangelogMode.RETRACT or ChangelogMode.upsert(FIELD), not {emits!r:.60}"
        raise TypeError(msg)
    for column in emits.key:
        check_field(record, column)


def check_kept_field(taker: str, record: type[msgspec.Struct], name: str) -> None:
    """Check a field that the source needs. Raises `ValueError` where the record of a step over the source lacks it."""
    if name not in record.__struct_fields__:
        msg = (
            f"{taker}: the source takes its event time and order from '{name}', and {record.__name__} has no such field: keep "
            "the column, and give the record the field"
        )
        raise ValueError(msg)


def check_tables(taker: str, tables: Collection[str], source: str) -> tuple[str, ...]:
    """Return names of tables. Raises `TypeError` for a single text, `ValueError` for a name that is invalid or taken."""
    if isinstance(tables, str):
        msg = f"{taker}: tables takes several names, as in tables=('{tables}',), not a text"
        raise TypeError(msg)
    names = tuple(check_name(name) for name in tables)
    if taken := [name for name in names if name == source or names.count(name) > 1]:
        msg = f"{taker}: tables has '{taken[0]}' twice, or it is the source's own name: give the table another name"
        raise ValueError(msg)
    return names


def check_record(user: str, record: object) -> None:
    """Raise `TypeError` unless `record` is a class of records."""
    if not (isinstance(record, type) and issubclass(record, msgspec.Struct)):
        msg = f"{user}: {record!r:.60} is not a type of records: derive a class from Struct, and give that"
        raise TypeError(msg)


def check_function(taker: str, function: object, *wanted: type) -> None:
    """Raise `TypeError` unless `function` is an instance of one of the classes in `wanted`."""
    if not isinstance(function, wanted):
        given = repr(function)
        if isinstance(function, type):
            given = f"the class {function.__name__}; write {function.__name__}()"
        names = " or ".join(cls.__name__ for cls in wanted)
        msg = f"{taker} takes an instance of a class derived from {names}, not {given:.80}"
        raise TypeError(msg)


def check_key_field(record: type[msgspec.Struct], name: str) -> None:
    """Raise `ValueError` for a field that the record lacks, and for one that holds more than one value."""
    check_field(record, name)
    held = next(_bare(field.type) for field in msgspec.structs.fields(record) if field.name == name)
    kinds = [get_origin(part) or part for part in _members(held)]
    if any(kind in {Any, list, tuple, dict, set, frozenset} or _is_record(kind) for kind in kinds):
        msg = (
            f"field '{name}' of {record.__name__} is {_shown(held)}, which cannot be a key: key_by() a function that makes "
            "text, a number, a truth value, or a tuple of them from it"
        )
        raise ValueError(msg)


def _is_record(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _members(annotation: Any) -> tuple[Any, ...]:
    is_union = get_origin(annotation) in {Union, types.UnionType}
    return tuple(_bare(part) for part in get_args(annotation)) if is_union else (annotation,)


def check_callable(method: str, function: object) -> None:
    """Raise `TypeError` unless `function` is callable and not a coroutine function."""
    if not callable(function):
        msg = f"{method}() takes a function, not {function!r:.60}"
        raise TypeError(msg)
    called = _called(function)
    if inspect.iscoroutinefunction(called) or inspect.isasyncgenfunction(called):
        msg = f"{method}({name_of(function)}): the function is 'async def'; use async_wait() for calls to services"
        raise TypeError(msg)


def check_plain(method: str, function: object) -> None:
    """Raise `TypeError` unless `function` is a plain function: neither a coroutine nor a generator function."""
    check_callable(method, function)
    assert callable(function)  # noqa: S101 - for type checkers
    if inspect.isgeneratorfunction(_called(function)):
        msg = f"{method}({name_of(function)}): the function has a yield; use flat_map(), or return the value"
        raise TypeError(msg)


def returned_type(method: str, function: Callable[..., Any]) -> type[Any]:
    """Return the type of records in the return annotation of a function.

    Raises `TypeError` where there is no annotation, or another one.
    """
    returned = function if isinstance(function, type) else hints_of(function).get("return", inspect.Parameter.empty)
    if isinstance(returned, type) and issubclass(returned, msgspec.Struct):
        return returned
    step = f"{method}({name_of(function)})"
    if returned is not inspect.Parameter.empty:
        msg = (
            f"{step}: the function returns {_shown(returned)}, but map() makes one record of each: return a Struct, or use "
            "flat_map() to send on none or several"
        )
    elif _has_return_annotation(function):
        msg = (
            f"{step}: the annotation of what it returns cannot be resolved when the pipeline is built: give record=..."
        )
    else:
        msg = f"{step} needs the type of its records: annotate what it returns, or give record=..."
    raise TypeError(msg)


def hints_of(function: Callable[..., Any], *, with_metadata: bool = False) -> dict[str, Any]:
    """Return a function's annotations, without their metadata unless asked for; an empty dictionary where they cannot be resolved."""
    called = _called(function)
    try:
        return get_type_hints(called, include_extras=with_metadata) if hasattr(called, "__annotations__") else {}
    except (NameError, TypeError):  # a name, or an expression, that only type checkers can resolve
        return {}


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function, whether or not its annotations can be resolved: Python 3.14 would look at them now.

    Raises `ValueError` for a function in C that has none.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING)
    return inspect.signature(function)


def _has_return_annotation(function: Callable[..., Any]) -> bool:
    try:
        return signature_of(function).return_annotation is not inspect.Signature.empty
    except ValueError:
        return False


def _called(function: Any) -> Any:
    """Return the function that a call of `function` runs: for an object its method `__call__`."""
    if inspect.isroutine(function) or isinstance(function, functools.partial | type):
        return function
    return type(function).__call__


def key_types(record: type[msgspec.Struct], key: KeyBy | None) -> tuple[Any, ...] | None:
    """Return the types of a key's parts; None where nothing declares them."""
    if key is None:
        return None
    if key.function is not None:
        returned = hints_of(key.function, with_metadata=True).get("return")
        return None if returned is None else _parts(returned)
    types_by_field = {field.name: field.type for field in msgspec.structs.fields(record)}
    return tuple(_of_value(types_by_field[name]) for name in key.fields)


def annotations_of(record: type[msgspec.Struct], key: KeyBy) -> tuple[Any, ...]:
    """Return the annotations of a key's parts, with the units of times; none where nothing declares them."""
    if key.function is None:
        fields = {field.name: field.type for field in msgspec.structs.fields(record)}
        return tuple(fields[name] for name in key.fields)
    returned = hints_of(key.function, with_metadata=True).get("return")
    return () if returned is None else get_args(returned) if get_origin(returned) is tuple else (returned,)


def _of_value(annotation: Any) -> Any:
    """Return the type of a part of a key. A decimal keeps its scale, and a time its lack of a zone: others are never equal."""
    digits, bare = digits_of(annotation), _bare(annotation)
    if bare is datetime and is_naive(annotation):
        return NaiveDatetime
    if bare is int and unit_of(annotation) == "us":
        return TimestampMicros
    return bare if digits is None or bare is not Decimal else Annotated[Decimal, Digits(MOST_DIGITS, digits[1])]


def _parts(annotation: Any) -> tuple[Any, ...]:
    """Return the types of the parts of a key that a function returns."""
    if get_origin(annotation) is tuple:
        return tuple(map(_of_value, get_args(annotation)))
    return (_of_value(annotation),)


def _bare(annotation: Any) -> Any:
    """Return a type without None and without metadata."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        parts = [part for part in get_args(annotation) if part is not type(None)]
        return _bare(parts[0]) if len(parts) == 1 else annotation
    return annotation


def shown_types(parts: tuple[Any, ...]) -> str:
    """Return the types of a key's parts, for people."""
    return ", ".join(map(_shown, parts))


def _shown(annotation: Any) -> str:
    is_class = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__name__ if is_class else str(annotation).replace("typing.", "")


def output_type(function: AsyncFunction[Any, Any] | KeyedFunction) -> type[msgspec.Struct]:
    """Return the type of the records that a function emits. Raises `TypeError` as `function_types` does."""
    return function_types(function)[1]


def input_type(function: AsyncFunction[Any, Any] | KeyedFunction) -> type[msgspec.Struct]:
    """Return the type of the records of a function's first input. Raises `TypeError` as `function_types` does."""
    return function_types(function)[0][0]
