"""Tables of all types that a record can declare, written as files of any format by writers that are not ours.

`expected` says which value a field has for a value that an independent reader returns. It is a second statement of the
rules in docs/sources.md, and uses no code of the engine.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal
from enum import Enum
from fractions import Fraction
from typing import Annotated, Any, Literal, NamedTuple

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from headrace import Digits, Timestamp
from headrace.records.column_types import Column, columns_of

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)


class Size(Enum):
    """Enum of a field."""

    SMALL = "small"
    LARGE = "large"


class Refused(Exception):  # noqa: N818 - a verdict
    """A value does not fit its field."""


class Drawn(NamedTuple):
    """A record type, its columns, and rows as plain Python values by stored names: times are datetimes, enums texts, structs dicts."""

    record: type[msgspec.Struct]
    columns: Sequence[Column]
    rows: list[dict[str, Any]]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=6)
TIMESTAMPS = st.datetimes(timezones=st.just(UTC)).map(
    lambda at: at.replace(microsecond=at.microsecond // 1_000 * 1_000)
)
SCALARS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers(-(2**63), 2**63 - 1)),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, TEXTS),
    (bool, st.booleans()),
    (bytes, st.binary(max_size=4)),
    (Timestamp, TIMESTAMPS),
    (Literal["red", "blue"], st.sampled_from(["red", "blue"])),
    (Size, st.sampled_from(["small", "large"])),
    (date, st.dates()),
    (Annotated[Decimal, Digits(12, 2)], st.integers(-(10**12) + 1, 10**12 - 1).map(lambda cents: Decimal(cents) / 100)),
    (Annotated[Decimal, Digits(38, 0)], st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal)),
]
NAMES = ["amount", "unit_price", "Größe", "x1", "note", "US Gross", "$type", "1", "a.b", "class", "it's"]
PARTS = ["a", "b", "c", "a b", "a.c", "7", "None"]


def _fields(prefix: str, kinds: dict[str, Any]) -> list[Any]:
    """Return fields that are stored under these names."""
    return [(f"{prefix}{place}", kind, msgspec.field(name=name)) for place, (name, kind) in enumerate(kinds.items())]


@st.composite
def _types(draw: Any, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a type of a field, and the strategy of its values."""
    form = draw(st.sampled_from(["scalar", "scalar", "list", "dict", "struct"])) if depth else "scalar"
    if form == "scalar":
        kind, values = draw(st.sampled_from(SCALARS))
    elif form == "struct":
        parts = {
            name: draw(_types(depth - 1))
            for name in draw(st.lists(st.sampled_from(PARTS), min_size=1, max_size=3, unique=True))
        }
        kind = msgspec.defstruct("Part", _fields("p", {name: part for name, (part, _) in parts.items()}), frozen=True)
        values = st.fixed_dictionaries({name: values for name, (_, values) in parts.items()})
    else:
        item, items = draw(_types(depth - 1))
        kind = list[item] if form == "list" else dict[str, item]
        values = st.lists(items, max_size=2) if form == "list" else st.dictionaries(TEXTS, items, max_size=2)
    return (kind | None, st.none() | values) if draw(st.booleans()) else (kind, values)


