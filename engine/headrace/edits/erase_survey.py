"""Survey before an erasure: the key's rows in state, files and sinks, and how long the files stay.

Headrace only reports rows in sinks; the owners of the sinks delete them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import clock, threads
from headrace.commit.job_tables import Versions
from headrace.config import JobConfig
from headrace.edits.erased_key import ErasedKey, FileWithKey, all_files, notes_with_key, other_files
from headrace.log.branches import Branches
from headrace.log.checkpoint import Checkpoint
from headrace.log.log import CheckpointLog
from headrace.log.marks import erased_ids, live_savepoints, purged_ids
from headrace.state.key_groups import KeyGroupRange
from headrace.storage.predicate import OneOf, literal
from headrace.storage.refusals import doing
from headrace.storage.table import LOG, FileTrace, Snapshot, TableMissingError
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import last_rows
from headrace.tables.schemas import ALL_TABLES, tables_in
from headrace.tables.view import TableView

_HOUR = 3_600_000
_AT_ONCE = 16
"""Number of files read in parallel."""


class FoundRows(NamedTuple):
    """Numbers of rows of one key of an operator in a state table: all rows, and live rows."""

    table: str
    operator: str
    key: str
    rows: int
    live: int


@dataclass(frozen=True)
class ErasureSurvey:
    """Rows and files of a key, as of the versions of one checkpoint."""

    config: JobConfig
    checkpoints: Sequence[Checkpoint]
    rows: Sequence[FoundRows]
    """Rows that the erasure removes from the present state."""

    mentions: Sequence[FoundRows]
    """Rows of other keys that have the key in their text, and stay."""

    files: Mapping[str, frozenset[str]]
    """Data files with rows of the key, by table; paths relative to its folder, also of files that no version names."""

    traces: Mapping[str, FileTrace]
    """Log entries that name these files, by table."""

    others: Sequence[FileWithKey] = ()
    """Files of the job's folder that have the key in their text, and are not among `files`."""

    notes: Sequence[str] = ()
    """Checkpoints and branches whose notes name the key."""

    @cached_property
    def holders(self) -> list[Checkpoint]:
        """Return checkpoints whose versions have rows of the key, oldest first, without purged ones."""
        purged = purged_ids(self.checkpoints)
        return [c for c in self.checkpoints if c.checkpoint_id not in purged and self._holds(c)]

    @property
    def unrecorded(self) -> set[int]:
        """Return the ids of `holders` that no erasure has recorded."""
        return {checkpoint.checkpoint_id for checkpoint in self.holders} - erased_ids(self.checkpoints)

    @property
    def savepoints(self) -> list[Checkpoint]:
        """Return the savepoints among `holders`. They keep the bytes until they are dropped."""
        ids = {checkpoint.checkpoint_id for checkpoint in self.holders}
        return [savepoint for savepoint in live_savepoints(self.checkpoints) if savepoint.checkpoint_id in ids]

    @property
    def is_empty(self) -> bool:
        """Return whether the survey has no rows of the key to erase."""
        return not self.rows and not any(self.files.values()) and not self.others

    @property
    def gone_after(self) -> int:
        """Return when a vacuum may delete the files if the key is erased now (ms). Savepoints may keep them longer."""
        now = clock.now()
        if self.rows or not self.holders:
            return now + self.config.retention.hours * _HOUR
        last = self.holders[-1].checkpoint_id
        next_one = next((c.committed_at for c in self.checkpoints if c.checkpoint_id > last), now)
        return next_one + self.config.retention.hours * _HOUR

    @property
    def local_folders(self) -> list[Path]:
        """Return folders of this machine with local copies that may have the key; of all operators if no operator is known."""
        folder = self.config.local_folder
        of_holders = {name for holder in self.holders for name, facts in holder.operators.items() if facts.local_copies}
        names = {rows.operator for rows in self.rows} or of_holders
        return [folder / name for name in sorted(names) if (folder / name).is_dir()]

    def _holds(self, checkpoint: Checkpoint) -> bool:
        return any(checkpoint.versions.get(table) in trace.versions for table, trace in self.traces.items())


def survey(
    config: JobConfig,
    checkpoints: Sequence[Checkpoint],
    versions: Versions,
    key: ErasedKey,
    *,
    in_all_texts: bool = False,
) -> ErasureSurvey:
    """Find the rows of a key in the tables at `versions`, in all files of their folders, and in all other files of the job's folder.

    Writes nothing. With `in_all_texts`, also looks for the key in the text of rows of other keys, in all files; not for a number, which
    may mean anything there. Raises `StorageError` when a file that these versions name cannot be read.
    """
    tables = [_RowsOfKey(config, table, versions[table], key) for table in tables_in(versions)]
    groups = checkpoints[-1].max_parallelism
    rows, mentions = [], []
    for table in tables:
        own, others = table.rows(groups)
        rows += own
        mentions += others
    files = {table.table: table.files() for table in tables}
    surveyed = {f"{table}/{name}" for table, names in files.items() for name in names}
    is_whole = in_all_texts and not key.is_number
    with_key = all_files(config, key) if is_whole else other_files(config, key, tables_in(versions))
    return ErasureSurvey(
        config,
        checkpoints,
        rows,
        mentions,
        files,
        traces_of(config, files),
        [file for file in with_key if file.path not in surveyed],
        notes_with_key(_notes(config, checkpoints), key),
    )


