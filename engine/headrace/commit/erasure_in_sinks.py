"""Rows with an erased key in a job's sinks. Headrace only reports them; the owners of the sinks delete them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from headrace.commit.erased_key import ErasedKey
from headrace.commit.log import CheckpointLog
from headrace.config import JobConfig
from headrace.tables.predicate import OneOf, literal
from headrace.tables.store import Snapshot, TableMissingError, storage_errors
from headrace.tables.stores import table_store


@dataclass(frozen=True, slots=True)
class SinkRows:
    """Rows of a sink that have the key, by column; for a key with several fields, by primary key."""

    sink: str
    path: str
    mode: str
    primary_key: Sequence[str]
    conditions: Sequence[tuple[Mapping[str, str | int], int]]
    """Values of columns, each with the number of rows that have all of them."""

    @property
    def statement(self) -> str | None:
        """Return the statement of Spark SQL that deletes the rows; None if no column has the key."""
        path = self.path.replace("`", "``")
        where = _where(self.conditions, "`", _spark_literal)
        return f"DELETE FROM delta.`{path}` WHERE {where};" if where else None  # noqa: S608 - for people to read

    @property
    def delta_rs_call(self) -> str | None:
        """Return the call of Python's deltalake that deletes the rows; None if no column has the key."""
        where = _where(self.conditions, '"', literal)
        return f"DeltaTable({self.path!r}).delete({where!r})" if where else None


def rows_in_sinks(config: JobConfig, key: ErasedKey) -> Iterator[SinkRows]:
    """Yield, for each sink, the number of rows that have the key as a column's value. Skips lists and structs.

    Raises `StorageError` when a sink cannot be read.
    """
    log = CheckpointLog(config.job_folder, config.storage_options)
    tables = log.sink_tables(log.resolve(config)) or {}
    for name, sink in sorted(config.sinks.items()):
        primary_key = tables[name].key if name in tables else ()
        try:
            with storage_errors(f"to read sink '{name}' at {sink.table_path}"):
                table = table_store(sink.table_path, config.storage_options).latest()
                conditions = [*_conditions(table, key, primary_key)]
        except TableMissingError:
            conditions = []
        yield SinkRows(name, sink.table_path, sink.mode, primary_key, conditions)


def _conditions(
    table: Snapshot, key: ErasedKey, primary_key: Sequence[str]
) -> Iterator[tuple[Mapping[str, str | int], int]]:
    values = [msgspec.json.decode(text) for text in key.texts]
    for parts in (value for value in values if isinstance(value, list)):
        named = dict(zip(primary_key, parts, strict=False))
        if len(parts) == len(primary_key) and all(_fits(table.schema.field(c).type, v) for c, v in named.items()):
            yield from _counted(table, named)
    for column in table.schema:
        for value in values:
            if _fits(column.type, value):
                yield from _counted(table, {column.name: value})


def _counted(table: Snapshot, values: dict[str, str | int]) -> Iterator[tuple[Mapping[str, str | int], int]]:
    """Yield values of columns with the number of rows that have them, if any row has."""
    conditions = [OneOf(name, (value,)) for name, value in values.items()]
    schema = pa.schema([table.schema.field(name) for name in values])
    rows = table.read(schema, columns=list(values), conditions=conditions).num_rows
    if rows:
        yield values, rows


def _fits(kind: pa.DataType, value: object) -> bool:
    """Return whether a column may have a value. Only texts and whole numbers can match."""
    if isinstance(value, str):
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return is_whole and pa.types.is_integer(kind) and -(1 << (kind.bit_width - 1)) <= value < 1 << (kind.bit_width - 1)


def _where(
    conditions: Sequence[tuple[Mapping[str, str | int], int]], quote: str, text_literal: Callable[[str], str]
) -> str:
    """Return SQL for rows that have one of several values. `quote` stands around names; texts are written by `text_literal`."""

    def equal(name: str, value: str | int) -> str:
        quoted = f"{quote}{name.replace(quote, 2 * quote)}{quote}"
        return f"{quoted} = {text_literal(value) if isinstance(value, str) else value}"

    return " OR ".join(" AND ".join(equal(*item) for item in values.items()) for values, _ in conditions)


_SPARK_ESCAPES: Final = str.maketrans(
    {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "\x1a": "\\Z"}
)


def _spark_literal(value: str) -> str:
    """Return a text as a literal of Spark SQL, on one line: a backslash escapes there, and two quotes end and begin a literal."""
    return f"'{value.translate(_SPARK_ESCAPES)}'"