@st.composite
def tables(draw: Any, max_rows: int = 4) -> Drawn:
    """Draw a table. Its first field is the event time."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    kinds = {name: draw(_types()) for name in names}
    record = msgspec.defstruct(
        "Row", [("at", Timestamp), *_fields("f", {name: kind for name, (kind, _) in kinds.items()})], frozen=True
    )
    rows = st.fixed_dictionaries({"at": TIMESTAMPS, **{name: values for name, (_, values) in kinds.items()}})
    return Drawn(record, columns_of(record), draw(st.lists(rows, max_size=max_rows)))


# -------------------------------------------------------------------------------------------------------------- writers


def _arrow(value: Any, column: Column) -> Any:
    """Return a value as `pa.array` takes it: a map is a list of pairs."""
    if value is None:
        return None
    if column.record is not None:
        return {part.stored: _arrow(value[part.stored], part) for part in column.parts}
    if len(column.parts) == 2:
        return [(key, _arrow(item, column.parts[1])) for key, item in value.items()]
    return [_arrow(item, column.parts[0]) for item in value] if column.parts else value


def arrow_table(drawn: Drawn) -> pa.Table:
    """Return the rows as an Arrow table, with times in microseconds."""
    arrays = [
        pa.array([_arrow(row[column.stored], column) for row in drawn.rows], column.sink_type)
        for column in drawn.columns
    ]
    return pa.Table.from_arrays(arrays, names=[column.stored for column in drawn.columns])


@st.composite
def parquet_files(draw: Any, drawn: Drawn) -> bytes:
    """Write the rows with any encoding, page version, compression and kind of times, and with empty row groups."""
    table, file = arrow_table(drawn), io.BytesIO()
    options = {
        "use_dictionary": draw(st.booleans()),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "compression": draw(st.sampled_from(["none", "snappy", "zstd", "gzip"])),
        "use_deprecated_int96_timestamps": draw(st.booleans()),
        "write_statistics": draw(st.booleans()),
    }
    if draw(st.booleans()):
        place = draw(st.integers(0, table.num_columns - 1))
        name, kind = table.schema.names[place], table.schema.types[place]
        if pa.types.is_string(kind):
            table = table.set_column(place, name, table.column(place).dictionary_encode())
    with pq.ParquetWriter(file, table.schema, **options) as writer:
        for start in range(0, table.num_rows, 2):
            writer.write_table(table.slice(start, 2))
            if draw(st.booleans()):
                writer.write_table(table.slice(0, 0))
    return file.getvalue()


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    return value.isoformat() if isinstance(value, date) else value


def _json_text(value: Any) -> str:
    return json.dumps(value, default=_json_value, ensure_ascii=False)


def json_lines(rows: Sequence[dict[str, Any]]) -> bytes:
    """Write rows as JSON lines, by Python's `json`."""
    return "\n".join(map(_json_text, rows)).encode()


def csv_file(rows: Sequence[dict[str, Any]], names: Sequence[str]) -> bytes:
    """Write rows as CSV: texts in quotes, nulls empty, and lists, maps and structs as JSON."""

    def cell(value: Any) -> str:
        if value is None or isinstance(value, bool | int | float):
            return "" if value is None else _json_text(value)
        if isinstance(value, Decimal):
            return str(value)
        text = value if isinstance(value, str) else _json_value(value)
        text = text if isinstance(text, str) else _json_text(text)
        return '"' + text.replace('"', '""') + '"'

    lines = [
        ",".join(f'"{name}"' for name in names),
        *(",".join(cell(row.get(name)) for name in names) for row in rows),
    ]
    return "\r\n".join(lines).encode()


def _avro_type(column: Column, path: str) -> Any:
    kinds = {
        pa.int64(): "long",
        pa.float64(): "double",
        pa.string(): "string",
        pa.bool_(): "boolean",
        pa.binary(): "bytes",
    }
    kind: Any
    if column.record is not None:
        fields = [
            {"name": part.stored, "type": _avro_type(part, f"{path}_{number}")}
            for number, part in enumerate(column.parts)
        ]
        kind = {"type": "record", "name": path, "fields": fields}
    elif len(column.parts) == 2:
        kind = {"type": "map", "values": _avro_type(column.parts[1], f"{path}_m")}
    elif column.parts:
        kind = {"type": "array", "items": _avro_type(column.parts[0], f"{path}_l")}
    elif column.is_time:
        kind = {"type": "long", "logicalType": "timestamp-micros"}
    elif pa.types.is_date(column.type):
        kind = {"type": "int", "logicalType": "date"}
    elif pa.types.is_decimal(column.type):
        digits = {"precision": column.type.precision, "scale": column.type.scale}
        kind = {"type": "bytes", "logicalType": "decimal", **digits}
    else:
        kind = kinds[column.type]
    return ["null", kind] if column.nullable else kind


def has_avro_names(columns: Sequence[Column]) -> bool:
    """Return whether Avro allows the names of all columns and of their parts."""
    return all(
        (column.stored.isascii() and column.stored.isidentifier()) and has_avro_names(column.parts)
        for column in columns
    )


