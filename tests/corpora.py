"""Read public test corpora as sources do, and compare each row with an independent reader: `python -m tests.corpora FOLDER`.

No file of them is in this repository. Fetch what you want to read into folders of these names, and give the folder around them:

    git clone --depth 1 https://github.com/apache/parquet-testing       Parquet files of many writers, and damaged ones
    git clone --depth 1 https://github.com/nst/JSONTestSuite            JSON that parsers must accept (y_), and must refuse (n_)
    git clone --depth 1 https://github.com/max-mapper/csv-spectrum      CSV files, and their rows as JSON
    git clone --depth 1 https://github.com/apache/avro                  Avro files in lang/ and share/ (large)
    git clone --depth 1 https://github.com/delta-io/delta-rs            Delta tables of many writers, some of them damaged
    git clone https://github.com/delta-incubator/dat                    Delta acceptance tables: unpack a release there, or those of
                                                                        its history (git archive e1716e33 out | tar -x)

A row is equal cell by cell, or it is refused by name. The command prints a line for each file, and exits with 1 if a row differs.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headrace import Pipeline, Timestamp
from headrace.errors import HeadraceError
from headrace.records.column_types import columns_of
from headrace.testing import PipelineHarness
from headrace.testing._memory_table import open_memory
from tests.unit.sources.drawn_tables import Refused, expected, plain, read_avro, read_parquet
from tests.unit.sources.source_reading import Outcome, read_bytes, read_messages

EQUAL, REFUSED, DIFFERENT, UNKNOWN = "equal", "refused", "DIFFERENT", "unknown"


def main(folder: Path) -> int:
    """Read all corpora in a folder. Return 1 if a row of a file differs, else 0."""
    open_memory()
    verdicts: Counter[str] = Counter()
    for read in (_parquet, _json, _csv, _avro, _delta):
        for file, verdict, why in read(folder):
            verdicts[verdict] += 1
            sys.stdout.write(f"{verdict:10} {file.relative_to(folder)} {why}"[:300] + "\n")
    sys.stdout.write(f"{dict(verdicts)}\n")
    return 1 if verdicts[DIFFERENT] else 0


Verdict = tuple[Path, str, str]


def _parquet(folder: Path) -> Iterator[Verdict]:
    for file in sorted(folder.glob("parquet-testing/**/*.parquet")):
        content = file.read_bytes()
        try:
            schema = pq.ParquetFile(io.BytesIO(content), coerce_int96_timestamp_unit="us").schema_arrow
            rows = read_parquet(content)
        except Exception as error:  # noqa: BLE001 - damaged files raise errors of any type
            outcome = read_bytes("parquet", content, _record({}))
            yield file, REFUSED if outcome.refused or not outcome.records else UNKNOWN, f"other reader: {error}"
            continue
        record = _record({name: _type_of(kind) for name, kind in zip(schema.names, schema.types, strict=True)})
        yield file, *_verdict(read_bytes("parquet", content, record), record, rows)


def _avro(folder: Path) -> Iterator[Verdict]:
    for file in sorted(path for path in folder.glob("avro/**/*.avro") if path.is_file()):
        content = file.read_bytes()
        try:
            rows = read_avro(content)
            schema = fastavro.reader(io.BytesIO(content)).writer_schema
        except Exception as error:  # noqa: BLE001 - damaged files raise errors of any type
            outcome = read_bytes("avro", content, _record({}))
            yield file, REFUSED if outcome.refused or not outcome.records else UNKNOWN, f"other reader: {error}"
            continue
        fields = schema.get("fields", []) if isinstance(schema, dict) else []
        record = _record({field["name"]: _AVRO_TYPES.get(str(field["type"])) for field in fields})
        yield file, *_verdict(read_bytes("avro", content, record), record, rows)


def _csv(folder: Path) -> Iterator[Verdict]:
    for file in sorted(folder.glob("csv-spectrum/csvs/*.csv")):
        rows = json.loads((file.parent.parent / "json" / f"{file.stem}.json").read_text())
        rows = rows if isinstance(rows, list) else [rows]
        record = _record(dict.fromkeys(rows[0], str))
        outcome = read_bytes("csv", file.read_bytes(), record)
        for row, ours in zip(rows, outcome.records, strict=False):  # their rows have no nulls
            fields = {column.stored: column.name for column in columns_of(record)}
            row.update(
                (name, None)
                for name, text in row.items()
                if not text and getattr(ours, fields.get(name, ""), None) is None
            )
        yield file, *_verdict(outcome, record, rows)


def _json(folder: Path) -> Iterator[Verdict]:
    for file in sorted(folder.glob("JSONTestSuite/test_parsing/*.json")):
        content = file.read_bytes()
        value = b'{"at": 1, "x": ' + content + b"}"
        try:
            read = json.loads(content.decode())
            kind = _type_of_value(read)
        except (ValueError, RecursionError):
            read = kind = None
        record = _record({"x": kind})
        outcome = read_messages([value], record)
        is_syntax_error = "is not" in outcome.errors.get(0, "") and outcome.errors[0].startswith(
            "t-0@0: the value is not"
        )
        if file.name.startswith("y_"):
            verdict, why = _verdict(outcome, record, [{"at": 1, "x": read}])
            yield file, DIFFERENT if is_syntax_error else verdict, why
        elif file.name.startswith("n_"):
            yield file, REFUSED if outcome.errors else DIFFERENT, str(outcome.errors or outcome.records)
        else:
            yield file, REFUSED if outcome.errors else EQUAL, str(outcome.errors)


def _delta(folder: Path) -> Iterator[Verdict]:
    """Read the latest version of each table as a job does, and compare it with deltalake's rows, in any order."""
    logs = (log for name in ("delta-rs", "dat") for log in sorted(folder.glob(f"{name}/**/_delta_log")))
    for table in (log.parent for log in logs):
        try:
            stored = DeltaTable(str(table)).to_pyarrow_table()
        except Exception as error:  # noqa: BLE001 - damaged tables raise errors of any type
            outcome = _read_table(table, _record({}))
            yield table, REFUSED if outcome.refused or not outcome.records else UNKNOWN, f"other reader: {error}"
            continue
        record = _record({field.name: _type_of(field.type) for field in stored.schema})
        rows = stored.to_pylist(maps_as_pydicts="strict")
        yield table, *_verdict_in_any_order(_read_table(table, record), record, rows)


