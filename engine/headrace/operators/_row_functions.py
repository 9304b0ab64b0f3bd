"""Functions of a row's place among the rows of its key, for annotations of the results of `Stream.over`."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from headrace.api.column_reads import TIME, Kind, Reads, fields_read, read_of_value
from headrace.api.graph import name_of
from headrace.api.records import Struct
from headrace.operators._value_types import ValueType, value_type


class RowFunction(abc.ABC):
    """Base class of functions that depend on the places of rows, and not on the frame."""

    __slots__ = ()

    @abc.abstractmethod
    def type_of(self, record: type[Struct]) -> ValueType:
        """Return the type of the result for records of a type.

        Raises `ValueError` for a field that the record lacks, `TypeError` for a default of another type.
        """

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type: by default only their order."""
        del record
        return fields_read([TIME], Kind.SORT)


@dataclass(frozen=True, slots=True)
class RowNumber(RowFunction):
    """Number of the row among the rows of its key, from 1 on, as an `int` (SQL: `ROW_NUMBER()`); the frame does not matter."""

    def __str__(self) -> str:
        """Return the function as it is written in code."""
        return "RowNumber()"

    def type_of(self, record: type[Struct]) -> ValueType:
        """Return the type of the result."""
        del record
        return ValueType(int, may_be_none=False)


@dataclass(frozen=True, slots=True)
class _Shifted(RowFunction):
    """Value of a row at a distance from the current one."""

    gives_values: ClassVar[bool] = True

    value: str | Callable[[Any], Any]
    offset: int = 1
    default: Any = None

    def __post_init__(self) -> None:
        """Check the distance. Raises `ValueError` unless it is a whole number of at least 1."""
        if type(self.offset) is not int or self.offset < 1:
            msg = f"{type(self).__name__}: offset must be a whole number of at least 1, not {self.offset!r:.60}"
            raise ValueError(msg)

    def __str__(self) -> str:
        """Return the function as it is written in code."""
        shown = repr(self.value) if isinstance(self.value, str) else name_of(self.value)
        offset = [] if self.offset == 1 else [f"offset={self.offset}"]
        default = [] if self.default is None else [f"default={self.default!r}"]
        return f"{type(self).__name__}({', '.join([shown, *offset, *default])})"

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type: the value of another row, and their order."""
        return read_of_value(self.value, Kind.TRANSFORMATION, record) | fields_read([TIME], Kind.SORT)

    def type_of(self, record: type[Struct]) -> ValueType:
        """Return the type of the result for records of a type.

        Raises `ValueError` for a field that the record lacks, `TypeError` for a default of another type.
        """
        value = value_type(record, self.value)
        if self.default is None:
            return value.or_none()
        held = (int, float) if value.type is float else value.type
        if isinstance(held, type | tuple) and not isinstance(self.default, held):
            msg = f"{self}: the default is {self.default!r:.60}, and the values are {value}"
            raise TypeError(msg)
        return value


@dataclass(frozen=True, slots=True)
class Lag(_Shifted):
    """Value of the row `offset` places before the current one; `default` where there is none (SQL: `LAG`).

    `value` is a field of the record, or a plain function of it. The frame does not matter. Raises `ValueError` for an
    `offset` below 1.
    """


@dataclass(frozen=True, slots=True)
class Lead(_Shifted):
    """Value of the row `offset` places after the current one; `default` where there is none (SQL: `LEAD`).

    The result is emitted once the watermark has passed that row; at the end of the input, or after the operator's
    `state_ttl` without such a row, with the default. Otherwise as `Lag`.

    Raises `ValueError` for an `offset` below 1.
    """
