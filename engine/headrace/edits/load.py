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
import pyarrow.compute as pc

from headrace.api.graph import KeyBy
from headrace.api.records import Timestamp
from headrace.api.states import ListState, MapState
from headrace.api.types import key_types
from headrace.config import JobConfig
from headrace.edits.edit import HandEdit, JobView
from headrace.edits.entries.declared import DeclaredState, SetValue, as_declared
from headrace.edits.rewrite import removed
from headrace.errors import ConfigError, StorageError
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
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.table import LOG
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
    time: str | None = None
    """Of the event time, from which the lifetime of a value counts; None: the job's watermark."""


@dataclass(frozen=True, slots=True)
class LoadEffect:
    """What a load does."""

    rows: int
    samples: tuple[tuple[str, str], ...]
    """Key and value of the first rows, as JSON."""


@dataclass(frozen=True, slots=True)
class LoadEntries(HandEdit[LoadEffect]):
    """Edit that sets one state of many keys, as `SetEntry` sets one. The job may be new: then this is its first change.

    Raises `ConfigError` for an operator or a state that the code does not declare, for a table that lacks a column, for rows that do
    not fit the declared types, for a key that comes twice, and for a table without rows; `StorageError` where it cannot be read.
    """

    operator: str
    state: str
    path: str
    columns: LoadColumns = field(default_factory=LoadColumns)
    why: str = ""

    makes_job: ClassVar[bool] = True

    def look(self, job: JobView) -> LoadEffect:
        """See `StateEdit.look`."""
        rows, samples = 0, list[tuple[str, str]]()
        for values in self._values(job):
            wanted = _NAMED - len(samples)
            samples += [(key_json.decode(), encode(value.value).decode()) for key_json, value in values[:wanted]]
            rows += len(values)
        if not rows:
            raise ConfigError(f"{self.path} has no rows. Nothing was changed.")
        return LoadEffect(rows, tuple(samples))

    def additions(self, job: OpenJob, effect: LoadEffect) -> Iterator[tuple[str, pa.Table]]:
        """See `StateEdit.additions`. The table is read again, and checked again: somebody may have changed it."""
        declared = self._declared(job)
        changelog = self.changelog(job, self.operator)
        rows, keys = 0, list[bytes]()
        for values in self._values(job):
            process = declared.set(job, HashMapBackend(), values)
            for store, changes in process.changes():
                yield KEYED_STATE, changelog.values(store, changes)
            yield TIMERS, changelog.timers(process.timers.changes())
            rows += len(values)
            keys += [key_json for key_json, _ in values] if isinstance(declared.state, ListState) else ()
        if rows != effect.rows:
            raise ConfigError(f"{self.path} was changed while it was read. Nothing was changed in the job.")
        for part in (
            job.view(KEYED_STATE)
            .of(self.operator, states=self.state)
            .ranges(KeyGroupRange.all_of(job.last.max_parallelism))
        ):
            live = part.live()
            yield KEYED_STATE, removed(KEYED_STATE, live.filter(_of_lists(live, keys)), job.next_id)

    def facts(self, job: OpenJob, effect: LoadEffect, rows: int) -> dict[str, Any]:  # noqa: ARG002 - rows of timers count, too
        """See `StateEdit.facts`."""
        return {
            "base": as_declared(job.last, plan_of(job.config.code), self.operator),
            "metrics": {"entries_edited": effect.rows},
            "note": f"state load of '{self.operator}.{self.state}' from {self.path}: {self.why}",
            "cause": Edited("load", self.operator, self.state),
        }

    def _declared(self, job: JobView) -> DeclaredState:
        return DeclaredState.of(plan_of(job.config.code), self.operator, self.state, job)

    def _values(self, job: JobView) -> Iterator[list[tuple[bytes, SetValue]]]:
        """Yield the values of all keys, in parts. Raises `ConfigError` as the edit does."""
        declared = self._declared(job)
        if self.columns.time is None and declared.needs_times(job):
            msg = (
                f"the lifetime of state '{self.state}' counts event time, and the job has seen none yet: name the column with the event time of "
                "each row (--time). Nothing was changed."
            )
            raise ConfigError(msg)
        reader = _Reader.of(declared, self.columns, self.path)
        first, known = 0, set[int]()
        for rows in tables_at(job.config, self.path):
            for start in range(0, rows.num_rows, _AT_ONCE):
                values = reader.read(rows.slice(start, _AT_ONCE), first + start)
                self._check_keys(values, known)
                yield values
            first += rows.num_rows

    def _check_keys(self, values: Sequence[tuple[bytes, SetValue]], known: set[int]) -> None:
        for key_json, value in values:
            identity = hash((key_json, encode(value.entry)))
            if identity in known:
                within = "" if value.entry is None else f", entry {value.entry!r:.100}"
                raise ConfigError(
                    f"{self.path} has the key {key_json.decode():.200}{within} twice. Nothing was changed."
                )
            known.add(identity)


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
    times: RecordReader | None

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
        times = None if columns.time is None else _reader([Timestamp], [columns.time])
        return cls(path, key, types, _reader(types, names), value, is_record, entry, times)

    def read(self, rows: pa.Table, first: int) -> list[tuple[bytes, SetValue]]:
        """Return the values in rows, the first of which has this number. Raises `ConfigError` for rows that do not fit."""
        readers = [reader for reader in (self.keys, self.values, self.entries, self.times) if reader is not None]
        if missing := [name for reader in readers for name in reader.missing(rows.schema.names)]:
            has = ", ".join(rows.schema.names)
            raise ConfigError(f"{self.path} has no column {', '.join(missing)} (it has: {has}). Nothing was changed.")
        parts = [reader.read(rows) for reader in readers]
        bad = {row.position: row.error for _, _, refused in parts for row in refused}
        records = iter([records for records, _, _ in parts])
        keys, values = map(_values_of, next(records)), [self._value_of(record) for record in next(records)]
        bad |= {
            at: "the value is null: delete the key instead"
            for at, value in enumerate(values)
            if value is None and at not in bad
        }
        if bad:
            raise ConfigError(self._refusal(sorted(bad.items()), first))
        try:
            texts = [encode(typed_key(key[0] if len(key) == 1 else key, self.types, self.key)) for key in keys]
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{self.path}: a key does not fit: {error}. Nothing was changed.") from error
        nothing = [None] * len(texts)
        within = nothing if self.entries is None else [_values_of(record)[0] for record in next(records)]
        times = nothing if self.times is None else [_values_of(record)[0] for record in next(records)]
        columns = zip(texts, values, within, times, strict=True)
        return [(text, SetValue(value, "", entry, time)) for text, value, entry, time in columns]

    def _value_of(self, record: msgspec.Struct | None) -> Any:
        return record if self.is_record or record is None else _values_of(record)[0]

    def _refusal(self, bad: Sequence[tuple[int, str]], first: int) -> str:
        some = "; ".join(f"row {first + position}: {error}" for position, error in bad[:_NAMED])
        more = f"; and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
        return f"{self.path}: {counted(len(bad), 'row does', 'rows do')} not fit: {some}{more}. Nothing was changed."


