"""Conditions on the rows of a table: as SQL for a scan that skips files, and as a mask for rows in memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc


class Condition(Protocol):
    """Condition on one column. A null never meets it, except for `NoneOf`."""

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        ...

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        ...


@dataclass(frozen=True, slots=True)
class OneOf:
    """Condition that the column has one of these values."""

    column: str
    values: tuple[str | int, ...]

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        if not self.values:
            return "false"
        if len(self.values) == 1:
            return f"{quoted(self.column)} = {_literal(self.values[0])}"
        return f"{quoted(self.column)} IN ({', '.join(map(_literal, self.values))})"

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        column = rows[self.column]
        return pc.is_in(column, pa.array(self.values, column.type), skip_nulls=True)


@dataclass(frozen=True, slots=True)
class NoneOf:
    """Condition that the column has none of these values."""

    column: str
    values: tuple[str | int, ...]

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        if not self.values:
            return "true"
        return f'("{self.column}" IS NULL OR "{self.column}" NOT IN ({", ".join(map(_literal, self.values))}))'

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        return pc.invert(OneOf(self.column, self.values).mask(rows))


@dataclass(frozen=True, slots=True)
class Within:
    """Condition that the column has a number from `first` to `last`, both included."""

    column: str
    first: int
    last: int

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        return f'"{self.column}" >= {self.first} AND "{self.column}" <= {self.last}'

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        column = rows[self.column]
        inside = pc.and_(pc.greater_equal(column, self.first), pc.less_equal(column, self.last))
        return pc.fill_null(inside, False)


@dataclass(frozen=True, slots=True)
class BetweenTimes:
    """Condition that the column has a time after `after` and not after `until` (ms); None sets no bound."""

    column: str
    after: int | None = None
    until: int | None = None

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        bounds = [
            f'"{self.column}" {sign} {_time(bound)}'
            for sign, bound in ((">", self.after), ("<=", self.until))
            if bound is not None
        ]
        return " AND ".join(bounds) or f'"{self.column}" IS NOT NULL'

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        times = rows[self.column].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        inside = pc.is_valid(times)
        if self.after is not None:
            inside = pc.and_(inside, pc.greater(times, self.after * _MICROSECONDS))
        if self.until is not None:
            inside = pc.and_(inside, pc.less_equal(times, self.until * _MICROSECONDS))
        return pc.fill_null(inside, False)


@dataclass(frozen=True, slots=True)
class BeginsWith:
    """Condition that the column has a text that begins with one of these prefixes."""

    column: str
    prefixes: tuple[str, ...]

    def sql(self) -> str:
        """Return the condition in deltalake's SQL."""
        tests = (f'starts_with("{self.column}", {literal(prefix)})' for prefix in self.prefixes)
        return f"({' OR '.join(tests)})"

    def mask(self, rows: pa.Table, /) -> pa.Array:
        """Return for each row whether it meets the condition."""
        column = rows[self.column]
        masks = (pc.fill_null(pc.starts_with(column, prefix), False) for prefix in self.prefixes)
        return reduce(pc.or_, masks)


Conditions = Sequence[Condition]
"""Conditions that must all be met."""


def sql_of(conditions: Conditions) -> str | None:
    """Return conditions as one SQL predicate; None without conditions."""
    return " AND ".join(condition.sql() for condition in conditions) or None


def rows_that_meet(conditions: Conditions, rows: pa.Table) -> pa.Table:
    """Return the rows that meet all conditions."""
    for condition in conditions:
        rows = rows.filter(condition.mask(rows))
    return rows


def quoted(column: str) -> str:
    """Return the name of a column in deltalake's SQL."""
    return '"' + column.replace('"', '""') + '"'


def literal(value: str) -> str:
    """Return a text as an SQL literal: deltalake's predicates take no parameters."""
    return "'" + value.replace("'", "''") + "'"


_MICROSECONDS = 1000


def as_tuple(values: str | Iterable[str]) -> tuple[str, ...]:
    """Return one value, or several in order, as a tuple."""
    return (values,) if isinstance(values, str) else tuple(sorted(values))


def _literal(value: str | int) -> str:
    return literal(value) if isinstance(value, str) else str(value)


def _time(milliseconds: int) -> str:
    return f"arrow_cast({milliseconds * _MICROSECONDS}, 'Timestamp(Microsecond, Some(\"UTC\"))')"
