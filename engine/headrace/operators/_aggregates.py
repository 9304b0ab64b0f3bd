"""Aggregates of records, for annotations of a result's fields."""

from __future__ import annotations

import abc
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from decimal import Decimal
from typing import Any, ClassVar

from headrace.api.column_reads import TIME, Kind, Reads, fields_read, read_of_value
from headrace.api.records import Struct
from headrace.operators._accumulators import (
    Accumulator,
    AvgAccumulator,
    CountAccumulator,
    DecimalAvg,
    DecimalSum,
    DistinctAccumulator,
    ExtremeAccumulator,
    ExtremeByAccumulator,
    FirstAccumulator,
    LastAccumulator,
    SumAccumulator,
    distinct_text,
    text_of_results,
)
from headrace.operators._multisets import DistinctMultiset, ExtremeMultiset, Multiset
from headrace.operators._ordered_values import ExtremeByOfAll, ExtremeOfAll, FirstOfAll, LastOfAll
from headrace.operators._value_types import NUMBERS, ORDERED, ValueType, named, value_type

_MOST_DIGITS = 38
_SCALE_OF_MEANS = 6

Value = str | Callable[[Any], Any]
"""Value that is aggregated: a field of the record, or a function of it."""


@dataclass(frozen=True, slots=True)
class Aggregate(abc.ABC):
    """Base class of all aggregates.

    `value` is a field of the record, or a plain function of it. As in SQL, records whose value is None are skipped.
    `where` is a plain function: the aggregate takes only the records for which it is true (SQL: `FILTER (WHERE ...)`).
    """

    gives_values: ClassVar[bool] = False
    """True: the result is one of the values."""

    value: Value | None
    _: KW_ONLY
    where: Callable[[Any], object] | None = None

    def __str__(self) -> str:
        """Return the aggregate as it is written in code."""
        where = [] if self.where is None else [f"where={_shown(self.where)}"]
        return f"{type(self).__name__}({', '.join([*self._arguments(), *where])})"

    def _arguments(self) -> list[str]:
        return [] if self.value is None else [_shown(self.value)]

    def type_of(self, record: type[Struct]) -> ValueType:
        """Return the type of the result for records of a type.

        Raises `ValueError` for a field that the record lacks, `TypeError` for a field that cannot be aggregated.
        """
        result_type = self.checked(value_type(record, self.value), self.value)
        return result_type if self.where is None else result_type.or_none()

    def checked(self, value: ValueType, shown: Value | None) -> ValueType:
        """Return the type of the result for values of a type. Raises `TypeError` for values that cannot be aggregated."""
        del shown
        return value

    def widened(self, result: ValueType) -> ValueType:
        """Return the type of the result with the digits that it gets where no annotation declares them."""
        return result

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type."""
        reads = read_of_value(self.value, Kind.AGGREGATION, record)
        return reads if self.where is None else reads | read_of_value(self.where, Kind.CONDITIONAL, record)

    @abc.abstractmethod
    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back (`-U`, `-D`)."""
        return self.accumulator(record, result)

    def multiset(self, record: type[Struct], result: ValueType, *, retracting: bool) -> Multiset | None:
        """Return its state by entry; None for an aggregate of which a key has one small value. `retracting`: records may be taken back."""
        del record, result, retracting
        return None