def _reader(types: Sequence[Any], columns: Sequence[str]) -> RecordReader:
    """Return the reader of values of some types, each in a column."""
    fields = [
        name if name.isidentifier() and not name.startswith("_") else f"value{place}"
        for place, name in enumerate(columns)
    ]
    record = msgspec.defstruct("Row", [*zip(fields, types, strict=True)])
    return RecordReader(record, None, names=tuple(zip(fields, columns, strict=True)))


def _values_of(record: msgspec.Struct | None) -> list[Any]:
    return [*msgspec.structs.astuple(record)] if record is not None else []


def _is_hidden(name: str) -> bool:
    """Return whether a file or one of its folders is one that Spark leaves out: it begins with a dot or an underscore, and is no partition."""
    return any(part[0] == "." or (part[0] == "_" and "=" not in part) for part in name.split("/"))


def _of_lists(live: pa.Table, keys: Sequence[bytes]) -> pa.Array:
    """Return a mask of the elements of these keys' lists, outside of namespaces: others take their place."""
    return pc.and_(
        pc.is_in(live["key"], pa.array([key.decode() for key in keys], pa.string())), live["namespace"].is_null()
    )


def tables_at(config: JobConfig, path: str) -> Iterator[pa.Table]:
    """Yield the rows of a Parquet file, of the Parquet files in a folder, or of a Delta table, file by file.

    Raises `ConfigError` where there is nothing of this kind, `StorageError` where it cannot be read.
    """
    place = JobFolder.of(config).at(path)
    try:
        folder, _, own = path.rpartition("/")
        if own.endswith(".parquet") and own not in place.at(folder).folders():
            yield ParquetColumns(place).read()
            return
        names = place.files()
        if any(name.startswith(f"{LOG}/") for name in names):
            yield from table_rows(place)
            return
        files = sorted(name for name in names if name.endswith(".parquet") and not _is_hidden(name))
        for name in files:
            yield ParquetColumns(place.below(name)).read()
    except UNREADABLE as error:
        msg = f"{path} cannot be read: {error}. Nothing was changed."
        raise StorageError(msg) from error
    if not files:
        msg = f"{path} is no Delta table and no folder with Parquet files. Nothing was changed."
        raise ConfigError(msg)
