"""Read public corpora as sources do, and compare each row with independent readers: `python -m tests.corpora FOLDER [CORPUS ...]`.

No file of them is in this repository. Fetch what you want to read into folders, and give the folder around them, as

    git clone --depth 1 https://github.com/apache/parquet-testing       Parquet files of many writers, and damaged ones
    git clone --depth 1 https://github.com/nst/JSONTestSuite            JSON that parsers must accept (y_), and must refuse (n_)
    git clone --depth 1 https://github.com/max-mapper/csv-spectrum      CSV files with quotes and line ends of all kinds
    git clone --depth 1 https://github.com/apache/avro                  Avro files in lang/ and share/ (large)
    git clone --depth 1 https://github.com/delta-io/delta-rs            Delta tables of many writers, some of them damaged
    git clone --depth 1 https://github.com/fivethirtyeight/data         CSV files as people have them
    git clone https://github.com/delta-incubator/dat                    Delta acceptance tables: unpack a release there, or those of
                                                                        its history (git archive e1716e33 out | tar -x)

Each file and each table in them is read with the record type that `headrace new --from` writes for it. A file is

    equal       each value of each row and column is that of the other readers
    in part     the same, but for rows that the quarantine names and columns that `headrace new` names
    refused     by a sentence that says why
    unread      read, but the other readers cannot read it
    DIFFERENT   a value, a row or a column is not that of the other readers, and nothing says so
    RAISED      an error that is no sentence

The command prints a line for each file, then a table, and exits with 1 if a file is DIFFERENT or RAISED.
"""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple
from uuid import UUID

import duckdb
import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, QueryBuilder
from deltalake.exceptions import DeltaProtocolError

from headrace import Json, Pipeline, Timestamp
from headrace.api.graph import SourceNode
from headrace.cli.data_columns import Data, data_of
from headrace.cli.record_code import imports_of, record_code
from headrace.config import CsvOptions, FileOptions
from headrace.errors import HeadraceError
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import Column, columns_of
from headrace.sources.folder.avro import AvroFiles
from headrace.sources.folder.compression import packer_of, unpacked_parts
from headrace.sources.folder.csv import CsvFiles
from headrace.sources.folder.json import JsonLines
from headrace.sources.folder.parquet import ParquetFiles
from headrace.storage.storage import Storage
from headrace.testing import PipelineHarness
from headrace.testing._memory_table import open_memory
from tests.unit.sources.source_reading import Outcome, read_messages, read_stored

EQUAL, IN_PART, REFUSED, UNREAD, DIFFERENT, RAISED = "equal", "in part", "refused", "unread", "DIFFERENT", "RAISED"
VERDICTS = (EQUAL, IN_PART, REFUSED, UNREAD, DIFFERENT, RAISED)

Rows = list[dict[str, Any]]
Verdict = tuple[str, str]


def main(folder: Path, names: Sequence[str]) -> int:
    """Read the corpora of these names in a folder, or all. Return 1 if a file is different, else 0."""
    open_memory()
    counts: dict[tuple[str, str], Counter[str]] = {}
    for corpus in sorted(path for path in folder.iterdir() if path.is_dir() and (not names or path.name in names)):
        for kind, place, verdict, why in _verdicts(corpus):
            counts.setdefault((corpus.name, kind), Counter())[verdict] += 1
            line = f"{verdict:9} {place.relative_to(folder)} | {why}"
            sys.stdout.write(" ".join(line[:500].split("\n")) + "\n")
    for row in _summary(counts):
        sys.stdout.write(f"| {' | '.join(row)} |\n")
    return 1 if any(count[DIFFERENT] or count[RAISED] for count in counts.values()) else 0


def _summary(counts: dict[tuple[str, str], Counter[str]]) -> Iterator[list[str]]:
    yield ["corpus", "kind", "files", *VERDICTS]
    for (corpus, kind), verdicts in counts.items():
        yield [corpus, kind, str(verdicts.total()), *(str(verdicts[verdict]) for verdict in VERDICTS)]


