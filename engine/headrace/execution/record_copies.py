"""Copies of emitted records that user code may still change.

What a record holds is stored when its task ends, and code may keep the record until then, and change it. So a record is copied when
it is emitted, unless its type is frozen and holds only what cannot change: numbers, texts, tuples, other such records.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import types
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import lru_cache, partial
from operator import attrgetter
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec.structs import force_setattr

V = TypeVar("V")

_ATOMS: Final[frozenset[type]] = frozenset(
    {
        *(int, float, str, bool, bytes, types.NoneType, decimal.Decimal),
        *(dt.datetime, dt.date, dt.time, dt.timedelta, UUID),
    }
)
_TYPES: Final = 1024
"""Number of types that are remembered."""


@lru_cache(_TYPES)
def is_immutable(record: type[msgspec.Struct]) -> bool:
    """Return whether nothing can change records of a type: it is frozen, and so is all that its fields may hold."""
    return _is_fixed(record, frozenset())


def copied(value: V) -> V:
    """Return a copy of a record that shares nothing with it that can change; of another value likewise. It may be the value itself."""
    kind: type = type(value)
    copy: V = copier_of(kind)(value)
    return copy


def _is_fixed(annotation: Any, outer: frozenset[Any]) -> bool:
    """Return whether values of an annotation cannot change. `outer` are the records whose field it is."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_fixed(get_args(annotation)[0], outer)
    if origin in {Union, types.UnionType, tuple, frozenset}:
        return all(part is Ellipsis or _is_fixed(part, outer) for part in get_args(annotation))
    if origin is Literal or not isinstance(annotation, type) or annotation in _ATOMS or annotation in outer:
        return origin is Literal or isinstance(annotation, type)
    if not issubclass(annotation, msgspec.Struct):
        return issubclass(annotation, enum.Enum)
    within = outer | {annotation}
    fields = msgspec.structs.fields(annotation)
    return annotation.__struct_config__.frozen and all(_is_fixed(field.type, within) for field in fields)


@lru_cache(_TYPES)
def copier_of(kind: type) -> Callable[[Any], Any]:
    """Return what copies values of a type."""
    if kind in _BUILT_IN:
        return _BUILT_IN[kind]
    if not issubclass(kind, msgspec.Struct):
        return deepcopy
    if is_immutable(kind):
        return _itself
    fields = msgspec.structs.fields(kind)
    if hasattr(kind, "__post_init__"):
        twin = msgspec.defstruct(kind.__name__, [], bases=(kind,), namespace={"__post_init__": _itself})
        return partial(_remade, twin, [field.name for field in fields])
    changing = [field.name for field in fields if not _is_fixed(field.type, frozenset())]
    return partial(_copied_record, changing) if changing else cast("Callable[[Any], Any]", attrgetter("__copy__")(kind))


def _copied_record(changing: Sequence[str], record: Any) -> Any:
    """Return a copy of a record. `changing` are the fields whose values may change."""
    copy = record.__copy__()
    for name in changing:
        force_setattr(copy, name, copied(getattr(record, name)))
    return copy


def _remade(twin: type, names: Sequence[str], record: Any) -> Any:
    """Return a copy of a record whose `__post_init__` must not run again: made as one of a class that has none."""
    copy: Any = twin(**{name: copied(getattr(record, name)) for name in names})
    copy.__class__ = type(record)
    return copy


def _itself(value: Any) -> Any:
    return value


_BUILT_IN: Final[dict[type, Callable[[Any], Any]]] = {
    **dict.fromkeys(_ATOMS, _itself),
    list: lambda values: [*map(copied, values)],
    tuple: lambda values: tuple(map(copied, values)),
    dict: lambda values: {key: copied(value) for key, value in values.items()},
    set: set,
    frozenset: _itself,
}