class _Counting(Aggregate):
    """Aggregates that count: they never return None, and can retract a record."""

    __slots__ = ()

    def type_of(self, record: type[Struct]) -> ValueType:
        if self.value is not None:  # Count allows None
            value_type(record, self.value)
        return ValueType(int, may_be_none=False)

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type: without a value, it counts rows."""
        reads = Aggregate.column_reads(self, record)
        return reads if self.value is not None else frozenset(reader for reader in reads if not reader.kind.is_direct)


@dataclass(frozen=True, slots=True)
class Count(_Counting):
    """Number of records: `Count()`; or of records whose value is not None: `Count("paid_at")`. The result is an `int`."""

    value: Value | None = None

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record, result
        return CountAccumulator()


@dataclass(frozen=True, slots=True)
class CountDistinct(_Counting):
    """Number of different values, as an `int`. The state stores each value of a key or of its window, with its count.

    What a function returns counts as a value of the type that it declares to return: 0 of a declared float is 0.0.

    Outside of windows, a key with many values has a row of state for each: a new value writes two rows.
    """

    @property
    def _text(self) -> Callable[[Any], str]:
        """Return what makes the texts of the values."""
        return text_of_results(self.value) if callable(self.value) else distinct_text

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record, result
        return DistinctAccumulator(self._text)

    def multiset(self, record: type[Struct], result: ValueType, *, retracting: bool) -> Multiset:
        """Return its state by entry."""
        del record, result, retracting
        return DistinctMultiset(self._text)


class _Adding(Aggregate):
    """Aggregates that add numbers up, and can subtract them again."""

    __slots__ = ()

    def checked(self, value: ValueType, shown: Value | None) -> ValueType:
        """Return the type of the result for values of a type. Raises `TypeError` for values that cannot be aggregated."""
        if value.type is not None and value.type not in NUMBERS:
            msg = f"{self}: {_shown(shown)} is {value}, and only {named(NUMBERS)} can be added up"
            raise TypeError(msg)
        return replace(value, unit=None)  # a sum of instants is no instant

    def widened(self, result: ValueType) -> ValueType:
        """Return the type of the result with as many digits as a decimal can have, and the scale of the values."""
        return result if result.digits is None else replace(result, digits=(_MOST_DIGITS, result.digits[1]))


@dataclass(frozen=True, slots=True)
class Sum(_Adding):
    """Sum of `int`, `float` or `Decimal` values, of the same type; None without values. A sum of decimals is exact.

    Raises `OverflowError` for a sum of whole numbers that exceeds 64 bits, and `ValueError` for a float that is NaN or
    infinite; either fails the micro-batch.
    """

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return DecimalSum() if result.type is Decimal else SumAccumulator(str(self), result.type)


@dataclass(frozen=True, slots=True)
class Avg(_Adding):
    """Mean of `int` or `float` values, as a `float`; None without values. Errors are those of `Sum`.

    The mean of `Decimal` values is a `Decimal`, rounded to the digits that the annotation of the result declares, half to even.
    """

    def checked(self, value: ValueType, shown: Value | None) -> ValueType:
        """Return the type of the result for values of a type. Raises `TypeError` for values that cannot be aggregated."""
        value = _Adding.checked(self, value, shown)
        return replace(value, type=Decimal if value.type is Decimal else float)

    def widened(self, result: ValueType) -> ValueType:
        """Return the type of the result with as many digits as a decimal can have, six of them or more behind the point (SQL: AVG)."""
        return (
            result
            if result.digits is None
            else replace(result, digits=(_MOST_DIGITS, max(result.digits[1], _SCALE_OF_MEANS)))
        )

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return DecimalAvg(result.digits) if result.type is Decimal else AvgAccumulator(str(self))


class _Ordered(Aggregate):
    """Aggregates that compare values."""

    __slots__ = ()
    gives_values = True

    def checked(self, value: ValueType, shown: Value | None) -> ValueType:
        """Return the type of the result for values of a type. Raises `TypeError` for values that cannot be aggregated."""
        if value.type is not None and value.type not in ORDERED:
            msg = f"{self}: {_shown(shown)} is {value}, and only {named(ORDERED)} can be compared"
            raise TypeError(msg)
        return value

    def multiset_of(self, record: type[Struct], result: ValueType, *, takes_larger: bool) -> Multiset | None:
        """Return the state by entry of an extreme; None for decimals without digits, whose texts have no order."""
        value = value_type(record, self.value)
        known = result if value.type is None else value
        if known.type is Decimal and known.digits is None:
            return None
        return ExtremeMultiset(str(self), known, takes_larger=takes_larger)


@dataclass(frozen=True, slots=True)
class Min(_Ordered):
    """Smallest value; None without values."""

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return ExtremeAccumulator(str(self), result.type, takes_larger=False)

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back: it has all values."""
        del record
        return ExtremeOfAll(str(self), result.type, takes_larger=False)

    def multiset(self, record: type[Struct], result: ValueType, *, retracting: bool) -> Multiset | None:
        """Return its state by entry, where records may be taken back and the digits of decimals are known."""
        return self.multiset_of(record, result, takes_larger=False) if retracting else None


