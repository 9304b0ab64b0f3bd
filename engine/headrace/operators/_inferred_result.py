"""Result types of aggregates and functions that code names one by one: `aggregate("totals", orders=Count(), cents=Sum("cents"))`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from decimal import Decimal
from types import NoneType
from typing import Annotated, Any, Union

import msgspec

from headrace.api.graph import KeyBy, name_of
from headrace.api.records import Digits, Struct, Timestamp, TimestampMicros
from headrace.api.states import AggregateFunction
from headrace.api.types import hints_of
from headrace.operators._aggregates import Aggregate
from headrace.operators._result_record import KEY, result_of
from headrace.operators._row_functions import RowFunction
from headrace.operators._value_types import ValueType
from headrace.operators._window_results import WINDOW_END, WINDOW_START

_BOUNDS = ((WINDOW_START, Timestamp), (WINDOW_END, Timestamp))


def inferred_result(
    operator: str, takes: type[Struct], key: KeyBy, aggregates: Mapping[str, Any], *, windowed: bool
) -> type[Struct]:
    """Return a record type with the key, the bounds of the window if there are windows, and a field for each aggregate.

    Raises `TypeError` for a field that is no aggregate or whose type nothing declares, and `ValueError` for a field that
    has the name of the key's.
    """
    fields: dict[str, Any] = dict(_key_fields(takes, key))
    fields.update(_BOUNDS if windowed else ())
    return _record(operator, takes, fields, aggregates, owner="the key or the window")


def inferred_rows(operator: str, takes: type[Struct], functions: Mapping[str, Any]) -> type[Struct]:
    """Return a record type with the fields of the records, and one for each aggregate or function of a row's place.

    Raises as `inferred_result` does.
    """
    fields = {field.name: field.type for field in msgspec.structs.fields(takes)}
    return _record(operator, takes, fields, functions, owner=takes.__name__)


def _record(
    operator: str, takes: type[Struct], fields: dict[str, Any], makers: Mapping[str, Any], *, owner: str
) -> type[Struct]:
    for name, maker in makers.items():
        if name in fields:
            msg = f"the result has a field '{name}' already, of {owner}: give {maker} another name"
            raise ValueError(msg)
        fields[name] = Annotated[_annotation(name, takes, maker), maker]
    words = operator.title().replace("_", "")
    return msgspec.defstruct(words, list(fields.items()), bases=(Struct,), frozen=True)


def _key_fields(takes: type[Struct], key: KeyBy) -> Iterator[tuple[str, Any]]:
    if key.function is None:
        types = {field.name: field.type for field in msgspec.structs.fields(takes)}
        for name in key.fields:
            yield name, _without_none(types[name])
        return
    annotation = hints_of(key.function, with_metadata=True).get("return")
    if annotation is None:
        msg = f"the type of the key is not known: annotate what {name_of(key.function)} returns, or give a record type as the result"
        raise TypeError(msg)
    yield KEY, _without_none(annotation)


def _without_none(annotation: Any) -> Any:
    """Return an annotation without None: no result has a null key."""
    if getattr(annotation, "__metadata__", None) is not None:
        inner = _without_none(annotation.__origin__)
        return Annotated[(inner, *annotation.__metadata__)]
    rest = [part for part in getattr(annotation, "__args__", ()) if part is not NoneType]
    return rest[0] if len(rest) == 1 and NoneType in annotation.__args__ else annotation


def _annotation(name: str, takes: type[Struct], aggregate: Any) -> Any:
    """Return the annotation of the values of an aggregate."""
    if isinstance(aggregate, AggregateFunction):
        given = result_of(aggregate)
    elif isinstance(aggregate, Aggregate):
        given = aggregate.widened(aggregate.type_of(takes))
    elif isinstance(aggregate, RowFunction):
        given = aggregate.type_of(takes)
    else:
        msg = f"{name}={aggregate!r:.60} is no aggregate, such as Count() or Sum('cents')"
        raise TypeError(msg)
    if given.type is None:
        msg = (
            f"the type of {name}={aggregate} is not known: annotate what its function returns, or give a record type as the result, with "
            "this aggregate in the annotation of a field"
        )
        raise TypeError(msg)
    kind = _of_field(takes, aggregate) or _of_values(given)
    return Union[kind, None] if given.may_be_none else kind  # noqa: UP007 - of a type known at run time


def _of_field(takes: type[Struct], aggregate: Any) -> Any:
    """Return the annotation of the field whose values an aggregate gives as they are; None where it makes others."""
    name = getattr(aggregate, "value", None)
    if not isinstance(name, str) or not getattr(aggregate, "gives_values", False):
        return None
    return _without_none(next(field.type for field in msgspec.structs.fields(takes) if field.name == name))


def _of_values(given: ValueType) -> Any:
    if given.type is Decimal and given.digits is not None:
        return Annotated[Decimal, Digits(*given.digits)]
    if given.type is int and given.unit is not None:
        return TimestampMicros if given.unit == "us" else Timestamp
    return given.type
