"""Columns of a source as columns of a record: cast where the meaning stays, with a problem for each value that does not fit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import cast

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.column_kinds.kind import ScalarKind, other_type
from headrace.records.column_kinds.nested import List, NestedKind
from headrace.records.column_types import Column
from headrace.records.defaults import default_for_null
from headrace.records.foreign_values import decoded, is_untyped, shown_value
from headrace.records.problems import Problem, Problems
from headrace.records.value_rules import (
    FIRST_DAY_DIGITS,
    FIRST_SECONDS,
    LAST_DAY_DIGITS,
    LAST_SECONDS,
    are_day_digits,
)


def fitting(
    values: pa.ChunkedArray, column: Column, default: pa.Scalar | None = None
) -> tuple[pa.ChunkedArray, Problems]:
    """Return the values in the column's type, null where there is a problem. A null becomes the `default`, if there is one.

    Fields of a struct that the source lacks are left out, if they have a default.
    """
    chunks, problems, start = [], {}, 0
    for chunk in values.chunks or [pa.nulls(0, values.type)]:
        array, chunk_problems = _fitting(chunk, column, default)
        chunks.append(array)
        problems.update({start + position: problem for position, problem in chunk_problems.items()})
        start += len(chunk)
    return pa.chunked_array(chunks), problems


def count_doubtful(times: pa.Int64Array) -> int:
    """Count numbers of milliseconds that look like seconds since 1970, or like the digits of a day."""
    ends = pc.min_max(times).as_py()
    if ends["min"] is None or ends["min"] > LAST_SECONDS or ends["max"] < FIRST_DAY_DIGITS:
        return 0
    seconds = pc.sum(_between(times, FIRST_SECONDS, LAST_SECONDS)).as_py() or 0
    digits = times.filter(_between(times, FIRST_DAY_DIGITS, LAST_DAY_DIGITS)).to_pylist()
    return int(seconds) + sum(map(are_day_digits, digits))


def _between(values: pa.Array, first: int, last: int) -> pa.BooleanArray:
    return pc.fill_null(pc.and_(pc.greater_equal(values, first), pc.less_equal(values, last)), False)


def _fitting(array: pa.Array, column: Column, default: pa.Scalar | None = None) -> tuple[pa.Array, Problems]:
    stored, array, problems = array, decoded(array), Problems()
    if is_untyped(array.type):
        array = pa.nulls(len(array), column.type)
    elif not column.kind.takes(array.type):
        array = _refuse_all(array, column, problems)
    elif isinstance(column.kind, ScalarKind):
        array = column.kind.fit(array, problems)
    elif column.record is not None:
        array = _structs(array, column, column.record, problems)
    else:
        array = _maps(array, column, problems) if len(column.parts) > 1 else _lists(array, column, problems)
    if default is not None and stored.null_count:
        array = with_value(array, pc.indices_nonzero(stored.is_null()), default)
    if not column.nullable and array.null_count:
        for position in pc.indices_nonzero(pc.is_null(array)).to_pylist():
            problems.setdefault(position, Problem("", "is null"))
    return array, problems


def with_value(array: pa.Array, positions: pa.Array, value: pa.Scalar) -> pa.Array:
    """Return an array with the value at some positions."""
    own = pa.array([value.as_py()], array.type)  # a struct may lack fields
    places = np.arange(len(array))
    places[positions.to_numpy()] = len(array)
    return pa.concat_arrays([array, own]).take(pa.array(places))


def _refuse_all(array: pa.Array, column: Column, problems: Problems) -> pa.Array:
    for position in pc.indices_nonzero(pc.is_valid(array)).to_pylist():
        problems[position] = other_type(array[position], column.kind)
    return pa.nulls(len(array), column.type)


def file_problem(values: pa.ChunkedArray, column: Column) -> str | None:
    """Return why a file with this column is refused as a whole, as for a time finer than a millisecond. None without a reason."""
    chunks = values.chunks if _has_file_problems(column) else ()
    return next((why for chunk in chunks if (why := _file_problem(chunk, column)) is not None), None)


def _has_file_problems(column: Column) -> bool:
    if isinstance(column.kind, ScalarKind):
        return column.kind.has_file_problems
    return any(map(_has_file_problems, column.parts))


def _file_problem(array: pa.Array, column: Column) -> str | None:
    kind, array = column.kind, decoded(array)
    if isinstance(kind, ScalarKind):
        return kind.file_problem(array)
    if not isinstance(kind, NestedKind) or not kind.takes(array.type):
        return None
    children = kind.children(array)
    parts = (part for part in column.parts if part.stored in children and _has_file_problems(part))
    problems = (_file_problem(children[part.stored], part) for part in parts)
    return next((why for why in problems if why is not None), None)


def _structs(array: pa.Array, column: Column, record: type[msgspec.Struct], problems: Problems) -> pa.Array:
    names = [field.name for field in array.type]
    children, names_present = [], []
    for part in column.parts:
        if part.stored in names:
            stored = array.field(names.index(part.stored))
            default = default_for_null(record, part) if stored.null_count else None
            child, child_problems = _fitting(stored, part, default)
            children.append(child)
            names_present.append(part.stored)
            _add(problems, ((at, f".{part.stored}", problem) for at, problem in child_problems.items()), array)
        elif part.required:
            missing = Problem("", "is missing")
            _add(problems, ((at, f".{part.stored}", missing) for at in range(len(array))), array)
    if not children:
        return pa.array([{} if valid else None for valid in array.is_valid().to_pylist()], pa.struct([]))
    return pa.StructArray.from_arrays(children, names_present, mask=array.is_null())


def _add(problems: Problems, parts: Iterable[tuple[int, str, Problem]], array: pa.Array) -> None:
    """Add the problems of parts to those of the values that contain them; problems below a null do not count."""
    for position, path, problem in parts:
        if position not in problems and array[position].is_valid:
            problems[position] = problem._replace(path=path + problem.path)


def _lists(array: pa.Array, column: Column, problems: Problems) -> pa.Array:
    offsets = List.offsets(array)
    (part,) = column.parts
    items, item_problems = _fitting(array.values[offsets[0] : offsets[-1]], part)
    _add(
        problems,
        ((row, f"[{at - start}]", problem) for row, start, at, problem in _rows(offsets, item_problems)),
        array,
    )
    return pa.ListArray.from_arrays(_from_zero(offsets), items, mask=array.is_null())


def _maps(array: pa.Array, column: Column, problems: Problems) -> pa.Array:
    offsets = array.offsets.to_pylist()
    entries = slice(offsets[0], offsets[-1])
    raw_keys = array.keys[entries]
    keys, values = (
        _fitting(child, part) for child, part in zip((raw_keys, array.items[entries]), column.parts, strict=True)
    )
    for _, part_problems in (keys, values):
        rows = _rows(offsets, part_problems)
        _add(problems, ((row, f"[{shown_value(raw_keys[at])}]", problem) for row, _, at, problem in rows), array)
    texts = keys[0].to_pylist()
    for row, (start, end) in enumerate(pairwise(offset - offsets[0] for offset in offsets)):
        if len({*texts[start:end]}) < end - start:
            _add(problems, [(row, "", Problem("", "has a key twice"))], array)
    present = with_value(keys[0], pc.indices_nonzero(keys[0].is_null()), _content(column.parts[0]))
    return pa.MapArray.from_arrays(_from_zero(offsets), present, values[0], mask=array.is_null())


def _content(column: Column) -> pa.Scalar:
    """Return a value for keys that have a problem: a map has no null keys."""
    return pa.scalar(cast("ScalarKind", column.kind).contentless, column.type)


def _rows(offsets: list[int], problems: Problems) -> Iterator[tuple[int, int, int, Problem]]:
    """Yield the place of each problem in a column of lists: the row, the number of the row's first item, the number of the faulty item; and the problem."""
    starts = [offset - offsets[0] for offset in offsets]
    for at, problem in sorted(problems.items()):
        row = bisect_right(starts, at) - 1
        yield row, starts[row], at, problem


def _from_zero(offsets: list[int]) -> pa.Array:
    return pa.array([offset - offsets[0] for offset in offsets], pa.int32())
