"""Values of records as Arrow arrays, checked as whole columns; single values are checked only to name the wrong one."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from itertools import accumulate, chain
from keyword import iskeyword
from types import NoneType
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import Column
from headrace.records.foreign_values import shown
from headrace.records.problems import UnfitValue

_ADVICE: Final = "What is stored must be the same when it is read again: let it emit values of the declared types."


class UnfitRecord(ValueError):  # noqa: N818 - it names the record, as "bad row" does
    """A record holds a value that its columns cannot represent as JSON does.

    `index` is its position among the records, `field` the path to the value in it, as in `lines[2].price`. `advice` are sentences.
    """

    def __init__(self, index: int, field: str, why: str, advice: str = _ADVICE) -> None:
        super().__init__(f"record {index}: {field} {why}" if field else f"record {index} {why}")
        self.index, self.field, self.why, self.advice = index, field, why, advice


class UnfitPartition(UnfitRecord):
    """A record holds a text that cannot be the name of a partition in its sink. No code is to blame for it."""


def to_array(values: Sequence[Any], column: Column, *, sink: bool = False) -> pa.Array:
    """Return the values of a column as an array of its type, or with `sink` of its type in a sink.

    A sink takes NaN and infinity as well. Raises `UnfitRecord` with the position of the value, and the path below it.
    """
    if isinstance(column.kind, ScalarKind):
        return _scalars(values, column, column.kind, sink=sink)
    kinds = {*map(type, values)}
    if NoneType not in kinds:
        return _nested(values, column, kinds, sink=sink)
    if not column.nullable:
        raise UnfitRecord(next(at for at, value in enumerate(values) if value is None), "", "is null")
    positions = [at for at, value in enumerate(values) if value is not None]
    try:
        dense = _nested([values[at] for at in positions], column, kinds - {NoneType}, sink=sink)
    except UnfitRecord as error:
        raise UnfitRecord(positions[error.index], error.field, error.why) from None
    places: list[int | None] = [None] * len(values)
    for place, position in enumerate(positions):
        places[position] = place
    return dense.take(pa.array(places, pa.int64()))


def _nested(values: Sequence[Any], column: Column, kinds: set[type], *, sink: bool) -> pa.Array:
    if column.record is not None:
        return _structs(values, column, column.record, kinds, sink=sink)
    array = _maps(values, column, sink=sink) if len(column.parts) > 1 else _lists(values, column, sink=sink)
    _check_limits(values, column)
    return array


def _structs(
    values: Sequence[Any], column: Column, record: type[msgspec.Struct], kinds: set[type], *, sink: bool
) -> pa.Array:
    if not kinds <= {record}:
        _check_types(values, (record,), record.__name__)
    arrays = []
    for part in column.parts:
        try:
            arrays.append(to_array(attributes(part.name)(values), part, sink=sink))
        except UnfitRecord as error:
            raise UnfitRecord(error.index, f".{part.name}{error.field}", error.why) from None
    return pa.StructArray.from_arrays(arrays, fields=list(column.sink_type if sink else column.type))


@cache
def attributes(name: str) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function that lists an attribute of each record.

    Compiled for its name it takes half the time of `attrgetter`, which saves a fifth of the conversion to columns.
    """
    if (
        not name.isascii() or not name.isidentifier() or iskeyword(name)
    ):  # Python normalises source text, not attribute names
        return lambda records: [getattr(record, name) for record in records]
    function: Callable[[Sequence[Any]], list[Any]] = eval(f"lambda records: [record.{name} for record in records]")  # noqa: S307 - an identifier
    return function


def _lists(values: Sequence[Any], column: Column, *, sink: bool) -> pa.Array:
    _check_types(values, (list, tuple), "list")
    ends = [0, *accumulate(map(len, values))]
    (items,) = column.parts
    try:
        array = to_array([*chain.from_iterable(values)], items, sink=sink)
    except UnfitRecord as error:
        row = bisect_right(ends, error.index) - 1
        raise UnfitRecord(row, f"[{error.index - ends[row]}]{error.field}", error.why) from None
    kind = column.sink_type if sink else column.type
    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), array, type=kind)


