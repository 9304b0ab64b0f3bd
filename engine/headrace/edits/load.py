"""Bulk load of a state from a table: a new job starts from what another system knows.

The rows of a Parquet file, a folder of them, or a Delta table become entries of one state, typed as the code declares key and value.
All rows are checked before one is stored. Entries with the same keys take the place of those that are there; others stay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec
import pyarrow as pa

from headrace.api.graph import KeyBy
from headrace.api.states import MapState
from headrace.api.types import key_types
from headrace.config import JobConfig
from headrace.edits.edit import JobView, StateEdit
from headrace.edits.entries import DeclaredState, SetValue, as_declared
from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.facts import Edited
from headrace.names import counted
from headrace.plan.loader import plan_of
from headrace.records.columns import RecordReader
from headrace.records.keys import typed_key
from headrace.sources.delta.rows import table_rows
from headrace.sources.folder.format import UNREADABLE
from headrace.sources.folder.parquet import ParquetColumns
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.storage.table import LOG
from headrace.tables.changelog import Changelog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, TIMERS

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob

_AT_ONCE = 50_000
"""Rows that are converted and staged together: a process needs some 100 MB for them."""

_NAMED = 3
"""Rows that an error names."""


@dataclass(frozen=True, slots=True)
class LoadColumns:
    """Columns of the table that a load reads."""

    key: tuple[str, ...] = ()
    """Of the parts of the key; by default the fields of the operator's key, or `key` where a function computes it."""
    value: str = "value"
    """Of a value that is no record. The fields of a record are columns of their own."""
    entry: str = "entry"
    """Of the key within a map."""


@dataclass(frozen=True, slots=True)
class LoadEffect:
    """What a load does."""

    rows: int
    samples: tuple[tuple[str, str], ...]
    """Key and value of the first rows, as JSON."""


@dataclass(frozen=True, slots=True)
class LoadEntries(StateEdit[LoadEffect]):
    """Edit that sets one state of many keys, as `SetEntry` sets one. The job may be new: then this is its first change.

    Raises `ConfigError` for an operator or a state that the code does not declare, for a table that lacks a column, for rows that do
    not fit the declared types, for a key that comes twice, and for a table without rows; `StorageError` where it cannot be read.
    """

    operator: str
    state: str
    path: str
    columns: LoadColumns = field(default_factory=LoadColumns)
    why: str = ""

    kind: ClassVar[Kind] = Kind.EDIT
    crash_point: ClassVar[str] = "edit.staged"
    makes_job: ClassVar[bool] = True

    def look(self, job: JobView) -> LoadEffect:
        """See `StateEdit.look`."""
        rows, samples, known = 0, list[tuple[str, str]](), set[int]()
        for values in self._values(job):
            for key_json, value in values:
                identity = hash((key_json, encode(value.entry)))
                if identity in known:
                    within = "" if value.entry is None else f", entry {value.entry!r:.100}"
                    raise ConfigError(
                        f"{self.path} has the key {key_json.decode():.200}{within} twice. Nothing was changed."
                    )
                known.add(identity)
            samples += [
                (key_json.decode(), encode(value.value).decode()) for key_json, value in values[: _NAMED - len(samples)]
            ]
            rows += len(values)
        if not rows:
            raise ConfigError(f"{self.path} has no rows. Nothing was changed.")
        return LoadEffect(rows, tuple(samples))

    def additions(self, job: OpenJob, effect: LoadEffect) -> Iterator[tuple[str, pa.Table]]:  # noqa: ARG002 - it reads the table again
        """See `StateEdit.additions`."""
        declared = DeclaredState.of(plan_of(job.config.code), self.operator, self.state, job)
        changelog = Changelog(self.operator, job.next_id, job.last.max_parallelism)
        for values in self._values(job):
            process = declared.set(job, HashMapBackend(), values)
            for store, changes in process.changes():
                yield KEYED_STATE, changelog.values(store, changes)
            yield TIMERS, changelog.timers(process.timers.changes())

    def facts(self, job: OpenJob, effect: LoadEffect, rows: int) -> dict[str, Any]:  # noqa: ARG002 - rows of timers count, too
        """See `StateEdit.facts`."""
        return {
            "base": as_declared(job.last, plan_of(job.config.code), self.operator),
            "metrics": {"entries_edited": effect.rows},
            "note": f"state load of '{self.operator}.{self.state}' from {self.path}: {self.why}",
            "cause": Edited("load", self.operator, self.state),
        }

    def _values(self, job: JobView) -> Iterator[list[tuple[bytes, SetValue]]]:
        declared = DeclaredState.of(plan_of(job.config.code), self.operator, self.state, job)
        reader = _Reader.of(declared, self.columns, self.path)
        first = 0
        for rows in tables_at(job.config, self.path):
            for start in range(0, rows.num_rows, _AT_ONCE):
                yield reader.read(rows.slice(start, _AT_ONCE), first + start)
            first += rows.num_rows


