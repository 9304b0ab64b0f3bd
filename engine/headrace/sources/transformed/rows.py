"""Input rows of a Spark transform, its dimension tables, and checks of its result.

Dimension tables of a Spark transform over a source: the version of each that a micro-batch sees, and its rows.

A micro-batch fixes the versions when it makes its first rows, and each file of these rows records them. So a micro-batch that
is repeated after a crash sees the same versions. A replayed one sees the versions that its checkpoint recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SourceNode
from headrace.api.records import RowKind
from headrace.errors import ConfigError, SourceError, StorageError
from headrace.records.column_types import columns_of
from headrace.records.columns import BadRow
from headrace.records.watermarks import Timeline
from headrace.sources.folder.format import DamagedFileError, FileRows
from headrace.sources.position import SourceFacts, TableVersion
from headrace.sources.row_check import CheckedRows, RowCheck
from headrace.storage.refusals import reason_of
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError


class Refused(NamedTuple):
    """Row that does not fit the source's record: the reason, and the row's text."""

    error: str
    raw: str


def input_schema(node: SourceNode) -> pa.Schema:
    """Return the input columns of a transform: the fields of the source's record, with times as timestamps, and the row kind."""
    fields = [pa.field(column.name, column.sink_type) for column in columns_of(node.record)]
    if node.row_kind is not None and node.row_kind not in node.record.__struct_fields__:
        fields.append(pa.field(node.row_kind, pa.string()))
    return pa.schema(fields)


def columns_of_rows(node: SourceNode, rows: FileRows) -> CheckedRows:
    """Convert rows of a file to columns of the source's record.

    Raises `DamagedFileError` for a file that lacks a required column, or has a column twice.
    """
    check = RowCheck(node, rows.decoder)
    if (problem := check.problem(rows.table, rows.header)) is not None:
        raise DamagedFileError(problem)
    return check.check(rows.table, rows.problems)


def transform_input(columns: pa.StructArray, kinds: pa.Array, node: SourceNode) -> pa.Table:
    """Return the good rows as the input of a transform, in their order."""
    schema, is_good = input_schema(node), columns.is_valid()
    good = columns.filter(is_good)
    arrays = [column.kind.to_sink(good.field(column.name)) for column in columns_of(node.record)]
    if len(schema) > len(arrays):
        # Not a constant: the first `pa.array` of a process imports pandas, and commands that only read import this module.
        arrays.append(pa.array([kind.symbol for kind in RowKind]).take(kinds.filter(is_good)))
    return pa.Table.from_arrays(arrays, schema=schema)


def refused_rows(rows: FileRows, bad: Sequence[BadRow], name: str) -> list[Refused]:
    """Return the rows that do not fit the source's record; `name` is that of the file."""
    in_order = sorted(bad, key=lambda row: row.position)
    return [
        Refused(f"{name}:{row.position}, before the transform: {row.error}", rows.raw(row.position)) for row in in_order
    ]


def misfits(schema: pa.Schema, node: SourceNode) -> list[str]:
    """Return the reasons why the columns of a transform's result do not fit the record of `node`."""
    record, problems = node.record, list[str]()
    twice = sorted({name for name in schema.names if schema.names.count(name) > 1})
    problems += [f"the result has two columns '{name}'" for name in twice]
    for column in columns_of(record):
        result_type = schema.field(column.name).type if schema.names.count(column.name) == 1 else None
        if result_type is None and column.required and column.name not in twice:
            problems.append(
                f"the result has no column '{column.name}', a field of {record.__name__} (it has {', '.join(schema.names)})"
            )
        if result_type is not None and not pa.types.is_null(result_type) and not column.kind.takes(result_type):
            wanted = "timestamp" if column.is_time else column.sink_type
            problems.append(
                f"column '{column.name}' of the result is {result_type}, and the field of {record.__name__} is {wanted}"
            )
    if node.row_kind is not None and node.row_kind not in schema.names:
        problems.append(f"the result has no column '{node.row_kind}', which holds the kinds of rows: select it as well")
    return problems


Versions = Mapping[str, int]
"""Version of each table, by the table's name in the pipeline."""


@dataclass(slots=True)
class DimensionTables:
    """Dimension tables of one source's transform; `paths` has their locations by name."""

    source: str
    paths: Mapping[str, str]
    storage: Storage
    place: str = ""
    """Digest of the position at which the micro-batch begins: the same for each attempt."""
    _recorded: Versions = field(default_factory=dict)
    _fixed: dict[str, int] | None = None

    def begin(self, at: tuple[SourceFacts, Timeline], recorded: Sequence[TableVersion] = ()) -> None:
        """Begin a micro-batch at the facts and the timeline of the last checkpoint. A repeated one has the versions `recorded` for it."""
        self.place = blake2b(msgspec.json.encode(at), digest_size=8).hexdigest()
        self._recorded, self._fixed = {table.name: table.version for table in recorded}, None

    def fix(self, landed: Versions | None = None) -> Versions:
        """Return the versions of this micro-batch: the recorded ones, else those that an earlier attempt has `landed`, else the latest.

        Raises `ConfigError` where there is no table, `SourceError` where its log cannot be read.
        """
        if self._fixed is None:
            known = {**(landed or {}), **self._recorded}
            self._fixed = {name: known[name] if name in known else self._latest(name) for name in self.paths}
        return self._fixed

    def latest(self) -> Versions:
        """Return the latest versions. Raises the errors of `fix`."""
        return {name: self._latest(name) for name in self.paths}

    def read(self, name: str, version: int) -> pa.Table:
        """Return the rows of a version, sorted by all plain columns, so that their order does not depend on files.

        Raises `SourceError` for a version that no longer exists, or cannot be read.
        """
        try:
            snapshot = self.storage.at(self.paths[name]).table().at(version)
            rows = snapshot.read(pa.schema([pa.field(field.name, field.type) for field in snapshot.schema]))
        except (StorageError, TableMissingError) as error:
            why = str(reason_of(error)).partition("\n")[0]
            raise SourceError(
                f"source '{self.source}': cannot read version {version} of its table '{name}' ({self.paths[name]}): {why:.300}. Nothing "
                "was taken in. A repeated or replayed micro-batch reads the version that it read first. If VACUUM has removed that "
                "version, bring its files back. On a branch, 'replay.tables: latest' in the job's file reads the present version instead; "
                "docs/spark-transforms.md says how the job itself goes on with that."
            ) from error
        return _sorted(rows)

    def _latest(self, name: str) -> int:
        try:
            return self.storage.at(self.paths[name]).table().latest().version
        except TableMissingError as error:
            msg = (
                f"source '{self.source}': there is no Delta table {self.paths[name]}, its table '{name}'. Nothing was taken in. Mend "
                f"sources.{self.source}.tables.{name}, or write the table first."
            )
            raise ConfigError(msg) from error
        except StorageError as error:
            msg = f"source '{self.source}': cannot read its table '{name}' ({self.paths[name]}): {reason_of(error)}. Nothing was taken in."
            raise SourceError(msg) from error


def _sorted(rows: pa.Table) -> pa.Table:
    names = [field.name for field in rows.schema if not pa.types.is_nested(field.type)]
    return rows.take(pc.sort_indices(rows, [(name, "ascending") for name in names])) if names else rows