def _verdicts(corpus: Path) -> Iterator[tuple[str, Path, str, str]]:
    """Yield the verdict on each file and table of a corpus, with its kind."""
    for file in sorted(path for path in corpus.rglob("*") if path.is_file()):
        kind = next((kind for kind, (endings, _) in _KINDS.items() if file.name.lower().endswith(endings)), None)
        if corpus.name == "JSONTestSuite":
            yield "value", file, *_json_value(file)
        elif kind is not None:
            yield kind, file, *_verdict(file, _KINDS[kind][1])
    for table in sorted(log.parent for log in corpus.rglob("_delta_log")):
        yield "delta", table, *_verdict(table, (_deltalake, _acceptance))


def _verdict(place: Path, readers: Sequence[Callable[[Path, Data], Rows]]) -> Verdict:
    try:
        data = data_of(str(place))
        source = _source(data)
        outcome = _read(place, data, source)
    except HeadraceError as error:
        return REFUSED, str(error)
    except Exception as error:  # noqa: BLE001 - the defect that is looked for
        return RAISED, repr(error)
    if outcome.refused is not None:
        return REFUSED, outcome.refused
    others, errors = [], []
    for reader in readers:
        try:
            others.append(reader(place, data))
        except Exception as error:  # noqa: BLE001 - damaged files raise errors of any type
            errors.append(f"{reader.__name__}: {error!r}")
    why = next((why for rows in others if (why := _difference(outcome, source, rows, in_order=place.is_file()))), None)
    if why is not None:
        return DIFFERENT, why
    if not others:
        return REFUSED if outcome.errors and not any(
            outcome.records
        ) else UNREAD, f"{len(outcome.records)} rows; {errors}"
    why = "; ".join(_refusals(outcome, source.left_out))
    return (IN_PART, why) if why else (EQUAL, f"{len(others[0])} rows")


def _refusals(outcome: Outcome, left_out: Sequence[str]) -> Iterator[str]:
    if left_out:
        yield f"no field can have {', '.join(map(repr, left_out))}"
    if outcome.errors:
        yield f"{len(outcome.errors)} of {len(outcome.records)} rows: {next(iter(outcome.errors.values()))}"


# ----------------------------------------------------------------------------------------------------------- our reading


class _Source(NamedTuple):
    node: SourceNode
    columns: Sequence[Column]
    left_out: Sequence[str]


def _source(data: Data) -> _Source:
    """Return a source whose record type is that of `headrace new --from`, with an event time where it has none."""
    code = record_code(data.columns)
    module = ModuleType("derived")
    sys.modules["derived"] = module
    timed = "class Timed(Row, frozen=True):\n    headrace_at: Timestamp = 0"
    imports = f"from __future__ import annotations\n{imports_of(code.classes)}\nfrom headrace import Timestamp"
    text = f"{imports}\n\n{code.classes}\n\n{timed}"
    exec(compile(text, "derived", "exec"), module.__dict__)  # noqa: S102 - the code under test
    record = module.Row if code.event_time else module.Timed
    renamed = (*code.renamed.items(),)
    node = SourceNode("rows", record, code.event_time or "headrace_at", (), None, timedelta(0), rename=renamed)
    columns = [column for column in columns_of(record, renamed) if column.name != "headrace_at"]
    return _Source(node, columns, code.left_out)


def _read(place: Path, data: Data, source: _Source) -> Outcome:
    if place.is_dir():
        return _read_table(data, source)
    options = FileOptions(format=data.settings["format"], csv=CsvOptions(**data.settings.get("csv", {})))
    return read_stored(Storage(str(place)), source.node, options)


def _read_table(data: Data, source: _Source) -> Outcome:
    node = source.node
    pipeline = Pipeline("rows").source("rows", node.record, event_time=node.event_time).sink("taken")
    settings = {**data.settings, "rename": dict(node.rename), "max_quarantined": "none", "max_ahead": "none"}
    harness = PipelineHarness(pipeline, job={"sources": {"rows": settings}})
    harness.run()
    refused = harness.table("quarantine").to_pylist()
    return Outcome(harness.sink("taken"), {at: row["error"] for at, row in enumerate(refused)})


# --------------------------------------------------------------------------------------------------------- other readers


def _pyarrow(file: Path, data: Data) -> Rows:
    table = pq.ParquetFile(io.BytesIO(_content(file)), coerce_int96_timestamp_unit="us").read()
    return _with_json(table.to_pylist(maps_as_pydicts="strict"), data)