@dataclass(frozen=True, slots=True)
class _Reader:
    """Converts rows to values of keys."""

    path: str
    key: KeyBy
    types: tuple[Any, ...]
    keys: RecordReader
    values: RecordReader
    is_record: bool
    entries: RecordReader | None

    @classmethod
    def of(cls, declared: DeclaredState, columns: LoadColumns, path: str) -> _Reader:
        """Take the types from the code. Raises `ConfigError` for types that no column can hold, and another number of key columns."""
        stage = declared.stage
        record, key = next(
            (record, key) for record, key in zip(stage.takes, stage.keys, strict=True) if key is not None
        )
        types = key_types(record, key)
        if types is None:
            msg = f"the key of operator '{stage.name}' is a function without the type that it returns: annotate it. Nothing was changed."
            raise ConfigError(msg)
        names = columns.key or key.fields or ("key",)
        if len(names) != len(types):
            msg = f"the key of operator '{stage.name}' has {counted(len(types), 'part')} ({key}), not {len(names)}. Nothing was changed."
            raise ConfigError(msg)
        is_record = isinstance(declared.type, type) and issubclass(declared.type, msgspec.Struct)
        value = RecordReader(declared.type, None) if is_record else _reader([declared.type], [columns.value])
        entry = _reader([declared.state.key_type], [columns.entry]) if isinstance(declared.state, MapState) else None
        return cls(path, key, types, _reader(types, names), value, is_record, entry)

    def read(self, rows: pa.Table, first: int) -> list[tuple[bytes, SetValue]]:
        """Return the values in rows, the first of which has this number. Raises `ConfigError` for rows that do not fit."""
        readers = [reader for reader in (self.keys, self.values, self.entries) if reader is not None]
        if missing := [name for reader in readers for name in reader.missing(rows.schema.names)]:
            has = ", ".join(rows.schema.names)
            raise ConfigError(f"{self.path} has no column {', '.join(missing)} (it has: {has}). Nothing was changed.")
        parts = [reader.read(rows) for reader in readers]
        if bad := sorted((row.position, row.error) for _, _, refused in parts for row in refused):
            raise ConfigError(self._refusal(bad, first))
        keys, values, *entries = ([_values_of(record) for record in records] for records, _, _ in parts)
        try:
            texts = [encode(typed_key(key[0] if len(key) == 1 else key, self.types, self.key)) for key in keys]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.path}: a key does not fit: {error}. Nothing was changed.") from error
        records, _, _ = parts[1]
        set_ = records if self.is_record else [value for (value,) in values]
        within = [entry for (entry,) in entries[0]] if entries else [None] * len(texts)
        return [(text, SetValue(value, "", entry)) for text, value, entry in zip(texts, set_, within, strict=True)]

    def _refusal(self, bad: Sequence[tuple[int, str]], first: int) -> str:
        some = "; ".join(f"row {first + position}: {error}" for position, error in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
        return f"{self.path}: {counted(len(bad), 'row does', 'rows do')} not fit: {some}{more}. Nothing was changed."


def _reader(types: Sequence[Any], columns: Sequence[str]) -> RecordReader:
    """Return the reader of values of some types, each in a column."""
    fields = [f"value{place}" for place in range(len(types))]
    record = msgspec.defstruct("Loaded", [*zip(fields, types, strict=True)])
    return RecordReader(record, None, names=tuple(zip(fields, columns, strict=True)))


def _values_of(record: msgspec.Struct | None) -> list[Any]:
    return [*msgspec.structs.astuple(record)] if record is not None else []


def tables_at(config: JobConfig, path: str) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, of the Parquet files in a folder, or of a Delta table, file by file.

    Raises `ConfigError` where there is nothing of this kind, `StorageError` where it cannot be read.
    """
    place = JobFolder.of(config).at(path)
    try:
        if path.endswith(".parquet"):
            yield ParquetColumns(place).read()
            return
        names = place.files()
        if any(name.startswith(f"{LOG}/") for name in names):
            yield from table_rows(place)
            return
        files = sorted(name for name in names if name.endswith(".parquet"))
        for name in files:
            yield ParquetColumns(place.below(name)).read()
    except UNREADABLE as error:
        msg = f"{path} cannot be read: {error}. Nothing was changed."
        raise StorageError(msg) from error
    if not files:
        msg = f"{path} is no Delta table and no folder with Parquet files. Nothing was changed."
        raise ConfigError(msg)
