"""Check of a source's rows: records and their event times, refused rows, and columns that do not fit.

Tasks check the rows that they process. The driver checks the same rows before it merges sources. Both use this check,
so a row that a task refuses never moves the watermark or a merge key.

A row that does not fit is an exception. Where no row of a file fits, the file or the record is wrong, and a run that
ends well would hide that. The verdict depends on the rows of the micro-batch and on the job's file alone, so a retry
repeats it.

Names and types of columns alone show problems that a run would refuse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from shlex import quote
from typing import Final, NamedTuple, cast

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.graph import SourceNode
from headrace.config import SourceConfig
from headrace.errors import SourceError
from headrace.names import counted
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import columns_of, near_names
from headrace.records.columns import NO_PROBLEMS, BadRow, RecordReader
from headrace.records.foreign_values import is_number
from headrace.records.record_columns import to_struct_array
from headrace.records.source_columns import EventTimeLimit, arrival_order
from headrace.records.source_values import count_doubtful, file_problem
from headrace.records.value_arrays import UnfitRecord
from headrace.sources.folder.format import DamagedFileError, FileRows, RowDecoder, located, wanted_columns


class CheckedRows(NamedTuple):
    """Rows of a source as columns of its record, null where a row is refused or skipped; their row kinds; and the refused rows."""

    columns: pa.StructArray
    kinds: pa.Int32Array
    bad: Sequence[BadRow]
    ahead: int = 0
    """Number of rows that are refused because their event times are too far ahead."""
    doubtful: int = 0
    """Number of times, in all fields, that look like seconds since 1970 or like the digits of a day."""


class RowCheck:
    """Check of the rows of one source, for one micro-batch."""

    def __init__(
        self, node: SourceNode, decoder: RowDecoder | None = None, limit: EventTimeLimit | None = None
    ) -> None:
        """Make the check, of rows that need a `decoder` if one is given; with a `limit`, rows with later event times are refused."""
        self._node, self._limit = node, limit
        self._reader = RecordReader(node.record, node.row_kind, node.needed_of_deletions, node.names, node.kinds)
        self._columns = columns_of(node.record, node.names)
        self._decoder = decoder
        self._place_of_event_time = node.record.__struct_fields__.index(node.event_time)
        self._kind_of_event_time = cast("ScalarKind", columns_of(node.record)[self._place_of_event_time].kind)

    def problem(self, table: pa.Table, header: str = "") -> str | None:
        """Return why a file with this table is refused as a whole; None if it is not. `header` says which columns the file has.

        A column is missing, there twice, or there under a name that is almost its own; or it has times that are finer than a millisecond.
        """
        if self._decoder is not None:
            return None
        names = table.schema.names
        if (near := near_names(table.schema, wanted_columns(self._node))) is not None:
            return near
        if missing := self._reader.missing(names):
            return f"no column {', '.join(missing)}{header}"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return f"more than one column {', '.join(twice)}"
        return next(self._file_problems(table), None)

    def _file_problems(self, table: pa.Table) -> Iterator[str]:
        for column in self._columns:
            if column.stored in table.schema.names and (why := file_problem(table[column.stored], column)) is not None:
                yield f"column {column.stored} {why}"

    def check(self, table: pa.Table, problems: Mapping[int, str] = NO_PROBLEMS) -> CheckedRows:
        """Return the rows of a table in its order; `problems` has the rows already known not to fit, with the reasons.

        Raises `pa.ArrowException` and `UnicodeDecodeError` for a file that cannot be read.
        """
        rows = self._records(table, problems)
        return rows if self._limit is None else self._within(self._limit, rows, table)

    def times(self, columns: pa.StructArray) -> pa.Int64Array:
        """Return the event time of each checked row (ms), null for a row that is refused or skipped, or that no reader has a key of."""
        times = self._kind_of_event_time.event_times(columns.field(self._place_of_event_time))
        masks = [columns.is_valid()] if columns.null_count else []
        if (has_key := self._has_key(columns)) is not None:
            masks.append(has_key)
        return pc.if_else(reduce(pc.and_, masks), times, pa.scalar(None, times.type)) if masks else times

    def _has_key(self, columns: pa.StructArray) -> pa.BooleanArray | None:
        """Return a mask of the rows of which a reader has a key: all others go to the quarantine, and are nowhere else. None: all rows."""
        masks = []
        for fields in self._node.keys or ():
            nullable = [values for name in fields if (values := columns.field(name)).null_count]
            if not nullable:
                return None
            masks.append(reduce(pc.and_, (values.is_valid() for values in nullable)))
        return reduce(pc.or_, masks) if masks else None

    def times_in_order(self, table: pa.Table, problems: Mapping[int, str] = NO_PROBLEMS) -> pa.Int64Array:
        """Return the event time of each row in arrival order (ms), null for a row that is refused or skipped.

        All are null if the file is refused as a whole. Raises as `check` does.
        """
        if self.problem(table) is not None:
            return pa.nulls(table.num_rows, pa.int64())
        order = arrival_order(table, self._node)
        times = self.times(self.check(table, problems).columns)
        return times if order is None else times.take(order)

    def _records(self, table: pa.Table, problems: Mapping[int, str]) -> CheckedRows:
        if self._decoder is None:
            return self._fitting(table, problems)
        decoded = self._decoder.read(table)
        rows = self._fitting(decoded.table, decoded.problems)
        bad = [row for row in rows.bad if row.position not in decoded.skipped]
        places = self._decoder.places(table, [row.position for row in bad])
        named = [BadRow(row.position, f"{place}: {row.error}") for row, place in zip(bad, places, strict=True)]
        return rows._replace(bad=named)

    def _fitting(self, table: pa.Table, problems: Mapping[int, str]) -> CheckedRows:
        columns, kinds, bad = self._reader.read_columns(table, problems)
        if columns is not None:
            return CheckedRows(columns, kinds, bad, doubtful=self._count_doubtful(table, columns))
        records, row_kinds, bad = self._reader.read(table, problems)
        errors = {row.position: row.error for row in bad}
        columns = _columns_of(records, self._node.record, errors)
        bad = [BadRow(position, errors[position]) for position in sorted(errors)]
        doubtful = self._count_doubtful(table, columns)
        return CheckedRows(columns, pa.array(row_kinds, pa.int32()), bad, doubtful=doubtful)

    def doubtful_times(self, columns: pa.StructArray) -> int:
        """Count the doubtful times of all columns of checked rows, as if they had no unit."""
        return sum(count_doubtful(columns.field(column.name)) for column in self._columns if column.is_milliseconds)

    def _count_doubtful(self, table: pa.Table, columns: pa.StructArray) -> int:
        """Count the doubtful times of columns that hold numbers; timestamps have a unit."""
        times = [column for column in self._columns if column.is_milliseconds and column.stored in table.schema.names]
        numbers = [column.name for column in times if is_number(table.schema.field(column.stored).type)]
        return sum(count_doubtful(columns.field(name)) for name in numbers)

    def _within(self, limit: EventTimeLimit, rows: CheckedRows, table: pa.Table) -> CheckedRows:
        """Refuse the rows beyond the limit."""
        times = self.times(rows.columns)
        latest = pc.max(times).as_py()
        if latest is None or latest <= limit.latest:
            return rows
        ahead = pc.fill_null(pc.greater(times, limit.latest), False)
        positions = pc.indices_nonzero(ahead).to_pylist()
        places = (
            [f"{place}: " for place in self._decoder.places(table, positions)]
            if self._decoder is not None
            else [""] * len(positions)
        )
        event_time = self._columns[self._place_of_event_time].stored
        bad = [
            BadRow(position, f"{place}{event_time} {limit.problem(times[position].as_py())}")
            for position, place in zip(positions, places, strict=True)
        ]
        columns = pc.if_else(ahead, pa.scalar(None, rows.columns.type), rows.columns)
        every = sorted([*rows.bad, *bad], key=lambda row: row.position)
        return CheckedRows(columns, rows.kinds, every, len(bad), rows.doubtful)


def event_times_of(rows: FileRows, node: SourceNode, limit: EventTimeLimit | None = None) -> pa.Int64Array:
    """Return the event times of a file's rows in arrival order (ms), null for a row that is refused, also one beyond the `limit`.

    Raises as `RowCheck.check` does.
    """
    return RowCheck(node, rows.decoder, limit).times_in_order(rows.table, rows.problems)


def _columns_of(
    records: list[msgspec.Struct | None], record: type[msgspec.Struct], errors: dict[int, str]
) -> pa.StructArray:
    """Return records as columns. A record that columns cannot store becomes null, with an error."""
    while True:
        try:
            return to_struct_array(records, record)
        except UnfitRecord as error:
            errors[error.index] = f"{error.field} {error.why}" if error.field else error.why
            records[error.index] = None


_MESSAGES: Final = 10
"""A micro-batch with fewer messages of a topic has no whole of which to judge: one bad message may have come alone."""


class RefusedRows(msgspec.Struct, frozen=True):
    """Number of rows of a file that a task has refused. `is_whole`: the file has no other row."""

    path: str
    rows: int
    is_whole: bool
    error: str
    """Reason of the first one."""


@dataclass(frozen=True, slots=True)
class QuarantineCheck:
    """Check of the rows that one source of a job refuses in a micro-batch."""

    job: str
    source: str
    config: SourceConfig

    def check(self, refused: Sequence[RefusedRows], taken: int) -> None:
        """Raise `SourceError` if too many of the `taken` rows are refused."""
        limit, rows = self.config.quarantine_limit, sum(file.rows for file in refused)
        if limit is not None:
            if not limit.allows(rows, taken):
                raise self._too_many(refused[0], rows, taken)
        elif whole := [*self._whole_files(refused, taken)]:
            raise self._nothing_fits(whole)

    def _whole_files(self, refused: Sequence[RefusedRows], taken: int) -> Iterator[RefusedRows]:
        if self.config.on_bad_file == "quarantine":
            return
        if self.config.kind.lands_files:
            rows = sum(file.rows for file in refused)
            if rows == taken >= _MESSAGES:
                yield msgspec.structs.replace(refused[0], path=self.config.place, rows=rows)
            return
        yield from (file for file in refused if file.is_whole)

    def _nothing_fits(self, files: Sequence[RefusedRows]) -> SourceError:
        first, what = files[0], self.config.kind.row
        rows = (
            f"the only {what} of {first.path} does"
            if first.rows == 1
            else f"all {first.rows:,} {what}s of {first.path} do"
        )
        more = f" The same holds for {len(files) - 1:,} more of its files." if len(files) > 1 else ""
        return SourceError(
            f"source '{self.source}': {rows} not fit. The first problem: {first.error}.{more} Nothing was taken in. Correct the "
            f"{'record' if self.config.kind.lands_files else 'file or the record'}, then run again.{self._how_written} To put them into the quarantine instead, set "
            f"'sources.{self.source}.max_quarantined', as a number of rows, a share such as 5%, or none.{self._passing_over(first)}"
        )

    def _passing_over(self, file: RefusedRows) -> str:
        if not self.config.kind.is_folder:
            return ""
        name = quote(file.path.removeprefix(f"{self.config.path}/"))
        return f" 'headrace input {self.job} --acknowledge {name}' passes the file over for good."

    def _too_many(self, first: RefusedRows, rows: int, taken: int) -> SourceError:
        return SourceError(
            f"source '{self.source}': refused {rows:,} of {counted(taken, 'row')} of this micro-batch, more than "
            f"'sources.{self.source}.max_quarantined: {self.config.max_quarantined}' allows. The first one is in {first.path}: "
            f"{first.error}. Nothing was taken in. Correct the files or the record, or raise the limit, then run again.{self._how_written}"
        )

    @property
    def _how_written(self) -> str:
        return self.config.kind.how_written(self.source)


class ColumnProblem(NamedTuple):
    """Reason why a column does not fit, as a sentence; and whether it refuses the file as a whole, or rows of it."""

    why: str
    of_file: bool


def column_problems(
    node: SourceNode, schema: pa.Schema, place: str, own: Sequence[str] = (), header: str = ""
) -> Iterator[ColumnProblem]:
    """Yield the problems of the columns of a file or table at a place. `own` are further columns that its rows will have.

    `header` says which columns the file has, for a message on one that is missing.

    A column of the type null fits: nothing is known of its values.
    """
    try:
        schema = located(schema.empty_table(), node).table.schema
    except DamagedFileError as error:
        yield ColumnProblem(f"{place}: {error}", of_file=True)
    near = near_names(schema, wanted_columns(node))
    if near is not None:
        yield ColumnProblem(f"{place}: {near}", of_file=True)
    lacking = RecordReader(node.record, node.row_kind, names=node.names).missing([*schema.names, *own])
    missing = [name for name in lacking if near is None or not near.startswith(f"{name} ")]
    if missing:
        why = f"{place} has no column {', '.join(missing)}, which {node.record.__name__} needs{header}"
        yield ColumnProblem(why, of_file=True)
    columns = {column.stored: column for column in columns_of(node.record, node.names)}
    for name, stored in zip(schema.names, schema.types, strict=True):
        kind = stored.value_type if pa.types.is_dictionary(stored) else stored
        if name in columns and not pa.types.is_null(kind) and not columns[name].kind.takes(kind):
            yield ColumnProblem(f"column {name} of {place} is {kind}, which is not {columns[name].kind}", of_file=False)


def column_changes(node: SourceNode, before: pa.Schema, after: pa.Schema) -> Iterator[str]:
    """Yield what has changed in the columns of a file or table, as parts of a sentence."""
    ours = {name for column in wanted_columns(node) for name in (column.stored, *column.path[:1])}
    for column in after:
        if column.name not in before.names:
            kind = "" if pa.types.is_null(column.type) else f" ({column.type})"
            missing = "" if column.name in ours else f", and {node.record.__name__} has no field for it"
            yield f"column {column.name}{kind} is new{missing}"
            continue
        old = before.field(before.get_all_field_indices(column.name)[0])
        if old.type != column.type:
            yield f"column {column.name} is {column.type}, and was {old.type}"
        elif column.nullable and not old.nullable:
            yield f"column {column.name} may be null, and could not be before"
    yield from (f"column {name} is gone" for name in before.names if name not in after.names)