def _maps(values: Sequence[Any], column: Column, *, sink: bool) -> pa.Array:
    _check_types(values, (dict,), "dict")
    ends = [0, *accumulate(map(len, values))]
    keys = [*chain.from_iterable(values)]
    items = [*chain.from_iterable(value.values() for value in values)]
    try:
        arrays = [
            to_array(values_of_part, part, sink=sink)
            for values_of_part, part in zip((keys, items), column.parts, strict=True)
        ]
    except UnfitRecord as error:
        row = bisect_right(ends, error.index) - 1
        raise UnfitRecord(row, f"[{shown(keys[error.index])}]{error.field}", error.why) from None
    kind = column.sink_type if sink else column.type
    return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), *arrays, type=kind)


def _scalars(values: Sequence[Any], column: Column, kind: ScalarKind, *, sink: bool) -> pa.Array:
    values = _checked(kind.without_names(values), column, kind)
    try:
        array = kind.array(values)
    except (pa.ArrowException, OverflowError, UnicodeError):
        raise _culprit(values, column, kind) from None
    problem = kind.problem(array, sink=sink)
    if problem is not None:
        _check_none(array, *problem)
    return kind.to_sink(array) if sink else array


def _checked(values: Sequence[Any], column: Column, kind: ScalarKind) -> Sequence[Any]:
    """Return values of a column's type as JSON would decode them. Raises `UnfitRecord` for any other value."""
    if kind.annotation is None:
        is_plain = column.limits is None and None not in values and kind.keeps(values)
        return values if is_plain else _plain(values, column, kind)
    wanted: Any = column.limits or kind.annotation
    if column.nullable:
        wanted = wanted | None
    try:
        # This takes a third of the time of checking the types in Python.
        checked: list[Any] = msgspec.convert(values, list[wanted])
    except msgspec.ValidationError:
        return _plain(values, column, kind)
    return checked


def _plain(values: Sequence[Any], column: Column, kind: ScalarKind) -> list[Any]:
    plain = [_exact(at, value, kind) for at, value in enumerate(values)]
    if not column.nullable and None in plain:
        raise UnfitRecord(plain.index(None), "", "is null")
    if kind.allowed:
        _check_allowed(plain, kind)
    _check_limits(plain, column)
    return plain


def _exact(position: int, value: Any, kind: ScalarKind) -> Any:
    try:
        return kind.exact(value)
    except UnfitValue as error:
        raise UnfitRecord(position, "", error.problem.why) from None


def _check_types(values: Sequence[Any], classes: tuple[type, ...], name: str) -> None:
    for at, value in enumerate(values):
        if not isinstance(value, classes):
            raise UnfitRecord(at, "", f"is {shown(value)}, which is not {name}")


def _check_allowed(values: Sequence[Any], kind: ScalarKind) -> None:
    wrong = {*values} - kind.allowed.keys() - {None}
    if wrong:
        at = next(at for at, value in enumerate(values) if value in wrong)
        raise UnfitRecord(at, "", f"is {shown(values[at])}, not one of {', '.join(map(str, kind.allowed))}")


def _check_limits(values: Sequence[Any], column: Column) -> None:
    if column.limits is None:
        return
    try:
        msgspec.convert(values, list[column.limits | None])  # type: ignore[name-defined]  # made at run time
    except msgspec.ValidationError:
        for at, value in enumerate(values):
            try:
                msgspec.convert(value, column.limits | None)
            except msgspec.ValidationError as error:
                raise UnfitRecord(at, "", f"is {shown(value)}: {error}") from None
        raise


def _check_none(array: pa.Array, wrong: pa.BooleanArray, why: str) -> None:
    at = pc.index(wrong, True).as_py()
    if at >= 0:
        raise UnfitRecord(at, "", f"is {array[at].as_py()}{why}")


def _culprit(values: Sequence[Any], column: Column, kind: ScalarKind) -> UnfitRecord:
    """Return the error for the first value that Arrow refuses."""
    for at, value in enumerate(values):
        try:
            pa.array([kind.exact(value)], column.type)
        except UnfitValue as error:
            return UnfitRecord(at, "", error.problem.why)
        except OverflowError:
            return UnfitRecord(at, "", f"is {shown(value)}, which {column.type.bit_width} bits cannot hold")
        except UnicodeError:
            return UnfitRecord(at, "", f"is {shown(value)}, which is not UTF-8")
        except pa.ArrowException as error:
            return UnfitRecord(at, "", f"is {shown(value)}: {error}")
    return UnfitRecord(0, "", f"holds more than one column of {column.type} can")
