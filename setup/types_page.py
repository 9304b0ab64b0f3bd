"""Write docs/types.md: which type of a field takes what from each format, and what it is in sinks and in state. Asks the code that decides."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple
from uuid import UUID

import generated_page  # type: ignore[import-not-found]  # a script's neighbour
import msgspec
import pyarrow as pa
from deltalake import Schema

import headrace as hr
from headrace.records.column_types import Column, columns_of
from headrace.records.plain_values import to_column
from headrace.records.source_values import fitting
from headrace.records.value_rules import Instant, parsed_json
from headrace.state.codec import encode

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "types.md"

HEAD: Final = """# Types of fields

Made from the code that decides by `make reference`; do not edit.

Each row is a type that a field of a record may have, each optionally `| None`. Values that a format has in another form are bad rows: nothing is
guessed, rounded, wrapped or cut. [Types of values](sources.md#types-of-values) says how values are read, and
[names of columns](sources.md#names-of-columns) how columns of any name are. The names are those of `headrace`, `datetime`, `decimal` and `uuid`.

"""


class Level(enum.Enum):
    """An enum of numbers."""

    LOW = 1
    HIGH = 2


class Part(hr.Struct):
    """A nested record."""

    a: int


class Declared(NamedTuple):
    """A type of a field as it is written, as Python has it, and a value of it."""

    text: str
    annotation: Any
    value: Any


NOON: Final = datetime(2026, 3, 1, 6, 7, 8, 900_000, UTC)
DECLARED: Final = (
    Declared("int", int, 7),
    Declared("Int8, Int16, Int32, Int64", hr.Int32, 7),
    Declared("float", float, 1.5),
    Declared("Float32", hr.Float32, 1.5),
    Declared("Annotated[Decimal, Digits(12, 2)]", Annotated[Decimal, hr.Digits(12, 2)], Decimal("1.50")),
    Declared("bool", bool, True),
    Declared("str", str, "text"),
    Declared("bytes", bytes, b"a"),
    Declared("Timestamp, FlooredTimestamp", hr.Timestamp, 1_772_345_228_900),
    Declared("TimestampMicros", hr.TimestampMicros, 1_772_345_228_900_000),
    Declared("datetime", datetime, NOON),
    Declared("NaiveDatetime", hr.NaiveDatetime, NOON.replace(tzinfo=None)),
    Declared("date", date, NOON.date()),
    Declared("time", time, time(6, 7, 8)),
    Declared("timedelta", timedelta, timedelta(hours=1)),
    Declared("UUID", UUID, UUID("123e4567-e89b-12d3-a456-426614174000")),
    Declared('Literal["a", "some text"], Enum of texts', Literal["a", "some text"], "a"),
    Declared("Literal[1, 7], Enum of whole numbers", Literal[1, 7], 7),
    Declared("Json", hr.Json, {"a": [1]}),
    Declared("list[int], tuple[int, ...]", list[int], [1]),
    Declared("dict[str, int]", dict[str, int], {"a": 1}),
    Declared("dict[date, int]", dict[date, int], {NOON.date(): 1}),
    Declared("a Struct", Part, Part(1)),
)

ARROW: Final[Mapping[str, pa.DataType]] = {
    "integer": pa.int64(),
    "float": pa.float64(),
    "decimal": pa.decimal128(12, 2),
    "boolean": pa.bool_(),
    "text": pa.string(),
    "binary": pa.binary(),
    "16 bytes": pa.binary(16),
    "timestamp with a zone": pa.timestamp("us", "UTC"),
    "timestamp without a zone": pa.timestamp("us"),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "duration": pa.duration("us"),
    "UUID": pa.uuid(),
    "JSON": pa.json_(),
    "list": pa.list_(pa.int64()),
    "map": pa.map_(pa.string(), pa.int64()),
    "struct": pa.struct({"a": pa.int64()}),
}
TEXTS: Final = (
    "2026-03-01",
    "2026-03-01T06:07:08Z",
    "2026-03-01T06:07:08",
    "06:07:08",
    "PT1H",
    str(UUID(int=5)),
    "YQ==",
)
JSON: Final = (
    "7",
    "1.5",
    "true",
    '"some text"',
    '"1.5"',
    *(f'"{text}"' for text in TEXTS),
    "[1]",
    '{"a": 1}',
    '{"2026-03-01": 1}',
)
CSV: Final = ("7", "1.5", "true", "some text", *TEXTS, "[1]", '{"a": 1}', '{"2026-03-01": 1}')
AVRO: Final[Mapping[str, Any]] = {
    "int, long": 7,
    "float, double": 1.5,
    "decimal": Decimal("1.5"),
    "boolean": True,
    "string, enum": "some text",
    "uuid": str(UUID(int=5)),
    "bytes": b"a",
    "timestamp-*": Instant(1_772_345_228_000, 1_000),
    "local-timestamp-*": Instant(1_772_345_228_000, 1_000, is_local=True),
    "date": NOON.date(),
    "time-*": time(6, 7, 8),
    "duration": timedelta(hours=1),
    "array": [1],
    "map, record": {"a": 1},
}


def _column(annotation: Any) -> Column:
    return columns_of(msgspec.defstruct("Row", [("value", annotation)]))[0]


def _is_read(column: Column, value: Any) -> bool:
    """Return whether a plain value of a file is a value of a column."""
    array, problems = to_column([value], column, None)
    return not problems and not fitting(pa.chunked_array([array]), column)[1]


def _listed(column: Column, samples: Iterable[str], value_of: Callable[[str], Any], any_text: str) -> str:
    read = [sample for sample in samples if _is_read(column, value_of(sample))]
    if any_text in read and not column.allowed:
        read = [sample for sample in read if (sample[:1] != '"' and sample not in TEXTS) or sample == any_text]
    return ", ".join(f"`{sample}`" for sample in read)


def _csv_value(column: Column) -> Callable[[str], Any]:
    parse = column.kind.parse
    return (lambda text: text) if parse is None else parse


def _delta_type(kind: Any) -> str:
    """Return a type of Delta's log in short."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{_delta_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_delta_type(kind['keyType'])}, {_delta_type(kind['valueType'])}>"
    parts = (f"{part['name']}: {_delta_type(part['type'])}" for part in kind["fields"])
    return f"struct<{', '.join(parts)}>"


def _row(declared: Declared) -> str:
    column = _column(declared.annotation)
    schema = msgspec.json.decode(Schema.from_arrow(pa.schema([("value", column.sink_type)])).to_json())
    cells = [
        f"`{declared.text}`",
        ", ".join(name for name, kind in ARROW.items() if column.kind.takes(kind)),
        _listed(column, JSON, parsed_json, '"some text"'),
        _listed(column, CSV, _csv_value(column), "some text"),
        ", ".join(name for name, value in AVRO.items() if _is_read(column, value)),
        f"`{_delta_type(schema['fields'][0]['type'])}`",
        f"`{encode(declared.value).decode()}`",
    ]
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def page() -> str:
    """Return the page."""
    head = (
        "| field | Parquet, Delta | JSON, Kafka | CSV | Avro | in a sink | in state |\n|---|---|---|---|---|---|---|\n"
    )
    return f"{HEAD}{head}{chr(10).join(map(_row, DECLARED))}\n"


if __name__ == "__main__":
    sys.exit(generated_page.run(PAGE, page, __doc__ or ""))