def avro_file(drawn: Drawn) -> bytes:
    """Write the rows as an Avro file, by fastavro."""
    fields = [
        {"name": column.stored, "type": _avro_type(column, f"T{place}")} for place, column in enumerate(drawn.columns)
    ]
    file = io.BytesIO()
    fastavro.writer(file, {"type": "record", "name": "Root", "fields": fields}, drawn.rows)
    return file.getvalue()


# -------------------------------------------------------------------------------------------------------------- readers


def read_parquet(content: bytes) -> list[dict[str, Any]]:
    """Read a Parquet file by pyarrow."""
    file = pq.ParquetFile(io.BytesIO(content), coerce_int96_timestamp_unit="us")
    return file.read().to_pylist(maps_as_pydicts="strict")


def read_json(content: bytes) -> list[Any]:
    """Read JSON lines by Python's `json`. A line that is no JSON is an error as the row."""

    def row(line: bytes) -> Any:
        try:
            return json.loads(line.decode(), parse_float=Decimal)
        except (ValueError, RecursionError) as error:
            return error

    return [row(line) for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip(b" \t\r")]


def read_csv(content: bytes) -> list[dict[str, str]]:
    """Read CSV by Python's `csv`; blank lines are no rows."""
    reader = csv.reader(io.StringIO(content.decode().removeprefix("\ufeff"), newline=""), strict=True)
    names, *rows = [row for row in reader if row]
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_avro(content: bytes) -> list[dict[str, Any]]:
    """Read an Avro file by fastavro."""
    return list(fastavro.reader(io.BytesIO(content)))


# --------------------------------------------------------------------------------------------------------------- oracle


def expected(row: Any, columns: Sequence[Column], *, is_text: bool = False, is_csv: bool = False) -> dict[str, Any]:
    """Return the values of a row's fields. Raises `Refused` with the name of the first field that does not fit.

    In files of text, times and bytes are texts; in CSV all values are.
    """
    if not isinstance(row, dict):
        raise Refused("")
    values = {}
    for column in columns:
        try:
            raw = row.get(column.stored)
            raw = _parsed(raw, column) if is_csv else raw
            values[column.name] = _value(raw, column, is_text=is_text or is_csv)
        except Refused:
            raise Refused(column.stored) from None
    return values


def _parsed(text: str | None, column: Column) -> Any:
    """Return the value that a text of CSV stands for."""
    if text is None or pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return text
    if not text:
        return None
    if column.parts:
        try:
            return json.loads(text, parse_float=Decimal)
        except (ValueError, RecursionError):
            raise Refused(column.name) from None
    if (
        column.is_time
        or pa.types.is_integer(column.type)
        or pa.types.is_floating(column.type)
        or pa.types.is_decimal(column.type)
    ):
        try:
            return Decimal(text) if text.isascii() and "_" not in text and not text.strip("0123456789+-.eE") else text
        except ArithmeticError:
            return text
    return {"true": True, "false": False}.get(text.lower(), text) if pa.types.is_boolean(column.type) else text


def _value(raw: Any, column: Column, *, is_text: bool) -> Any:
    if raw is None or (isinstance(raw, float) and math.isnan(raw) and pa.types.is_floating(column.type)):
        if not column.nullable:
            raise Refused(column.name)
        return None
    if column.record is not None:
        return expected(raw, column.parts, is_text=is_text)
    if column.parts:
        wanted = list if len(column.parts) == 1 else dict
        if not isinstance(raw, wanted):
            raise Refused(column.name)
        if isinstance(raw, dict):
            return {key: _value(item, column.parts[1], is_text=is_text) for key, item in raw.items()}
        return [_value(item, column.parts[0], is_text=is_text) for item in raw]
    value = _scalar(raw, column, is_text=is_text)
    if column.allowed and value not in column.allowed:
        raise Refused(column.name)
    return value


def _scalar(raw: Any, column: Column, *, is_text: bool) -> Any:
    if column.is_time:
        return _time(raw)
    if pa.types.is_decimal(column.type):
        return _decimal(raw, column.type, is_text=is_text)
    return _binary(raw, is_text=is_text) if pa.types.is_binary(column.type) else _OF_TYPE[column.type](raw)


