"""Columns of a file or a Delta table, for `headrace new --from`: names, Arrow types and nullability.

A schema tells the columns of Parquet, Avro and Delta. Those of CSV and JSON are told from the first rows, as the narrowest types
that keep all their values.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa

from headrace.cli.csv_guess import NUMBER, CsvGuess, csv_guess, doubt_of_moments
from headrace.cli.feed_guess import TIME, feed_of
from headrace.config import CsvOptions, JsonOptions
from headrace.errors import ConfigError, HeadraceError
from headrace.names import counted
from headrace.records.value_rules import iso_day, iso_time, nearest_float
from headrace.sources.folder.avro import AvroFiles, read_header
from headrace.sources.folder.avro_schema import AvroSchema
from headrace.sources.folder.csv import CsvFiles
from headrace.sources.folder.csv_rows import CsvRow, Dialect, csv_rows
from headrace.sources.folder.encoding import decoded
from headrace.sources.folder.format import UNREADABLE, DamagedFileError, content_of
from headrace.sources.folder.json import JsonLines
from headrace.sources.folder.parquet import ParquetColumns, ParquetFiles
from headrace.storage.delta_log import DeltaLog
from headrace.storage.delta_schema import VARIANT, DeltaColumn
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError

FIRST_ROWS: Final = 1_000
"""Rows that tell the types of files without a schema."""
NO_COLUMN: Final = pa.month_day_nano_interval()
"""Type that stands for all that no field can have."""

_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)", re.ASCII)
_FRACTION: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?", re.ASCII)
_DIGITS: Final = 18
_MOST_BEHIND: Final = 6
_INT64: Final = range(-(2**63), 2**63)
_WIDE_MARKS: Final = (b"\xff\xfe", b"\xfe\xff")


class Data(NamedTuple):
    """Columns of a file or table, and how a job's file names it."""

    columns: pa.Schema
    settings: Mapping[str, Any]
    """Source in the job's file."""
    from_rows: bool = False
    """Whether the first rows told the types."""
    doubts: Sequence[str] = ()
    """What the user has to look at."""
    key: str | None = None
    """Column by which the rows of a change feed are told apart; None for plain rows."""


def data_of(place: str) -> Data:
    """Return the columns of a file, or of a Delta table. Raises `ConfigError` where it is none, or cannot be read."""
    if "${" in place:
        msg = f"{place} has '${{', which is a reference to the environment in a job's file: rename it"
        raise ConfigError(msg)
    path = Path(place).absolute()
    if "://" in place or path.is_dir():
        return _of_table(place if "://" in place else str(path))
    if not path.is_file():
        msg = f"there is no file {path}"
        raise ConfigError(msg)
    file = Storage(str(path))
    read = next((reader for endings, reader in _READERS if path.name.lower().endswith(tuple(endings))), None)
    if read is None:
        endings = ", ".join(ending for endings, _ in _READERS for ending in endings if ending.count(".") == 1)
        msg = f"{path} has no ending of a format: expected one of {endings}, also packed as .gz, .zst or .bz2"
        raise ConfigError(msg)
    if not path.stat().st_size:
        msg = f"{path} is empty, so nothing tells its columns"
        raise ConfigError(msg)
    try:
        data = read(file)
    except UNREADABLE as error:
        msg = f"cannot read {path}: {str(error).rstrip('.')}"
        raise ConfigError(msg) from error
    if not len(data.columns):
        msg = f"{path} has no columns"
        raise ConfigError(msg)
    pattern = re.sub(r"([*?\[])", r"[\1]", path.name)
    return data._replace(settings={**data.settings, "path": str(path.parent), "files": pattern})


def _of_table(uri: str) -> Data:
    if "://" not in uri and not (Path(uri) / "_delta_log").is_dir():
        msg = f"{uri} is a folder, and no Delta table: name one of its files"
        raise ConfigError(msg)
    try:
        place = Storage(uri)
        snapshot, log = place.table().latest(), DeltaLog(uri, place.options)
        whole, columns = snapshot.add_actions(), log.state(log.versions()[-1]).columns
    except (HeadraceError, OSError, TableMissingError) as error:
        why = "its log has no commits" if isinstance(error, TableMissingError) else str(error).rstrip(".")
        msg = f"cannot read the Delta table {uri}: {why}"
        raise ConfigError(msg) from error
    filled = {name for name in snapshot.schema.names if _is_filled(whole, f"null_count.{name}")}
    settings = {"format": "delta", "path": uri, "start": "snapshot"}
    schema = pa.schema([*map(_without_variants, snapshot.schema, columns)])
    return Data(_with_filled_time(schema, lambda name: name in filled), settings)