def _duckdb(file: Path, data: Data) -> Rows:
    """Return the rows as DuckDB reads them, without variants: sources read the structs that store these."""
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'; set preserve_insertion_order = true")
        result = connection.execute("select * from read_parquet(?, hive_partitioning = false)", [str(file)])
        names = [column[0] for column in result.description]
        if sorted(names) != sorted(data.columns.names):
            msg = f"its names are {names}"
            raise ValueError(msg)
        variants = {name for name, kind, *_ in result.description if "VARIANT" in str(kind)}
        rows = [dict(zip(names, row, strict=True)) for row in result.fetchall()]
    return _with_json(
        [{name: _ANY if name in variants else value for name, value in row.items()} for row in rows], data
    )


def _with_json(rows: Rows, data: Data) -> Rows:
    """Return rows of Parquet with what the texts of JSON in them stand for."""
    kinds = {field.name: field.type for field in data.columns if "arrow.json" in str(field.type)}
    return [{name: _json_within(value, kinds.get(name)) for name, value in row.items()} for row in rows]


def _json_within(value: Any, kind: pa.DataType | None) -> Any:
    if isinstance(value, list) and kind is not None:
        return [_json_within(item, kind.value_type) for item in value]
    return json.loads(value) if isinstance(value, str) and isinstance(kind, pa.JsonType) else value


def _fastavro(file: Path, data: Data) -> Rows:
    del data
    return list(fastavro.reader(io.BytesIO(_content(file))))


def _json(file: Path, data: Data) -> Rows:
    """Return the elements of an array, objects that follow each other, or else lines."""
    del data
    text = _text(file, "utf-8")
    for parse in (json.loads, _objects):
        with suppress(ValueError):
            value = parse(text, parse_float=Decimal)
            return value if isinstance(value, list) else [value]
    return [_line(line) for line in text.split("\n") if line.strip()]


def _objects(text: str, **options: Any) -> Rows:
    decoder, rows, place = json.JSONDecoder(**options), [], 0
    while text[place:].strip():
        row, place = decoder.raw_decode(text, place + len(text[place:]) - len(text[place:].lstrip()))
        rows.append(row)
    return rows


def _line(line: str) -> Any:
    with suppress(ValueError):
        return json.loads(line, parse_float=Decimal)
    return None


def _csv(file: Path, data: Data) -> Rows:
    options = data.settings.get("csv", {})
    text = io.StringIO(_text(file, options.get("encoding", "utf-8")), newline="")
    csv.field_size_limit(1 << 30)
    _, *rows = [row for row in csv.reader(text, delimiter=options.get("delimiter", ",")) if row]
    return [dict(zip(data.columns.names, [text or _BLANK for text in row], strict=False)) for row in rows]


def _content(file: Path) -> bytes:
    packer = packer_of(file.name)
    return file.read_bytes() if packer is None else b"".join(unpacked_parts(file.read_bytes(), packer))


def _text(file: Path, encoding: str) -> str:
    return _content(file).decode(encoding, errors="surrogateescape").removeprefix("\ufeff")


def _deltalake(table: Path, data: Data) -> Rows:
    """Return the rows of a table as pyarrow reads its files, or else DataFusion, which knows more features of tables."""
    del data
    opened = DeltaTable(str(table))
    if '"variant"' in opened.schema().to_json():
        msg = "deltalake has VARIANT as it is stored"
        raise ValueError(msg)
    is_mapped = opened.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
    try:
        rows = None if is_mapped else opened.to_pyarrow_table()  # which has nulls for columns of other names
    except (DeltaProtocolError, pa.ArrowInvalid):
        rows = None
    if rows is None:
        if any(map(_has_int96, opened.file_uris())):
            msg = "DataFusion has nanoseconds for times of INT96, and wraps around"
            raise ValueError(msg)
        rows = pa.table(QueryBuilder().register("t", opened).execute("select * from t").read_all())
    return rows.to_pylist(maps_as_pydicts="strict")


def _has_int96(file: str) -> bool:
    schema = pq.ParquetFile(file).schema
    return any(schema.column(at).physical_type == "INT96" for at in range(len(schema.names)))


def _acceptance(table: Path, data: Data) -> Rows:
    """Return the rows that an acceptance table should have. Raises `FileNotFoundError` where nothing tells them."""
    del data
    content = pq.read_table(table.parent / "expected" / "latest" / "table_content.parquet")
    return content.to_pylist(maps_as_pydicts="strict")