def _time(raw: Any) -> int:
    if isinstance(raw, str):
        text = raw.strip()
        if text != raw or not raw[:4].isdecimal() or raw[4:5] != "-":
            raise Refused(raw)
        try:
            raw = datetime.fromisoformat(text.upper().removesuffix(" UTC"))
        except ValueError:
            raise Refused(raw) from None
    if not isinstance(raw, datetime):
        return _integer(raw)
    whole, rest = divmod((raw if raw.tzinfo else raw.replace(tzinfo=UTC)) - EPOCH, MILLISECOND)
    if rest:
        raise Refused(str(raw))
    return whole


def _integer(raw: Any) -> int:
    if isinstance(raw, bool) or not isinstance(raw, int | float | Decimal):
        raise Refused(str(raw)[:99])
    if not isinstance(raw, int) and (not math.isfinite(raw) or raw != int(raw)):
        raise Refused(str(raw)[:99])
    if not -(2**63) <= raw < 2**63:
        raise Refused(str(raw)[:99])
    return int(raw)


def _float(raw: Any) -> float:
    if isinstance(raw, float) and math.isfinite(raw):
        return raw
    if isinstance(raw, bool | float) or not isinstance(raw, int | Decimal):
        raise Refused(str(raw)[:99])
    try:
        number, exact = float(raw), Decimal(raw)
    except OverflowError:
        raise Refused(str(raw)[:99]) from None
    places = max(0, -int(exact.as_tuple().exponent))
    if not math.isfinite(number) or exact not in {Decimal(repr(number)), Decimal(f"{number:.{places}f}")}:
        raise Refused(str(raw)[:99])
    return number


def _decimal(raw: Any, kind: pa.DataType, *, is_text: bool) -> Decimal:
    """A decimal of a file of text may be a text, too. No digit is rounded."""
    if (
        isinstance(raw, str)
        and is_text
        and raw.isascii()
        and not raw.strip("0123456789.-eE")
        and raw[:1] not in {"e", "E"}
    ):
        try:
            raw = Decimal(raw)
        except ArithmeticError:
            raise Refused(raw) from None
    if isinstance(raw, bool | str) or not isinstance(raw, int | float | Decimal):
        raise Refused(str(raw)[:99])
    if not isinstance(raw, int) and not math.isfinite(raw):  # which would make a float of an integer, of any size
        raise Refused(str(raw)[:99])
    unscaled = Fraction(repr(raw) if isinstance(raw, float) else raw) * 10**kind.scale
    if unscaled.denominator != 1 or abs(unscaled) >= 10**kind.precision:
        raise Refused(str(raw)[:99])
    return Decimal(unscaled.numerator).scaleb(-kind.scale, Context(prec=99))


def _date(raw: Any) -> date:
    if isinstance(raw, str) and len(raw) == 10:
        try:
            return date.fromisoformat(raw)
        except ValueError:
            raise Refused(raw) from None
    if isinstance(raw, datetime) or not isinstance(raw, date):
        raise Refused(str(raw)[:99])
    return raw


def _text(raw: Any) -> str:
    if not isinstance(raw, str) or any("\ud800" <= letter <= "\udfff" for letter in raw):
        raise Refused(str(raw)[:99])
    return raw


def _truth(raw: Any) -> bool:
    if not isinstance(raw, bool):
        raise Refused(str(raw)[:99])
    return raw


def _binary(raw: Any, *, is_text: bool) -> bytes:
    if not isinstance(raw, str if is_text else bytes):
        raise Refused(str(raw)[:99])
    try:
        return base64.b64decode(raw, validate=True) if is_text else raw
    except ValueError:
        raise Refused(str(raw)[:99]) from None


_OF_TYPE: dict[pa.DataType, Callable[[Any], Any]] = {
    pa.int64(): _integer,
    pa.float64(): _float,
    pa.string(): _text,
    pa.bool_(): _truth,
    pa.date32(): _date,
}


def plain(value: Any) -> Any:
    """Return a record, or a value of one, as `expected` does."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
