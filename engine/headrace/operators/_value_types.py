"""Types of values that aggregates take, alone and in bundles."""

from __future__ import annotations

import enum
import types
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from operator import attrgetter
from types import NoneType
from typing import Annotated, Any, Final, Union, cast, get_args, get_origin
from uuid import UUID

import msgspec
from msgspec import inspect

from headrace.api.batches import BundledRecord
from headrace.api.records import Struct, canonical_encoder, digits_of, unit_of
from headrace.api.types import check_field, check_plain, hints_of

NUMBERS: Final = (int, float, Decimal)
"""Types of values that can be added up."""
ORDERED: Final = (*NUMBERS, str, bool, bytes, date, datetime, time, timedelta, UUID)
"""Types of values that can be compared."""


_text_of: Final = canonical_encoder("deterministic")


def are_equal(left: Any, right: Any) -> bool:
    """Return whether two records are equal; None is equal to None. `true` and `1` are two values of free JSON, and one to Python."""
    if left != right:
        return False
    return left is None or not _has_free_json(_type_of(left)) or _text_of(left) == _text_of(right)


def are_identical(left: Any, right: Any) -> bool:
    """Return whether two values are equal and written alike: 0.0 and -0.0 are not. So a row is taken back as it was emitted."""
    if left is right:
        return True
    if not are_equal(left, right):
        return False
    kind = _type_of(left)
    if left is None or not _has_spellings(kind):
        return True
    floats = _floats_of(kind)
    return (floats is not None and 0.0 not in floats(left)) or _text_of(left) == _text_of(right)


def place_among(values: Sequence[Any], wanted: Any) -> int | None:
    """Return the first place of a value among others: of the identical one, else of an equal one; None without any."""
    equal = (place for place, value in enumerate(values) if are_equal(value, wanted))
    return first_identical(equal, values.__getitem__, wanted)


def first_identical(places: Iterable[int], value_at: Callable[[int], Any], wanted: Any) -> int | None:
    """Return the first of some places with a value that is identical to the wanted one, else the first of all; None without any."""
    first: int | None = None
    for place in places:
        if are_identical(value_at(place), wanted):
            return place
        first = place if first is None else first
    return first


def _type_of(value: Any) -> Hashable:
    return cast("Hashable", type(value))


@lru_cache(1024)
def _has_free_json(record: Hashable) -> bool:
    """Return whether values of a type have a part of free JSON."""
    return _has_part(inspect.type_info(record), _is_free)


@lru_cache(1024)
def _has_spellings(record: Hashable) -> bool:
    """Return whether equal values of a type may be written in several ways."""
    return _has_part(inspect.type_info(record), _is_spelled)