def _notes(config: JobConfig, checkpoints: Sequence[Checkpoint]) -> list[tuple[str, str | None]]:
    """Return the notes of all checkpoints and branches, by name."""
    of_checkpoints = [(f"checkpoint {checkpoint.checkpoint_id}", checkpoint.note) for checkpoint in checkpoints]
    return [*of_checkpoints, *((f"branch '{branch.name}'", branch.note) for branch in Branches(config).all)]


def traces_of(config: JobConfig, files: Mapping[str, frozenset[str]]) -> dict[str, FileTrace]:
    """Return the log entries that name the files, by table."""
    traces = {}
    for table, names in files.items():
        uri = f"{config.job_folder}/{table}"
        traces[table] = JobFolder.of(config).at(uri).table().trace(names) if names else _NOWHERE
    return traces


_NOWHERE = FileTrace(frozenset(), frozenset())


def chunks(view: TableView, key_groups: int) -> Iterator[pa.Table]:
    """Yield all changes of a state table. A chunk has all changes of an entry."""
    for part in view.ranges(KeyGroupRange.all_of(key_groups)):
        yield part.changes()


class _RowsOfKey:
    """Rows and files of a key in one state table."""

    def __init__(self, config: JobConfig, table: str, version: int, key: ErasedKey) -> None:
        self.table = table
        self._key = key
        folder = JobFolder.of(config)
        self._place = folder.below(table)
        self._view = folder.view(table, version)

    def rows(self, key_groups: int) -> tuple[list[FoundRows], list[FoundRows]]:
        """Return the rows to erase, and the rows that only mention the key."""
        own: Counter[tuple[str, str, bool]] = Counter()
        others: Counter[tuple[str, str, bool]] = Counter()
        for changes in chunks(self._view, key_groups):
            erased = self._key.erased(self.table, changes)
            rest = changes.filter(pc.invert(erased))
            _count(own, changes.filter(erased), is_live=False)
            _count(own, last_rows(changes.filter(erased), ALL_TABLES[self.table]), is_live=True)
            named = rest.filter(self._key.mentions(rest))
            if named.num_rows:
                _count(others, named, is_live=False)
                live = last_rows(rest, ALL_TABLES[self.table])
                _count(others, live.filter(self._key.mentions(live)), is_live=True)
        return [*self._as_found(own)], [*self._as_found(others)]

    def _as_found(self, counted: Counter[tuple[str, str, bool]]) -> Iterator[FoundRows]:
        for operator, key in sorted({(operator, key) for operator, key, _ in counted}):
            rows, live = counted[operator, key, False], counted[operator, key, True]
            yield FoundRows(self.table, operator, key, rows, live)

    def files(self) -> frozenset[str]:
        """Return files of the table's folder with rows of the key, and unreadable files that no version names."""
        present, named = self._place.files(), self._view.files()
        listed = sorted(file for file in present if file.endswith(".parquet") and not _is_log(file))
        tainted_files: list[str] = []
        for at in range(0, len(listed), _AT_ONCE):
            batch = listed[at : at + _AT_ONCE]
            holds = threads.in_parallel(lambda file: self._holds(file, is_named=file in named), batch)
            tainted_files += [file for file, it_does in zip(batch, holds, strict=True) if it_does]
        return frozenset(tainted_files)

    def _holds(self, file: str, *, is_named: bool) -> bool:
        with doing(f"to read {self._place.within(file)}"):
            try:
                with self._place.open(file) as source:
                    return self._has_rows(pq.ParquetFile(source))
            except FileNotFoundError:
                if is_named:
                    raise
                return False  # a vacuum has deleted the file since the folder was listed
            except pa.ArrowInvalid:
                return True  # truncated: an attempt died while it wrote the file, so its content is unknown

    def _has_rows(self, parquet: pq.ParquetFile) -> bool:
        present = set(parquet.schema_arrow.names)
        columns = [name for name in self._key.columns(self.table) if name in present]
        for number in range(parquet.num_row_groups):
            rows = parquet.read_row_group(number, columns=columns, use_threads=False)
            if pc.any(self._key.traces(self.table, rows)).as_py():
                return True
        return False


def _count(counted: Counter[tuple[str, str, bool]], rows: pa.Table, *, is_live: bool) -> None:
    """Count rows by operator and key."""
    pairs = zip(rows["operator"].to_pylist(), rows["key"].to_pylist(), strict=True)
    counted.update((operator, key, is_live) for operator, key in pairs)


def _is_log(file: str) -> bool:
    return file.startswith(f"{LOG}/")


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
    log = CheckpointLog(JobFolder.of(config))
    tables = log.resolve(config).sink_tables
    for name, sink in sorted(config.sinks.items()):
        primary_key = tables[name].key if name in tables else ()
        try:
            table = JobFolder.of(config).at(sink.table_path).table().latest()
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