def _without_variants(field: pa.Field, column: DeltaColumn) -> pa.Field:
    """Return a field of a table's schema with free JSON in the places of variants, which stand there as they are stored."""
    if column.type == VARIANT:
        return field.with_type(pa.json_())
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([*map(_without_variants, kind, column.parts)])
    elif pa.types.is_map(kind):
        kind = pa.map_(*map(_without_variants, (kind.key_field, kind.item_field), column.parts))
    elif column.type == "array":
        kind = pa.list_(_without_variants(kind.value_field, column.parts[0]))
    return field.with_type(kind)


def _is_filled(actions: pa.Table, name: str) -> bool:
    return name in actions.schema.names and all(count == 0 for count in actions[name].to_pylist())


def _with_filled_time(schema: pa.Schema, is_filled: Callable[[str], bool]) -> pa.Schema:
    """Return a schema in which the first column of timestamps that has no nulls allows none, so that it can be the event time."""
    for place, field in enumerate(schema):
        if pa.types.is_timestamp(field.type) and (not field.nullable or is_filled(field.name)):
            return schema.set(place, field.with_nullable(False))
    return schema


# ------------------------------------------------------------------------------------------------------ Parquet and Avro


def _of_parquet(file: Storage) -> Data:
    opened = ParquetColumns(file)

    def is_filled(name: str) -> bool:
        is_single = opened.names.count(name) == 1
        return is_single and opened.rows > 0 and opened.read([name]).column(0).null_count == 0

    return Data(_with_filled_time(opened.schema, is_filled), {"format": "parquet"})


def _of_avro(file: Storage) -> Data:
    schema = AvroSchema.of(read_header(content_of(file)).schema)
    if not isinstance(schema.root, dict) or "fields" not in schema.root:
        msg = "its rows are no records"
        raise DamagedFileError(msg)
    fields = [_avro_field(field["name"], field["type"], schema.named, ()) for field in schema.root["fields"]]
    return Data(pa.schema(fields), {"format": "avro"})