@dataclass(frozen=True, slots=True)
class Max(_Ordered):
    """Largest value; None without values."""

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return ExtremeAccumulator(str(self), result.type, takes_larger=True)

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back: it has all values."""
        del record
        return ExtremeOfAll(str(self), result.type, takes_larger=True)

    def multiset(self, record: type[Struct], result: ValueType, *, retracting: bool) -> Multiset | None:
        """Return its state by entry, where records may be taken back and the digits of decimals are known."""
        return self.multiset_of(record, result, takes_larger=True) if retracting else None


@dataclass(frozen=True, slots=True)
class _ExtremeBy(_Ordered):
    """Value of the record with the smallest or largest `by`."""

    takes_larger: ClassVar[bool]

    value: Value | None = None
    _: KW_ONLY
    by: Value

    def _arguments(self) -> list[str]:
        return [*Aggregate._arguments(self), f"by={_shown(self.by)}"]  # noqa: SLF001 - super() knows no class with slots

    def type_of(self, record: type[Struct]) -> ValueType:
        value, by = value_type(record, self.value), self._by(record)
        may_be_none = value.may_be_none or by.may_be_none or self.where is not None
        return replace(value, may_be_none=may_be_none)

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type."""
        order = read_of_value(self.by, Kind.SORT, record) | fields_read([TIME], Kind.SORT)
        return Aggregate.column_reads(self, record) | order

    def _by(self, record: type[Struct]) -> ValueType:
        return self.checked(value_type(record, self.by), self.by)

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None).

        Raises `TypeError` where nothing declares the type of `by`.
        """
        by = self._type_of_by(record)
        return ExtremeByAccumulator(str(self), by, result.type, self.by, takes_larger=self.takes_larger)

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back: it has all values. Raises as `accumulator` does."""
        by = self._type_of_by(record)
        return ExtremeByOfAll(str(self), by, result.type, self.by, takes_larger=self.takes_larger)

    def _type_of_by(self, record: type[Struct]) -> Any:
        by = self._by(record).type
        if by is None:
            msg = f"{self}: annotate what the function of 'by' returns, or give a field"
            raise TypeError(msg)
        return by


@dataclass(frozen=True, slots=True)
class ArgMax(_ExtremeBy):
    """Value of the record with the largest `by`: `ArgMax("bidder", by="price")`; without a value, the record itself.

    Of several records with the largest `by`, the one with the earliest event time counts, and of those the first to
    arrive. Records in which either of the two is None are skipped; None without records.
    """

    takes_larger = True


@dataclass(frozen=True, slots=True)
class ArgMin(_ExtremeBy):
    """Value of the record with the smallest `by`; otherwise as `ArgMax`."""

    takes_larger = False


@dataclass(frozen=True, slots=True)
class First(Aggregate):
    """Value of the first record by event time, of several the first to arrive; without a value, the record itself."""

    gives_values = True

    value: Value | None = None

    def column_reads(self, record: type[Struct]) -> Reads:
        """Return what the result reads of records of a type."""
        return Aggregate.column_reads(self, record) | fields_read([TIME], Kind.SORT)

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return FirstAccumulator(str(self), result.type)

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back: it has all values."""
        del record
        return FirstOfAll(str(self), result.type)


@dataclass(frozen=True, slots=True)
class Last(First):
    """Value of the last record by event time, of several the last to arrive; without a value, the record itself."""

    def accumulator(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator, for a result of type `result` (without None)."""
        del record
        return LastAccumulator(str(self), result.type)

    def retractable(self, record: type[Struct], result: ValueType) -> Accumulator:
        """Return its accumulator for records that may be taken back: it has all values."""
        del record
        return LastOfAll(str(self), result.type)


def _shown(value: Value | None) -> str:
    return repr(value) if isinstance(value, str) else getattr(value, "__name__", type(value).__name__)