def _read_table(table: Path, record: type[msgspec.Struct]) -> Outcome:
    pipeline = Pipeline("rows").source("rows", record, event_time="at").sink("taken")
    source = {
        "format": "delta",
        "path": str(table),
        "start": "snapshot",
        "max_quarantined": "none",
        "max_ahead": "none",
    }
    names = {column.name: column.stored for column in columns_of(record) if column.stored}
    harness = PipelineHarness(pipeline, job={"sources": {"rows": source}, "sinks": {"taken": {"rename": names}}})
    try:
        harness.run()
    except HeadraceError as error:
        return Outcome([], {}, str(error))
    refused = harness.table("quarantine").to_pylist()
    return Outcome(harness.sink("taken"), {at: row["error"] for at, row in enumerate(refused)})


def _verdict_in_any_order(outcome: Outcome, record: type[msgspec.Struct], rows: Sequence[Any]) -> tuple[str, str]:
    if outcome.refused is not None:
        return REFUSED, outcome.refused
    fitting: Counter[str] = Counter()
    for row in rows:
        with contextlib.suppress(Refused):
            fitting[repr(expected({"at": 0} | row, columns_of(record)))] += 1
    ours = Counter(repr(plain(taken)) for taken in outcome.records)
    if surplus := ours - fitting:
        return DIFFERENT, f"not in the table: {next(iter(surplus))}"
    if len(outcome.records) + len(outcome.errors) != len(rows):
        return DIFFERENT, f"{len(outcome.records)} rows and {len(outcome.errors)} refused ones, not {len(rows)}"
    return (REFUSED, str(outcome.errors)) if outcome.errors else (EQUAL, f"{len(rows)} rows")


def _verdict(outcome: Outcome, record: type[msgspec.Struct], rows: Sequence[Any]) -> tuple[str, str]:
    if outcome.refused is not None:
        return REFUSED, outcome.refused
    if len(outcome.records) != len(rows):
        return DIFFERENT, f"{len(outcome.records)} rows, not {len(rows)}"
    for number, (ours, row) in enumerate(zip(outcome.records, rows, strict=True)):
        try:
            values = expected({"at": 0} | row, columns_of(record))
        except Refused as error:
            if ours is not None:
                return DIFFERENT, f"row {number}: {error} should be refused"
            continue
        if ours is not None and plain(ours) != values:
            return DIFFERENT, f"row {number}: {plain(ours)}, not {values}"
    return (REFUSED, str(outcome.errors)) if outcome.errors else (EQUAL, f"{len(rows)} rows")


def _record(types: dict[str, Any]) -> type[msgspec.Struct]:
    """Return a record with a field for each column of a type that records have, and an event time."""
    fields = _fields({name: kind for name, kind in types.items() if name != "at"})
    return msgspec.defstruct("Row", [*fields, ("at", Timestamp, 0)])


def _fields(types: dict[str, Any]) -> list[Any]:
    """Return fields that are stored under any name, but for those that msgspec refuses."""
    named = [(name, kind) for name, kind in types.items() if kind is not None and not _REFUSED_NAMES.search(name)]
    return [(f"f{at}", kind | None, msgspec.field(name=name, default=None)) for at, (name, kind) in enumerate(named)]


_REFUSED_NAMES = re.compile(r'["\\\x00-\x1f]')


_FAMILIES: list[tuple[Callable[[pa.DataType], bool], Any]] = [
    (pa.types.is_boolean, bool),
    (pa.types.is_integer, int),
    (pa.types.is_floating, float),
    (pa.types.is_decimal, float),
    (pa.types.is_string, str),
    (pa.types.is_large_string, str),
    (pa.types.is_timestamp, Timestamp),
    (pa.types.is_binary, bytes),
    (pa.types.is_fixed_size_binary, bytes),
]


def _type_of(kind: pa.DataType) -> Any:
    """Return the annotation for values of an Arrow type; None for a type that records do not have."""
    if pa.types.is_struct(kind):
        parts = {field.name: _type_of(field.type) for field in kind}
        fields = _fields(parts)
        return msgspec.defstruct("Part", fields) if fields else None
    if pa.types.is_map(kind):
        item = _type_of(kind.item_type) if pa.types.is_string(kind.key_type) else None
        return None if item is None else dict[str, item | None]
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        item = _type_of(kind.value_type)
        return None if item is None else list[item | None]
    return next((annotation for is_kind, annotation in _FAMILIES if is_kind(kind)), None)


_AVRO_TYPES: dict[str, Any] = {
    "long": int,
    "int": int,
    "double": float,
    "float": float,
    "string": str,
    "boolean": bool,
    "bytes": bytes,
}


def _type_of_value(value: Any) -> Any:
    """Return the annotation for a value of JSON; None for one that no field has."""
    if isinstance(value, list):
        kinds = {_type_of_value(item) for item in value}
        return list[kinds.pop() | None] if len(kinds) == 1 and None not in kinds else None
    return {bool: bool, int: int, float: float, str: str}.get(type(value))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