def _avro_field(name: str, kind: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> pa.Field:
    branches = kind if isinstance(kind, list) else [kind]
    others = [branch for branch in branches if branch != "null"]
    arrow = _avro_type(others[0], named, within) if len(others) == 1 else _JSON if others else pa.null()
    return pa.field(name, arrow, nullable=len(others) < len(branches))


def _avro_type(kind: Any, named: Mapping[str, Any], within: tuple[str, ...]) -> pa.DataType:
    kind = named.get(kind, kind) if isinstance(kind, str) else kind
    if isinstance(kind, str):
        return _AVRO[kind]
    name, base = kind.get("name", ""), kind["type"]
    if name and name in within:
        return NO_COLUMN  # a type that contains itself
    inner = (*within, name) if name else within
    if "fields" in kind:
        return pa.struct([_avro_field(field["name"], field["type"], named, inner) for field in kind["fields"]])
    if base == "array":
        return pa.list_(_avro_field("element", kind["items"], named, inner))
    if base == "map":
        return pa.map_(pa.string(), _avro_field("value", kind["values"], named, inner))
    if kind.get("logicalType") == "decimal":
        return pa.decimal256(kind["precision"], kind.get("scale", 0))
    logical = _LOGICAL.get(kind.get("logicalType", ""))
    return logical or (_avro_type(base, named, inner) if base not in {"fixed", "enum"} else _AVRO[base])


_JSON: Final = pa.json_()
_AVRO: Final = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_LOGICAL: Final = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "timestamp-nanos": pa.timestamp("ns", "UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
    "uuid": pa.uuid(),
    "duration": pa.duration("ms"),
}


# ---------------------------------------------------------------------------------------------------------- CSV and JSON


def _of_csv(file: Storage) -> Data:
    content = content_of(file)
    encoding, doubts = _encoding_of(content)
    text = decoded(content, encoding)
    division, doubt = _divided(text)
    delimiter, skipped, parsed = division
    options = CsvOptions(delimiter=delimiter, encoding=encoding, skip_lines=skipped)  # type: ignore[arg-type]
    schema = CsvFiles(options).schema(file)
    rows = [row.fields for row in parsed[1:] if row.problem is None]
    if schema is None or not rows:
        raise DamagedFileError(_NO_ROWS)
    texts = [[fields[place] for fields in rows if place < len(fields)] for place in range(len(schema.names))]
    present = [[text for text in column if text is not None] for column in texts]
    guess = csv_guess(dict(zip(schema.names, present, strict=True)))
    columns = [
        pa.field(name, _type_of_column(values, guess), nullable=len(values) < len(column))
        for name, values, column in zip(schema.names, present, texts, strict=True)
    ]
    odd = [
        doubt_of_moments(own.name, [_text_at(row, place) for row in parsed[1:]])
        for place, own in enumerate(columns)
        if pa.types.is_string(own.type)
    ]
    given = {"delimiter": delimiter, "skip_lines": skipped, "encoding": encoding, **guess.options}
    csv = {key: value for key, value in given.items() if value != getattr(CsvOptions(), key)}
    settings = {"format": "csv", **({"csv": csv} if csv else {})}
    return Data(
        pa.schema(columns), settings, from_rows=True, doubts=(*doubt, *doubts, *guess.doubts, *filter(None, odd))
    )


def _text_at(row: CsvRow, place: int) -> str | None:
    return row.fields[place] if row.problem is None and place < len(row.fields) else None


_NO_ROWS: Final = "it has no rows, so nothing tells the types of its columns"
_DELIMITERS: Final = ",;\t|"
_OF_WINDOWS: Final = "windows-1252"


def _encoding_of(content: bytes) -> tuple[str, list[str]]:
    """Return the encoding of a text, and what is doubtful about it."""
    if content.startswith(_WIDE_MARKS):
        return "utf-16", []
    try:
        content.decode()
    except UnicodeDecodeError as error:
        shown = content[error.start : error.end].decode(_OF_WINDOWS, "replace")
        doubt = f"it is not utf-8: its byte {error.start} is {shown!r} in {_OF_WINDOWS}, and may be another letter in iso-8859-15"
        return _OF_WINDOWS, [doubt]
    return "utf-8", []


class _Division(NamedTuple):
    """How a text is divided into a header and rows."""

    delimiter: str
    skipped: int
    """Lines before the header."""
    rows: list[CsvRow]
    """The header and the first rows."""

    @property
    def alike(self) -> int:
        """Return how many rows have as many fields as the header; none where it has only one."""
        width = len(self.rows[0].fields) if self.rows else 0
        return sum(len(row.fields) == width for row in self.rows) if width > 1 else 0


def _divided(text: str) -> tuple[_Division, list[str]]:
    """Return how a text is divided, and what is doubtful about that."""
    whole = [_Division(delimiter, 0, _rows(text, delimiter)) for delimiter in _DELIMITERS]
    even = [division for division in whole if division.rows and division.alike == len(division.rows)]
    if even:
        others = [division.delimiter for division in even[1:]]
        return even[0], [f"the delimiter may also be {' or '.join(map(repr, others))}"] if others else []
    best = max([*whole, *map(_behind_preamble, whole)], key=lambda division: (division.alike, -len(division.rows)))
    doubts = []
    if best.skipped:
        doubts.append(f"its first {counted(best.skipped, 'line')} have no columns, so they are taken for a title")
    if odd := best.alike and len(best.rows) - best.alike:
        shown = counted(len(best.rows), "row")
        doubts.append(
            f"no delimiter divides all rows alike: with {best.delimiter!r}, {odd} of {shown} differ from the header"
        )
    return best, doubts


def _behind_preamble(division: _Division) -> _Division:
    """Return the rows from the first one that has as many fields as most of them."""
    ((width, _),) = Counter(len(row.fields) for row in division.rows).most_common(1) or [(0, 0)]
    at = next((place for place, row in enumerate(division.rows) if len(row.fields) == width), 0)
    return division._replace(skipped=division.rows[at].line - 1, rows=division.rows[at:]) if at else division


def _rows(text: str, delimiter: str) -> list[CsvRow]:
    """Return the header and the first rows."""
    rows = csv_rows(text, Dialect(delimiter))
    return [row for _, row in zip(range(FIRST_ROWS + 1), rows, strict=False)]


def _type_of_column(values: Sequence[str], guess: CsvGuess) -> pa.DataType:
    """Return the type of the texts of a column of CSV."""
    if not values:
        return pa.string()
    numbers = [guess.numbers.plain(text) for text in values]
    kind = None if None in numbers else _type_of_numbers([text for text in numbers if text is not None])
    if kind is not None:
        return kind
    day, time = guess.pattern("day_pattern"), guess.pattern("time_pattern")
    if day is not None and all(day.iso_day(text) is not None for text in values):
        return pa.date32()
    if time is not None and all(time.iso_time(text) is not None for text in values):
        return pa.timestamp("us", "UTC" if "%z" in time.text else None)
    kind = _type_of_texts(values)
    is_other = (pa.types.is_date(kind) and day is not None) or (pa.types.is_timestamp(kind) and time is not None)
    return pa.string() if is_other else kind


def _type_of_numbers(texts: Sequence[str]) -> pa.DataType | None:
    """Return the type of texts in CSV that are numbers or truth values; None for others, such as 007."""
    if all(text.lower() in {"true", "false"} for text in texts):
        return pa.bool_()
    if all(map(_INTEGER.fullmatch, texts)) and all(int(text) in _INT64 for text in texts):
        return pa.int64()
    if all(map(_FRACTION.fullmatch, texts)):
        behind = max(len(text.partition(".")[2]) for text in texts)
        before = max(len(text.partition(".")[0].lstrip("-")) for text in texts)
        if behind <= _MOST_BEHIND and before <= _DIGITS - behind:
            return pa.decimal128(_DIGITS, behind)
    are_floats = all(map(NUMBER.fullmatch, texts)) and all(nearest_float(Decimal(text)) is not None for text in texts)
    return pa.float64() if are_floats else None


def _type_of_texts(texts: Sequence[str]) -> pa.DataType:
    """Return the type of texts that are days or timestamps; text for others."""
    if all(iso_day(text) is not None for text in texts):
        return pa.date32()
    times = [iso_time(text) for text in texts]
    if any(time is None or time.is_finer for time in times):
        return pa.string()
    return pa.timestamp("us", "UTC" if any(time is not None and time.has_zone for time in times) else None)


def _of_json(file: Storage) -> Data:
    contents = JsonLines(JsonOptions()).first_rows(file, FIRST_ROWS)
    every = [*map(_json_row, contents)]
    rows = [row for row in every if row is not None]
    if not rows:
        raise DamagedFileError(_NO_ROWS)
    feed = feed_of(contents)
    if feed is None:
        columns = pa.schema(_members(rows))
        odd = [_doubt_of(own, [(row or {}).get(own.name) for row in every]) for own in columns]
        return Data(columns, {"format": "json"}, from_rows=True, doubts=[*filter(None, odd)])
    schema = pa.schema([pa.field(TIME, pa.timestamp("ms", "UTC"), nullable=False), *_members(feed.rows)])
    return Data(schema, {"format": "json", **feed.settings}, from_rows=True, doubts=feed.doubts, key=feed.key)


def _json_row(content: bytes) -> dict[str, Any] | None:
    """Return a row of JSON; None for what is none."""
    with suppress(ValueError, RecursionError):
        row = json.loads(content, parse_float=Decimal)
        return row if isinstance(row, dict) else None
    return None


def _doubt_of(column: pa.Field, values: Sequence[Any]) -> str | None:
    """Return what is doubtful about a column of JSON."""
    return doubt_of_moments(column.name, values, is_iso=True) if pa.types.is_string(column.type) else None


def _members(rows: Sequence[Mapping[str, Any]]) -> list[pa.Field]:
    names = dict.fromkeys(name for row in rows for name in row)
    return [_value_field(name, [row.get(name) for row in rows]) for name in names]


def _value_field(name: str, values: Sequence[Any]) -> pa.Field:
    present = [value for value in values if value is not None]
    return pa.field(name, _type_of_values(present), nullable=len(present) < len(values))


def _type_of_values(values: Sequence[Any]) -> pa.DataType:
    """Return the type of values of JSON; that of free JSON for values of several types."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int} and all(value in _INT64 for value in values):
        return pa.int64()
    if kinds and kinds <= {int, float, Decimal} and all(_is_shown_by_float(value) for value in values):
        return pa.float64()
    if kinds == {str}:
        return _type_of_texts(values)
    if kinds == {list}:
        return pa.list_(_value_field("element", _joined(values)))
    if kinds == {dict} and (members := _members(values)):
        return pa.struct(members)
    return _JSON


def _is_shown_by_float(value: float | Decimal) -> bool:
    return isinstance(value, float) or nearest_float(value) is not None


def _joined(lists: Iterable[list[Any]]) -> list[Any]:
    return [item for items in lists for item in items]


_READERS: Final[Sequence[tuple[Sequence[str], Callable[[Storage], Data]]]] = (
    (ParquetFiles.suffixes, _of_parquet),
    (CsvFiles.suffixes, _of_csv),
    (JsonLines.suffixes, _of_json),
    (AvroFiles.suffixes, _of_avro),
)