@lru_cache(1024)
def _floats_of(record: Hashable) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return the function that reads the floats of a record, if these fields alone may be written in several ways; else None.

    Records without a zero are then identical if they are equal, which takes a third of the time of their texts.
    """
    kind = inspect.type_info(record)
    if not isinstance(kind, inspect.StructType) or _is_spelled(kind):
        return None
    spelled = [field for field in kind.fields if _has_part(field.type, _is_spelled)]
    if not all({*map(type, getattr(field.type, "types", (field.type,)))} <= _NUMBERS for field in spelled):
        return None
    return attrgetter(*(field.name for field in spelled), spelled[0].name)  # of two names: it returns a tuple


_NUMBERS: Final = {inspect.FloatType, inspect.IntType, inspect.NoneType}


def _is_free(kind: inspect.Type) -> bool:
    return isinstance(kind, inspect.AnyType)


def _is_spelled(kind: inspect.Type) -> bool:
    """Return whether equal values may be written as 0.0 and -0.0, 1.0 and 1.00, in two zones, or as code of a record or an enumeration compares them."""
    if isinstance(kind, inspect.StructType):
        return kind.cls.__eq__ is not msgspec.Struct.__eq__
    if isinstance(kind, inspect.EnumType):
        return has_own_equality(kind.cls)
    return isinstance(kind, inspect.AnyType | inspect.FloatType | inspect.DecimalType | inspect.DateTimeType)


def has_own_equality(enumeration: type[Any]) -> bool:
    """Return whether an enumeration has code that compares its values."""
    return any("__eq__" in vars(base) for base in enumeration.__mro__ if issubclass(base, enum.Enum))


def _has_part(kind: inspect.Type, fits: Callable[[inspect.Type], bool]) -> bool:
    """Return whether a part of values of a type fits."""
    parts = (getattr(kind, name, ()) for name in ("types", "item_types", "item_type", "key_type", "value_type", "type"))
    inner = [part for value in parts for part in (value if isinstance(value, tuple) else (value,))]
    fields = [field.type for field in getattr(kind, "fields", ())]
    return fits(kind) or any(_has_part(part, fits) for part in (*inner, *fields) if isinstance(part, inspect.Type))


def named(types_of_values: Sequence[type]) -> str:
    """Return the names of types, as in "int, float and str"."""
    *others, last = (held.__name__ for held in types_of_values)
    return f"{', '.join(others)} and {last}"


@dataclass(frozen=True, slots=True)
class ValueType:
    """A type without None; None if nothing declares it. `may_be_none` says whether a value may be None."""

    type: Any
    may_be_none: bool
    digits: tuple[int, int] | None = None
    """Of decimals: number of all digits, and of those behind the point."""

    unit: str | None = None
    """Of numbers that are instants: "ms" or "us"."""

    def __str__(self) -> str:
        """Return the type as an annotation."""
        if self.unit is not None:
            name = "TimestampMicros" if self.unit == "us" else "Timestamp"
            return f"{name} | None" if self.may_be_none else name
        name = self.type.__name__ if isinstance(self.type, type) and not get_args(self.type) else str(self.type)
        return f"{name} | None" if self.may_be_none else name

    def takes(self, given: ValueType) -> bool:
        """Return whether a field of this type may hold the given values. Instants of another unit would be other instants."""
        is_other_unit = None not in {self.unit, given.unit} and self.unit != given.unit
        return given.type == self.type and not is_other_unit and (self.may_be_none or not given.may_be_none)

    def or_none(self) -> ValueType:
        """Return the type of values that may also be None."""
        return replace(self, may_be_none=True)


_UNKNOWN = ValueType(None, may_be_none=False)


def value_type(record: type[Struct], value: str | Callable[[Any], Any] | None) -> ValueType:
    """Return the type of a record's field, of a function's result, or for None, of the record itself.

    Raises `ValueError` for a field that the record lacks, `TypeError` for any other kind of value.
    """
    if value is None:
        return ValueType(record, may_be_none=False)
    if isinstance(value, str):
        check_field(record, value)
        return annotated_type(next(field.type for field in msgspec.structs.fields(record) if field.name == value))
    check_plain("an aggregate", value)
    hints = hints_of(value, with_metadata=True)
    return annotated_type(hints["return"]) if "return" in hints else _UNKNOWN


def annotated_type(annotation: Any) -> ValueType:
    """Return the type that an annotation declares, without metadata."""
    if get_origin(annotation) is Annotated:
        inner = annotated_type(get_args(annotation)[0])
        return replace(inner, digits=digits_of(annotation), unit=unit_of(annotation))
    if get_origin(annotation) not in {Union, types.UnionType}:
        return ValueType(annotation, may_be_none=annotation is type(None))
    parts = [part for part in get_args(annotation) if part is not type(None)]
    may_be_none = len(parts) < len(get_args(annotation))
    if len(parts) > 1:
        return ValueType(Union[tuple(parts)], may_be_none=may_be_none)  # noqa: UP007 - of types known at run time
    inner = annotated_type(parts[0])
    return replace(inner, may_be_none=may_be_none or inner.may_be_none)


def reader(value: str | Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    """Return a function that reads a value from a record."""
    if value is None:
        return _itself
    return attrgetter(value) if isinstance(value, str) else value


def _itself(record: Any) -> Any:
    return record


class BundledValues:
    """Values of one field in some records, or of a function of them. Records whose value is None are left out.

    All aggregates with the same field share it, so types are looked at once.
    """

    __slots__ = ("all", "records", "type")

    def __init__(self, read: Callable[[Any], Any], records: Sequence[BundledRecord]) -> None:
        """Read the values of the records."""
        values = [read(record.record) for record in records]
        types = set(map(type, values))
        if NoneType in types:
            types.remove(NoneType)
            records = [record for record, value in zip(records, values, strict=True) if value is not None]
            values = [value for value in values if value is not None]
        self.records = records
        self.all = values
        self.type: type | None = types.pop() if len(types) == 1 else None
        """Type of the values, if all have the same; True is no int here."""

    @property
    def times(self) -> list[int]:
        """Return the event times of the records (ms)."""
        return [record.timestamp for record in self.records]
