"""Columns of a source as columns of a record: cast where the meaning stays, with a fault for each value that does not fit.

Rows and values of a source as text, whatever they contain: the description of a bad row must not fail.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.column_types import Column, is_text
from headrace.records.defaults import default_for_null
from headrace.records.value_rules import (
    EXACT_DIGITS,
    EXACT_SCALE,
    FIRST_DAY_DIGITS,
    FIRST_SECONDS,
    FIRST_TIME,
    INEXACT,
    LAST_DAY_DIGITS,
    LAST_SECONDS,
    LAST_TIME,
    OUTSIDE,
    TOO_FINE,
    are_day_digits,
    iso_time,
    nearest_float,
)

_WITHOUT_PYTHON = (ValueError, OverflowError, KeyError, TypeError)
"""Errors of pyarrow for bytes that are not UTF-8, times outside the calendar, duplicate names or keys, and lists as keys."""

_SHOWN = 200
"""Number of characters of a value that an error shows."""


def raw_row(table: pa.Table, position: int) -> str:
    r"""Return a row as a JSON object. Never raises, for any content of a cell.

    A time outside the calendar becomes a text of its number and unit; a byte that is not UTF-8 is written as `\xff`.
    """
    row = {name: readable(column[position]) for name, column in zip(table.schema.names, table.columns, strict=True)}
    return msgspec.json.encode(row, enc_hook=str).decode()


def shown_value(value: pa.Scalar) -> str:
    """Return a value as an error shows it: its Python form, cut after 200 characters."""
    return f"{readable(value)!r:.{_SHOWN}}"


def readable(value: pa.Scalar) -> Any:
    """Return a value as Python has it, a map as a dict, and text for a value that Python cannot represent."""
    try:
        return value.as_py(maps_as_pydicts="strict")
    except _WITHOUT_PYTHON:
        return _piecewise(value)


def _piecewise(value: pa.Scalar) -> Any:
    kind = value.type
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind) or isinstance(kind, pa.BaseExtensionType):
        return readable(value.value)
    if pa.types.is_struct(kind):
        names = [field.name for field in kind]
        return {name: readable(value[at]) for at, name in enumerate(names)}
    if pa.types.is_map(kind) or pa.types.is_nested(kind):
        return [readable(item) for item in value.values]
    if hasattr(value, "as_buffer"):
        return value.as_buffer().to_pybytes().decode(errors="backslashreplace")
    return f"{value.value} {getattr(kind, 'unit', kind)}"


class Fault(NamedTuple):
    """Reason why a value does not fit: the path below its column, as in `[2].price`, and a text."""

    path: str
    why: str
    of_file: bool = False
    """Whether a file with such a value is refused as a whole: all its values are likely to be like this one."""


Faults = dict[int, Fault]
"""First fault of each value, by position."""


def fitting(
    values: pa.ChunkedArray, column: Column, default: pa.Scalar | None = None
) -> tuple[pa.ChunkedArray, Faults]:
    """Return the values in the column's type, null where there is a fault. A null becomes the `default`, if there is one.

    Fields of a struct that the source lacks are left out, if they have a default.
    """
    chunks, faults, start = [], {}, 0
    for chunk in values.chunks or [pa.nulls(0, values.type)]:
        array, chunk_faults = _fitting(chunk, column, default)
        chunks.append(array)
        faults.update({start + position: fault for position, fault in chunk_faults.items()})
        start += len(chunk)
    return pa.chunked_array(chunks), faults


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


def is_number(kind: pa.DataType) -> bool:
    """Return whether a type holds numbers."""
    return _family(kind) == "number"


def _fitting(array: pa.Array, column: Column, default: pa.Scalar | None = None) -> tuple[pa.Array, Faults]:
    stored = array
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    array = _as_text(array, column)
    faults: Faults = {}
    if _family(array.type) == "null":
        array = pa.nulls(len(array), column.type)
    elif not is_kindred(array.type, column):
        array = _refuse_all(array, column, faults)
    elif column.record is not None:
        array = _structs(array, column, column.record, faults)
    elif column.parts:
        array = _maps(array, column, faults) if pa.types.is_map(column.type) else _lists(array, column, faults)
    else:
        array = _scalars(array, column, faults)
    if default is not None and stored.null_count:
        array = with_value(array, pc.indices_nonzero(stored.is_null()), default)
    if not column.nullable and array.null_count:
        for position in pc.indices_nonzero(pc.is_null(array)).to_pylist():
            faults.setdefault(position, Fault("", "is null"))
    return array, faults


def with_value(array: pa.Array, positions: pa.Array, value: pa.Scalar) -> pa.Array:
    """Return an array with the value at some positions."""
    own = pa.array([value.as_py()], array.type)  # a struct may lack fields
    places = np.arange(len(array))
    places[positions.to_numpy()] = len(array)
    return pa.concat_arrays([array, own]).take(pa.array(places))


def is_kindred(kind: pa.DataType, column: Column) -> bool:
    """Return whether values of a type may be values of a column.

    Text never becomes a number, a number a truth value, or an instant an integer: that would hide mistakes upstream. A time is an
    instant, a day, a number of milliseconds or a text of ISO 8601, as in JSON and CSV.
    """
    if column.is_time and (pa.types.is_timestamp(kind) or pa.types.is_date(kind) or is_text(kind)):
        return True
    is_annotated_text = _is_annotated_text(kind) and is_text(column.type)
    return is_annotated_text or _family(kind) == _family(column.type)


def _is_annotated_text(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType | pa.JsonType)


def _as_text(array: pa.Array, column: Column) -> pa.Array:
    """Return UUIDs, and texts of JSON, as texts for a column of texts; other values as they are."""
    if not is_text(column.type) or not _is_annotated_text(array.type):
        return array
    stored = array.storage
    return pa.array(map(_uuid_text, stored.to_pylist()), pa.string()) if isinstance(array.type, pa.UuidType) else stored


def _uuid_text(value: bytes | None) -> str | None:
    if value is None:
        return None
    digits = value.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_FAMILIES: dict[str, tuple[Callable[[pa.DataType], bool], ...]] = {
    "text": (is_text,),
    "bytes": (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary),
    "number": (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    "null": (pa.types.is_null,),
    "list": (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    "map": (pa.types.is_map,),
    "struct": (pa.types.is_struct,),
}


def _family(kind: pa.DataType) -> str:
    """Return the name of the family of types between which a cast keeps the meaning; any other type is its own family."""
    return next((name for name, tests in _FAMILIES.items() if any(test(kind) for test in tests)), str(kind))


def _refuse_all(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    for position in pc.indices_nonzero(pc.is_valid(array)).to_pylist():
        faults[position] = _other_type(array[position], column)
    return pa.nulls(len(array), column.type)


def _other_type(value: pa.Scalar, column: Column) -> Fault:
    return Fault("", f"is {shown_value(value)}, which is not {'a timestamp' if column.is_time else column.type}")


def _refuse(array: pa.Array, wrong: pa.Array, faults: Faults, why: str) -> pa.Array:
    """Return the array with nulls where it is `wrong`, and add the faults: "is", the value, and `why`."""
    positions = pc.indices_nonzero(wrong).to_pylist()
    if not positions:
        return array
    for position in positions:
        faults.setdefault(position, Fault("", f"is {shown_value(array[position])}{why}"))
    return pc.if_else(pc.fill_null(wrong, False), pa.scalar(None, array.type), array)


def _scalars(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    if column.is_time and is_text(array.type):
        array = _written_times(_utf8(array, faults), column, faults)
    if pa.types.is_date(array.type):
        array = array.cast(_INSTANTS_OF_DAYS[array.type])
    if pa.types.is_timestamp(array.type):
        return _milliseconds(array, column, faults)
    array = _floats(array, faults) if pa.types.is_floating(column.type) else _cast(array, column, faults)
    if column.is_time:
        wrong = pc.or_(pc.less(array, FIRST_TIME), pc.greater(array, LAST_TIME))
        return _refuse(array, wrong, faults, f" ms since 1970, {OUTSIDE}")
    if is_text(column.type):
        array = _utf8(array, faults)
    if column.allowed:
        wrong = pc.and_(pc.is_valid(array), pc.invert(pc.is_in(array, pa.array(column.allowed, column.type))))
        return _refuse(array, wrong, faults, f", not one of {', '.join(column.allowed)}")
    if pa.types.is_floating(column.type):
        # JSON writes NaN as null; it would write infinity as null, too.
        array = _refuse(array, pc.is_inf(array), faults, ", which JSON cannot hold")
        return pc.if_else(pc.is_nan(array), pa.scalar(None, array.type), array)
    return array


_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


_MAY_BE_FINER = re.compile(r"[.,]\d{4}")
"""Part of each text of a time that is finer than a millisecond. Looking for it costs a seventh of reading the text (timeit)."""
_INSTANTS_OF_DAYS = {pa.date32(): pa.timestamp("s"), pa.date64(): pa.timestamp("ms")}


def _written_times(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    """Return texts of ISO 8601 in milliseconds; those between milliseconds rounded down where the column says so."""
    times = [None if text is None else iso_time(text) for text in array.to_pylist()]
    is_no_time = [time is None for time in times]
    for position in pc.indices_nonzero(pc.and_(array.is_valid(), pa.array(is_no_time, pa.bool_()))).to_pylist():
        faults[position] = _other_type(array[position], column)
    is_finer = pa.array([time is not None and time.is_finer and not column.floors for time in times], pa.bool_())
    _refuse(array, is_finer, faults, TOO_FINE)
    return pa.array([None if time is None else time.milliseconds for time in times], pa.int64())


def _milliseconds(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    """Return timestamps in milliseconds, rounded down where the column says so; values between milliseconds are refused elsewhere."""
    array = _refuse(array, _outside(array), faults, f", {OUTSIDE}")
    whole = _whole_milliseconds(array)
    if whole is not None:
        return whole
    if not column.floors:
        array = _refuse(array, _between_milliseconds(array), faults, TOO_FINE)
    numbers, step = array.cast(pa.int64()), _PER_SECOND[array.type.unit] // 1_000
    cut = pc.divide(numbers, step)
    return pc.if_else(pc.less(numbers, pc.multiply(cut, step)), pc.subtract(cut, 1), cut)


def _whole_milliseconds(array: pa.Array) -> pa.Array | None:
    """Return timestamps in milliseconds; None if some are between milliseconds."""
    try:
        return array.cast(pa.timestamp("ms", tz=array.type.tz)).cast(pa.int64())
    except pa.ArrowInvalid:
        return None


def _outside(array: pa.Array) -> pa.BooleanArray:
    """Return which of these timestamps are outside the years that records have."""
    if array.type.unit == "ns":  # 64 bits of nanoseconds end within those years
        return pa.repeat(False, len(array))
    numbers, per_second = array.cast(pa.int64()), _PER_SECOND[array.type.unit]
    first, end = FIRST_TIME // 1_000 * per_second, (LAST_TIME + 1) // 1_000 * per_second
    return pc.or_(pc.less(numbers, first), pc.greater_equal(numbers, end))


def _between_milliseconds(array: pa.Array) -> pa.BooleanArray:
    """Return which of these timestamps are finer than a millisecond."""
    numbers, step = array.cast(pa.int64()), max(_PER_SECOND[array.type.unit] // 1_000, 1)
    is_finer = pc.not_equal(pc.multiply(pc.divide(numbers, step), step), numbers)
    return pc.and_(is_finer, pc.invert(_outside(array)))


def too_fine(values: pa.ChunkedArray, column: Column) -> str | None:
    """Return why a file with this column is refused as a whole: a time finer than a millisecond. None without one."""
    for chunk in values.chunks if _holds_times(column) else ():
        if (value := _finer_time(chunk, column)) is not None:
            return f"holds {shown_value(value)}{TOO_FINE}"
    return None


def _holds_times(column: Column) -> bool:
    return (column.is_time and not column.floors) or any(_holds_times(part) for part in column.parts)


def _finer_time(array: pa.Array, column: Column) -> pa.Scalar | None:
    """Return the first time of a column, or of a part of it, that is finer than a millisecond."""
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if column.is_time and is_text(array.type):
        texts = _utf8(array, {}).to_pylist() if not column.floors else []
        times = [iso_time(text) if text is not None and _MAY_BE_FINER.search(text) else None for text in texts]
        return next((array[at] for at, time in enumerate(times) if time is not None and time.is_finer), None)
    if column.is_time and pa.types.is_timestamp(array.type):
        if column.floors or _whole_milliseconds(array) is not None:
            return None
        at = pc.index(_between_milliseconds(array), True).as_py()
        return None if at < 0 else array[at]
    finer = (_finer_time(child, part) for child, part in _parts(array, column) if _holds_times(part))
    return next((value for value in finer if value is not None), None)


def _parts(array: pa.Array, column: Column) -> Iterator[tuple[pa.Array, Column]]:
    """Yield the values of each part of a column that an array holds, without those below nulls."""
    if not is_kindred(array.type, column) or not column.parts:
        return
    if pa.types.is_map(array.type):
        entries = slice(array.offsets[0].as_py(), array.offsets[-1].as_py())
        yield from zip((array.keys[entries], array.items[entries]), column.parts, strict=True)
        return
    if column.record is None:
        yield array.flatten(), column.parts[0]
        return
    children = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    yield from ((children[part.name], part) for part in column.parts if part.name in children)


def _utf8(array: pa.Array, faults: Faults) -> pa.Array:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        wrong = pa.array([_is_broken(value) for value in array], pa.bool_())
        return _refuse(array, wrong, faults, ", which is not UTF-8")
    return array


def _is_broken(text: pa.StringScalar) -> bool:
    try:
        text.as_py()
    except UnicodeDecodeError:
        return True
    return False


def _cast(array: pa.Array, column: Column, faults: Faults, start: int = 0) -> pa.Array:
    """Return the array in the column's type. Arrow refuses whole arrays, so halves are tried to find the refused values."""
    try:
        return array.cast(column.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        if len(array) == 1:
            faults[start] = _other_type(array[0], column)
            return pa.nulls(1, column.type)
    middle = len(array) // 2
    halves = (array.slice(0, middle), start), (array.slice(middle), start + middle)
    return pa.concat_arrays([_cast(half, column, faults, at) for half, at in halves])


def _floats(array: pa.Array, faults: Faults) -> pa.Array:
    """Return numbers as floats. A number whose digits no float shows is refused."""
    if pa.types.is_decimal(array.type):
        floats = _short_decimals(array)
        return _nearest_floats(array, faults) if floats is None else floats
    try:
        return array.cast(pa.float64())
    except pa.ArrowInvalid:  # Arrow refuses all integers from 2**53 on
        return _nearest_floats(array, faults)


def _short_decimals(array: pa.Array) -> pa.Array | None:
    """Return decimals as floats if none has more digits than any float shows; else None.

    The quotient of two integers that are floats is correctly rounded; Arrow's own cast of decimals is not.
    """
    scale = array.type.scale
    if array.type.bit_width != _DECIMAL_BITS or not 0 <= scale <= EXACT_SCALE:
        return None
    unscaled = pa.Array.from_buffers(pa.decimal128(38, 0), len(array), array.buffers(), offset=array.offset)
    try:
        numbers = unscaled.cast(pa.int64())
    except pa.ArrowInvalid:
        return None
    ends = pc.min_max(numbers).as_py()
    longest = max(abs(ends["min"] or 0), abs(ends["max"] or 0))
    return pc.divide(numbers.cast(pa.float64()), 10.0**scale) if longest < 10**EXACT_DIGITS else None


_DECIMAL_BITS = 128


def _nearest_floats(array: pa.Array, faults: Faults) -> pa.Array:
    values = array.to_pylist()
    floats = [None if value is None else nearest_float(value) for value in values]
    for position, (value, number) in enumerate(zip(values, floats, strict=True)):
        if number is None and value is not None:
            faults.setdefault(position, Fault("", f"is {value}{INEXACT}"))
    return pa.array(floats, pa.float64())


def _structs(array: pa.Array, column: Column, record: type[msgspec.Struct], faults: Faults) -> pa.Array:
    names = [field.name for field in array.type]
    children, names_present = [], []
    for part in column.parts:
        if part.name in names:
            stored = array.field(names.index(part.name))
            default = default_for_null(record, part) if stored.null_count else None
            child, child_faults = _fitting(stored, part, default)
            children.append(child)
            names_present.append(part.name)
            _add(faults, ((at, f".{part.name}", fault) for at, fault in child_faults.items()), array)
        elif part.required:
            missing = Fault("", "is missing")
            _add(faults, ((at, f".{part.name}", missing) for at in range(len(array))), array)
    if not children:
        return pa.array([{} if valid else None for valid in array.is_valid().to_pylist()], pa.struct([]))
    return pa.StructArray.from_arrays(children, names_present, mask=array.is_null())


def _add(faults: Faults, parts: Iterable[tuple[int, str, Fault]], array: pa.Array) -> None:
    """Add the faults of parts to those of the values that contain them; faults below a null do not count."""
    for position, path, fault in parts:
        if position not in faults and array[position].is_valid:
            faults[position] = fault._replace(path=path + fault.path)


def _lists(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    offsets = _offsets(array)
    (part,) = column.parts
    items, item_faults = _fitting(array.values[offsets[0] : offsets[-1]], part)
    _add(faults, ((row, f"[{at - start}]", fault) for row, start, at, fault in _rows(offsets, item_faults)), array)
    return pa.ListArray.from_arrays(_from_zero(offsets), items, mask=array.is_null())


def _offsets(array: pa.Array) -> list[int]:
    """Return where the items of each list begin among the values, and where the last list ends.

    A cast to one type of list would give the offsets, too. But pyarrow 26 truncates the values of a list of nulls when
    it casts it to a list of nulls: to as many as there are lists.
    """
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        return [(array.offset + row) * size for row in range(len(array) + 1)]
    offsets: list[int] = array.offsets.to_pylist()
    return offsets


def _maps(array: pa.Array, column: Column, faults: Faults) -> pa.Array:
    offsets = array.offsets.to_pylist()
    entries = slice(offsets[0], offsets[-1])
    raw_keys = array.keys[entries]
    keys, values = (
        _fitting(child, part) for child, part in zip((raw_keys, array.items[entries]), column.parts, strict=True)
    )
    for _, part_faults in (keys, values):
        rows = _rows(offsets, part_faults)
        _add(faults, ((row, f"[{shown_value(raw_keys[at])}]", fault) for row, _, at, fault in rows), array)
    texts = keys[0].to_pylist()
    for row, (start, end) in enumerate(pairwise(offset - offsets[0] for offset in offsets)):
        if len({*texts[start:end]}) < end - start:
            _add(faults, [(row, "", Fault("", "has a key twice"))], array)
    return pa.MapArray.from_arrays(_from_zero(offsets), pc.fill_null(keys[0], ""), values[0], mask=array.is_null())


def _rows(offsets: list[int], faults: Faults) -> Iterator[tuple[int, int, int, Fault]]:
    """Yield the place of each fault in a column of lists: the row, the number of the row's first item, the number of the faulty item; and the fault."""
    starts = [offset - offsets[0] for offset in offsets]
    for at, fault in sorted(faults.items()):
        row = bisect_right(starts, at) - 1
        yield row, starts[row], at, fault


def _from_zero(offsets: list[int]) -> pa.Array:
    return pa.array([offset - offsets[0] for offset in offsets], pa.int32())