_KINDS: dict[str, tuple[tuple[str, ...], tuple[Callable[[Path, Data], Rows], ...]]] = {
    "parquet": (ParquetFiles.suffixes, (_pyarrow, _duckdb)),
    "csv": (CsvFiles.suffixes, (_csv,)),
    "json": (JsonLines.suffixes, (_json,)),
    "avro": (AvroFiles.suffixes, (_fastavro,)),
}


# ------------------------------------------------------------------------------------------------------------ comparison


def _difference(outcome: Outcome, source: _Source, rows: Rows, *, in_order: bool) -> str | None:
    """Return the first difference between rows that are not refused and those of another reader; None without one."""
    columns = source.columns
    names = {name for row in rows if isinstance(row, dict) for name in row}
    if unread := names - {column.stored for column in columns} - {*source.left_out}:
        return f"the columns {unread} are neither read nor refused"
    ours = [None if record is None else _plain(record, columns) for record in outcome.records]
    refused = len(outcome.errors) - ours.count(None)
    if len(ours) + refused != len(rows):
        if not in_order or None not in ours:
            return f"{len(ours)} rows and {refused} refused ones, not {len(rows)}"
        # A refused row of text may be several of another reader, or a part of one: the rows before it are the same.
        ours, rows = ours[: ours.index(None)], rows[: ours.index(None)]
    if not in_order:
        surplus = Counter(map(repr, ours)) - Counter(repr(_read_row(row, columns)) for row in rows)
        return f"not in the table: {next(iter(surplus))}" if surplus else None
    for number, (own, row) in enumerate(zip(ours, rows, strict=True)):
        if own is not None and (why := _unlike(own, row, columns)):
            return None if _is_torn(outcome, number) else f"row {number}: {why}"
    return None


def _is_torn(outcome: Outcome, number: int) -> bool:
    """Return whether a row of text before this one is refused for its quotes or line ends, so that other readers count rows otherwise."""
    return any(at < number and why.startswith("line") and " has " in why for at, why in outcome.errors.items())


def _unlike(own: dict[str, Any], row: Any, columns: Sequence[Column]) -> str | None:
    """Return why a row that was read is not that of another reader; None where it is."""
    if not isinstance(row, dict):
        return f"{own}, not {row}"
    for column in columns:
        try:
            other = _other(row.get(column.stored), column)
        except (ValueError, ArithmeticError, KeyError) as error:
            return f"{column.stored}: {own[column.stored]!r}, not {row[column.stored]!r}: {error!r}"
        if own[column.stored] != other:
            return f"{column.stored}: {own[column.stored]!r}, not {other!r}"
    return None


def _plain(value: Any, columns: Sequence[Column]) -> dict[str, Any]:
    return {column.stored: _own(getattr(value, column.name), column) for column in columns}


def _own(value: Any, column: Column) -> Any:
    """Return a value of a record in the form in which values are compared."""
    if value is None:
        return None
    if column.record is not None:
        return _plain(value, column.parts)
    if len(column.parts) == 2:
        key, item = column.parts
        return sorted(((_own(name, key), _own(member, item)) for name, member in value.items()), key=repr)
    if column.parts:
        return [_own(item, column.parts[0]) for item in value]
    if isinstance(value, int) and column.is_time:
        return value * (1_000_000 if column.is_milliseconds else 1_000)
    return _common(value)


