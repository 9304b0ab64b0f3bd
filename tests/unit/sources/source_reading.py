"""Read stored bytes as a source does, in any format: the records, the rows that are refused, or why the file is refused."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import fastavro
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from headrace import Pipeline
from headrace.api.graph import SourceNode
from headrace.config import CsvOptions, FileOptions, JsonOptions
from headrace.records.record_columns import from_struct_array
from headrace.sources.delta.rows import DeltaRows, source_rows
from headrace.sources.folder.format import UNREADABLE, FileRows, wanted_columns
from headrace.sources.folder.formats import format_of, read_file
from headrace.sources.kafka.landed import MESSAGES
from headrace.sources.kafka.messages import MessageReader, Messages
from headrace.sources.row_check import RowCheck
from headrace.storage.delta_schema import DeltaColumn
from headrace.storage.storage import Storage
from headrace.testing._memory_disk import forget_disk, memory_disk

FILE_KINDS = ("parquet", "json", "csv", "avro")

_disks = (f"source-reading-{number}" for number in itertools.count())


class Outcome(NamedTuple):
    """Result of reading a file: records by row (None for a refused row), the errors by row, or why the file is refused."""

    records: list[Any]
    errors: dict[int, str]
    refused: str | None = None


def read_bytes(
    kind: str,
    content: bytes,
    record: type[msgspec.Struct],
    *,
    csv: CsvOptions | None = None,
    rows: str | None = None,
    suffix: str | None = None,
    rename: Mapping[str, str] | None = None,
) -> Outcome:
    """Read the content of a file of a kind; `rename` as in a job's file."""
    node = _node(record, rename)
    disk, file_kind = next(_disks), kind if kind != "delta" else "parquet"
    options = FileOptions(format=file_kind, csv=csv or CsvOptions(), json=JsonOptions(rows=rows))
    name = f"input/file.{suffix or ('parquet' if kind == 'delta' else kind)}"
    file = Storage(f"memory://{disk}/{name}")
    file.write("", b"")
    memory_disk(disk).files[name].content = content
    try:
        return read_stored(file, node, options) if kind != "delta" else _read_delta(file, node, content)
    finally:
        forget_disk(disk)


def read_stored(file: Storage, node: SourceNode, options: FileOptions) -> Outcome:
    """Read a file that is there."""
    try:
        return _outcome(file, node, options, read_file(file, node, options))
    except UNREADABLE as error:
        return Outcome([], {}, str(error))


def _read_delta(file: Storage, node: SourceNode, content: bytes) -> Outcome:
    own = [column.name for column in wanted_columns(node) if column.stored == column.name]
    try:
        names = dict.fromkeys([*own, *pq.read_schema(io.BytesIO(content)).names])
        return _outcome(file, node, FileOptions(), source_rows(file, DeltaRows(tuple(map(DeltaColumn, names))), node))
    except UNREADABLE as error:
        return Outcome([], {}, str(error))


def _outcome(file: Storage, node: SourceNode, options: FileOptions, rows: FileRows) -> Outcome:
    table = rows.table
    if (count := format_of(options).count(file, node)) != table.num_rows:
        return Outcome([], {}, f"{table.num_rows} rows, {count} by its count")  # a run refuses it, too
    for number in range(table.num_rows):
        rows.raw(number).encode()
    return _checked(RowCheck(node), rows, node.record)


def read_messages(
    values: list[bytes | None], record: type[msgspec.Struct], rename: Mapping[str, str] | None = None
) -> Outcome:
    """Read the values of a topic's messages."""
    rows = [{"value": value, "topic": "t", "partition": 0, "offset": at} for at, value in enumerate(values)]
    table = pa.Table.from_pylist(rows, MESSAGES)
    node = _node(record, rename)
    return _checked(RowCheck(node, MessageReader(node, Messages())), FileRows(table), record)


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    """Return a table as a Parquet file."""
    file = io.BytesIO()
    pq.write_table(table, file, **options)
    return file.getvalue()


def avro_bytes(types: dict[str, Any], rows: list[dict[str, Any]], **options: Any) -> bytes:
    """Return rows as an Avro file, whose schema has these types by name."""
    file = io.BytesIO()
    schema = {
        "type": "record",
        "name": "Root",
        "fields": [{"name": name, "type": kind} for name, kind in types.items()],
    }
    fastavro.writer(file, schema, rows, **options)
    return file.getvalue()


def _node(record: type[msgspec.Struct], rename: Mapping[str, str] | None = None) -> SourceNode:
    node: Any = Pipeline("rows").source("rows", record, event_time="at").sink("taken").operators[0]
    return replace(node, rename=tuple((rename or {}).items()))


def _checked(check: RowCheck, rows: FileRows, record: type[msgspec.Struct]) -> Outcome:
    if (problem := check.problem(rows.table, rows.header)) is not None:
        return Outcome([], {}, problem)
    columns, _, bad, *_ = check.check(rows.table, rows.problems)
    return Outcome(from_struct_array(columns, record), {row.position: row.error for row in bad})
