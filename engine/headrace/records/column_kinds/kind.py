"""Kinds of columns: one class for each holds all that the package knows of its values.

A kind is chosen once for a column, by the type of its field: `headrace.records.column_kinds.scalars` has the kinds of single values by
the types that msgspec reads from annotations. A new kind is a class in this package, and a line there. Lists, maps and structs consist
of other kinds; the modules that convert them go through their parts.
"""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, Literal, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from headrace.records.foreign_values import is_text, shown, shown_plain, shown_value
from headrace.records.problems import Problem, Problems, UnfitValue

PythonType = type
"""Type of values in Python: in a class that has a `type` of its own, that name means another thing."""

Misfits = tuple[pa.BooleanArray, str]
"""Mask of the values that do not fit, and the reason that follows each of them."""


ValueNotation = Literal["text", "number", "truth", "day", "time"]
"""What texts of a format without types may write in several ways: numbers with a comma, days by a pattern."""


class ColumnKind(ABC):
    """Kind of a column's values. An error names it by its text."""

    type: pa.DataType
    """Type between stages."""

    sink_type: pa.DataType
    """Type in the table of a sink."""

    through: pa.DataType
    """Type by way of which Arrow casts one of them to the other."""

    parse: Callable[[str], Any] | None = None
    """Parser of texts of a format without types, as CSV; None where the text is the value."""

    notation: ValueNotation = "text"
    """What such texts write, for files that write it in another way."""

    @property
    def read_type(self) -> pa.DataType:
        """Return the type of a column of plain values that `read` has made."""
        return self.type

    def __str__(self) -> str:
        """Return what an error calls such a value."""
        return str(self.type)

    @abstractmethod
    def takes(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type may be values of this kind.

        Text never becomes a number, a number a truth value, or an instant an integer: that would hide mistakes upstream.
        """

    def sorts_like(self, kind: pa.DataType) -> bool:
        """Return whether values of a foreign type that this kind takes sort in the order of its own values."""
        return not isinstance(kind, pa.BaseExtensionType) and not is_text(kind)

    def to_sink(self, array: pa.Array) -> pa.Array:
        """Return values between stages as a sink stores them."""
        return array if self.type == self.sink_type else array.cast(self.through).cast(self.sink_type)

    @abstractmethod
    def plain(self, array: pa.Array) -> list[Any]:
        """Return the values in the form that msgspec converts to those of records: an enum as its text or number, a struct as a dict."""

    def as_key(self, array: pa.Array) -> pa.Array:
        """Return values between stages in a form whose JSON is that of the values of records."""
        return array

    def as_stored(self, array: pa.Array, kind: pa.DataType) -> pa.Array:
        """Return values between stages as a foreign column of a type has them; a column of numbers has this kind's own unit.

        Raises `pa.ArrowException` for a type that cannot hold them.
        """
        return (array.cast(self.through) if pa.types.is_temporal(kind) else array).cast(kind)

    def from_sink(self, values: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return values of a sink as they are between stages."""
        return values.cast(self.through).cast(self.type)


class ScalarKind(ColumnKind):
    """Kind of single values."""

    python: PythonType
    """Type of the values in records. Arrow takes plain values of it unchanged."""

    annotation: Any
    """Annotation by which msgspec checks values of records; None where it would accept others, too."""

    contentless: Any
    """Value of a required field that a row need not have."""

    allowed: Mapping[Any, Any] = {}
    """Values of a literal or enum as records hold them, by those that columns hold; empty where every value is allowed."""

    is_plain: bool = True
    """Whether Arrow takes values of the type in Python as they are."""

    has_file_problems: bool = False
    """Whether `file_problem` can find one."""

    can_be_key: bool = True
    """Whether a value identifies a row of a sink."""

    can_be_map_key: bool = True
    """Whether JSON has a form for a map with such keys, and equal values have equal forms."""

    per_second: int | None = None
    """Number of this kind's units in a second, if its values are instants of event time."""

    def declared(self, info: inspect.Type) -> ScalarKind | None:
        """Return the kind for a type of this kind as msgspec describes it; None for one that no column has."""
        del info
        return self

    def event_time(self, value: Any) -> int:
        """Return an instant of a record in milliseconds, rounded down. Raises `TypeError` for a value that is none."""
        try:
            units = self.exact(value)
        except UnfitValue as error:
            msg = f"an event time {error.problem.why}"
            raise TypeError(msg) from None
        if units is None or self.per_second is None:
            msg = f"an event time is an instant, not {value!r:.100}"
            raise TypeError(msg)
        return int(units) * 1_000 // self.per_second

    def event_times(self, array: pa.Array) -> pa.Int64Array:
        """Return instants between stages in milliseconds, rounded down."""
        steps = (self.per_second or 1_000) // 1_000
        if steps == 1:
            return array
        cut = pc.divide(array, steps)
        return pc.if_else(pc.less(array, pc.multiply(cut, steps)), pc.subtract(cut, 1), cut)

    # From records, and to records.

    def keeps(self, values: Sequence[Any]) -> bool:
        """Return whether Arrow stores all values as they are: they are of the kind's own type in Python, or None."""
        return {*map(type, values)} <= ({self.python, NoneType} if self.is_plain else {NoneType})

    def exact(self, value: Any) -> Any:
        """Return a value of a record as Arrow takes it, None as None. Raises `UnfitValue` for another type."""
        plain = value.value if isinstance(value, enum.Enum) else value
        if type(plain) in {self.python, NoneType}:
            return plain
        why = f"is {shown(value)}, which is not {self.python.__name__}"
        raise UnfitValue(why)

    def array(self, values: Sequence[Any]) -> pa.Array:
        """Return values that `exact` has returned, or that it would return, as an array."""
        return pa.array(values, self.type)

    def without_names(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return values of records without the enums that name them."""
        return values

    def problem(self, array: pa.Array, *, sink: bool) -> Misfits | None:
        """Return which values of records JSON cannot hold, or with `sink` a sink; None where it holds all."""
        del array, sink
        return None

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values as records hold them."""
        values: list[Any] = array.to_pylist()
        return values

    def plain(self, array: pa.Array) -> list[Any]:
        """Return the values in the form that msgspec converts to those of records."""
        return self.values(array)

    # From sources.

    @abstractmethod
    def read(self, value: Any) -> Any:
        """Return a plain value of JSON, CSV or Avro as Arrow takes it. Raises `UnfitValue`."""

    def fit(self, array: pa.Array, problems: Problems) -> pa.Array:
        """Return foreign values that this kind takes in its own type, null where there is a problem; add the problems."""
        return self._cast(array, problems)

    def file_problem(self, array: pa.Array) -> str | None:
        """Return why a file with these values, of any type, is refused as a whole. None for all other values."""
        del array
        return None

    def _parsed(
        self, array: pa.Array, texts: Sequence[str | None], parse: Callable[[str], Any], problems: Problems
    ) -> list[Any]:
        """Return what the `texts` of an array's values stand for; None for nulls, and for texts that stand for nothing: these are problems."""
        values = [None if text is None else parse(text) for text in texts]
        for position, (text, value) in enumerate(zip(texts, values, strict=True)):
            if value is None and text is not None:
                problems[position] = other_type(array[position], self)
        return values

    def _refuse(self, value: Any) -> NoReturn:
        why = f"is {shown_plain(value)}, which is not {self}"
        raise UnfitValue(why)

    def _cast(self, array: pa.Array, problems: Problems, start: int = 0) -> pa.Array:
        """Return the array in this type. Arrow refuses whole arrays, so halves are tried to find the refused values."""
        try:
            return array.cast(self.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            if len(array) == 1:
                problems[start] = other_type(array[0], self)
                return pa.nulls(1, self.type)
        middle = len(array) // 2
        halves = (array.slice(0, middle), start), (array.slice(middle), start + middle)
        return pa.concat_arrays([self._cast(half, problems, at) for half, at in halves])


def other_type(value: pa.Scalar, kind: ColumnKind) -> Problem:
    """Return the problem of a value that has not the type of a kind."""
    return Problem("", f"is {shown_value(value)}, which is not {kind}")
