"""The kinds of single values by the types of annotations, and the types of columns in Spark's DDL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import inspect

from headrace.api.records import DIGITS, JSON, MARK
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_kinds.numbers import (
    WIDTHS,
    DecimalNumber,
    Float,
    Float32,
    Integer,
    Truth,
    UndeclaredDecimal,
)
from headrace.records.column_kinds.texts import Binary, Json, Text, TimeOfDay, Uuid
from headrace.records.column_kinds.times import TIMES, Day, Duration, ZonedDatetime

SCALARS: Final[Mapping[type[inspect.Type], ScalarKind]] = {
    inspect.IntType: Integer(),
    inspect.FloatType: Float(),
    inspect.StrType: Text(),
    inspect.BoolType: Truth(),
    inspect.BytesType: Binary(),
    inspect.DateType: Day(),
    inspect.TimeType: TimeOfDay(),
    inspect.DateTimeType: ZonedDatetime(),
    inspect.TimeDeltaType: Duration(),
    inspect.UUIDType: Uuid(),
    inspect.DecimalType: UndeclaredDecimal(),
}
"""Kinds of single values by the types of msgspec."""

MARKED: Final[Mapping[str, ScalarKind]] = {**WIDTHS, **TIMES, "float32": Float32(), JSON: Json()}
"""Kinds of single values by the marks of their annotations."""


def scalar_kind(info: inspect.Type) -> ScalarKind | None:
    """Return the kind of single values for a type as msgspec describes it; None for another type."""
    kind = SCALARS.get(type(info))
    return None if kind is None else kind.declared(info)


def marked_kind(extra: Mapping[str, Any]) -> ScalarKind | None:
    """Return the kind for the marks of an annotation, as those of `Timestamp` and `Digits`; None without any."""
    return DecimalNumber(*extra[DIGITS]) if DIGITS in extra else MARKED.get(str(extra.get(MARK)))