def _common(value: Any) -> Any:
    """Return a plain value in the form in which values are compared: numbers exactly, instants and durations in nanoseconds."""
    if isinstance(value, datetime):
        return _nanoseconds((value if value.tzinfo else value.replace(tzinfo=UTC)) - _EPOCH, value)
    if isinstance(value, timedelta):
        return _nanoseconds(value, value)
    if isinstance(value, bool):
        return ("truth", value)
    if isinstance(value, time):
        return value.replace(tzinfo=None)
    if isinstance(value, float):
        return None if math.isnan(value) else Fraction(repr(value)) if math.isfinite(value) else repr(value)
    if isinstance(value, list | tuple):
        return [_common(item) for item in value]
    if isinstance(value, dict):
        return sorted(((str(name), _common(item)) for name, item in value.items()), key=str)
    return Fraction(value) if isinstance(value, int | Decimal) else value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _nanoseconds(since: timedelta, value: datetime | timedelta) -> Fraction:
    finer = getattr(value, "nanosecond", getattr(value, "nanoseconds", 0))
    return Fraction((since // timedelta(microseconds=1)) * 1_000 + finer)


def _read_row(row: Any, columns: Sequence[Column]) -> Any:
    if not isinstance(row, dict):
        return row
    return {column.stored: _other(row.get(column.stored), column) for column in columns}


def _other(value: Any, column: Column) -> Any:
    """Return a value of another reader in the form in which values are compared. A text that is no such value is a `ValueError`."""
    if value is None or isinstance(value, _Either):
        return value
    if column.record is not None:
        return _read_row(value, column.parts)
    if len(column.parts) == 2:
        key, item = column.parts
        pairs = value.items() if isinstance(value, dict) else value
        return sorted(((_other(name, key), _other(member, item)) for name, member in pairs), key=str)
    if column.parts:
        return [_other(item, column.parts[0]) for item in value]
    value = _of_text(value, column) if isinstance(value, str) else value
    if isinstance(value, bytes) and _python(column) is timedelta:
        value = _avro_duration(value)
    return _common(_floats(value) if _python(column) in {float, object} else value)


def _avro_duration(value: bytes) -> timedelta | bytes:
    """Return what fastavro leaves as bytes; months have no length."""
    months, days, milliseconds = struct.unpack("<III", value)
    return value if months else timedelta(days=days, milliseconds=milliseconds)


def _floats(value: Any) -> Any:
    """Return a value with floats in place of the decimals in it whose digits they show."""
    if isinstance(value, list):
        return [_floats(item) for item in value]
    if isinstance(value, dict):
        return {name: _floats(item) for name, item in value.items()}
    if not isinstance(value, Decimal):
        return value
    places = max(0, -int(value.as_tuple().exponent))
    return float(value) if f"{float(value):.{places}f}" == f"{value:.{places}f}" else value


class _Either:
    """Value of another reader that is equal to several values of ours; to all without any given."""

    __hash__ = None

    def __init__(self, *values: Any) -> None:
        self.values = values

    def __eq__(self, other: object) -> bool:
        return not self.values or other in self.values


_ANY = _Either()
_BLANK = _Either(None, "")
"""An empty field of CSV: other readers do not say whether it was in quotes."""


def _python(column: Column) -> type:
    """Return the type of a column's values in records."""
    return column.kind.python if isinstance(column.kind, ScalarKind) else dict


def _of_text(text: str, column: Column) -> Any:
    """Return what a text stands for in a column of a type."""
    parse = _PARSERS.get(datetime if column.is_time else _python(column))
    return text if parse is None else parse(text)


_PARSERS: dict[type, Callable[[str], Any]] = {
    bytes: str.encode,
    bool: lambda text: {"true": True, "false": False}[text.lower()],
    int: int,
    float: Decimal,
    Decimal: Decimal,
    date: date.fromisoformat,
    datetime: datetime.fromisoformat,
    UUID: UUID,
}


# -------------------------------------------------------------------------------------------------------- values of JSON


def _json_value(file: Path) -> Verdict:
    """Read a file's text as the value of a field of a message: each field takes it or refuses it, as the file's name says."""
    value = b'{"at": 1, "x": ' + file.read_bytes() + b"}"
    try:
        outcome = read_messages([value], _Free)
    except Exception as error:  # noqa: BLE001 - the defect that is looked for
        return RAISED, repr(error)
    why = outcome.errors.get(0)
    if file.name.startswith("n_"):
        return (DIFFERENT, f"not refused: {outcome.records}") if why is None else (REFUSED, why)
    if why is not None:
        is_syntax_error = why.startswith("t-0@0: the value is not")
        return DIFFERENT if is_syntax_error and file.name.startswith("y_") else REFUSED, why
    other, own = json.loads(file.read_bytes().decode()), outcome.records[0].x
    return (EQUAL, "1 row") if own == other else (DIFFERENT, f"{own!r}, not {other!r}")


class _Free(msgspec.Struct, frozen=True):
    x: Json
    at: Timestamp = 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
