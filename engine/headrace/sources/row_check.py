"""Check of a source's rows: which of them are records, and their event times.

Tasks check the rows that they process. The driver checks the same rows before it merges sources. Both use this check, so a row that a
task refuses never moves the watermark or a merge key.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import SourceNode
from headrace.plan.column_names import near_names
from headrace.plan.column_types import columns_of
from headrace.plan.columns import NO_FAULTS, BadRow, RecordReader
from headrace.plan.event_time_limit import EventTimeLimit
from headrace.plan.record_columns import UnfitRecord, to_struct_array
from headrace.plan.source_columns import arrival_order
from headrace.plan.source_values import count_doubtful, is_number, too_fine
from headrace.sources.file_format import wanted_columns
from headrace.sources.messages import MessageReader, Messages, message_places


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

    def __init__(self, node: SourceNode, messages: Messages | None = None, limit: EventTimeLimit | None = None) -> None:
        """Make the check. `messages` has the settings of a topic; with a `limit`, rows with later event times are refused."""
        self._node, self._limit = node, limit
        self._reader = RecordReader(node.record, node.row_kind, node.needed_of_deletions)
        self._messages = None if messages is None else MessageReader(node, messages)
        self._place_of_event_time = node.record.__struct_fields__.index(node.event_time)

    def problem(self, table: pa.Table) -> str | None:
        """Return why a file with this table is refused as a whole; None if it is not.

        A column is missing, there twice, or there under a name that is almost its own; or it has times that are finer than a millisecond.
        """
        if self._messages is not None:
            return None
        names = table.schema.names
        if (near := near_names(table.schema, wanted_columns(self._node))) is not None:
            return near
        if missing := self._reader.missing(names):
            return f"no column {', '.join(missing)}"
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            return f"more than one column {', '.join(twice)}"
        return next(self._too_fine(table), None)

    def _too_fine(self, table: pa.Table) -> Iterator[str]:
        for column in columns_of(self._node.record):
            if column.name in table.schema.names and (why := too_fine(table[column.name], column)) is not None:
                yield f"column {column.name} {why}"

    def check(self, table: pa.Table, faults: Mapping[int, str] = NO_FAULTS) -> CheckedRows:
        """Return the rows of a table in its order; `faults` has the rows already known not to fit, with the reasons.

        Raises `pa.ArrowException` and `UnicodeDecodeError` for a file that cannot be read.
        """
        rows = self._records(table, faults)
        return rows if self._limit is None else self._within(self._limit, rows, table)

    def times(self, columns: pa.StructArray) -> pa.Int64Array:
        """Return the event time of each checked row (ms), null for a row that is refused or skipped."""
        times = columns.field(self._place_of_event_time)
        return pc.if_else(columns.is_valid(), times, pa.scalar(None, times.type)) if columns.null_count else times

    def times_in_order(self, table: pa.Table, faults: Mapping[int, str] = NO_FAULTS) -> pa.Int64Array:
        """Return the event time of each row in arrival order (ms), null for a row that is refused or skipped.

        All are null if the file is refused as a whole. Raises as `check` does.
        """
        if self.problem(table) is not None:
            return pa.nulls(table.num_rows, pa.int64())
        order = arrival_order(table, self._node)
        times = self.times(self.check(table, faults).columns)
        return times if order is None else times.take(order)

    def _records(self, table: pa.Table, faults: Mapping[int, str]) -> CheckedRows:
        if self._messages is None:
            return self._fitting(table, faults)
        messages = self._messages.read(table)
        rows = self._fitting(messages.table, messages.faults)
        bad = [row for row in rows.bad if row.position not in messages.skipped]
        places = message_places(table, [row.position for row in bad])
        named = [BadRow(row.position, f"{place}: {row.error}") for row, place in zip(bad, places, strict=True)]
        return rows._replace(bad=named)

    def _fitting(self, table: pa.Table, faults: Mapping[int, str]) -> CheckedRows:
        columns, kinds, bad = self._reader.read_columns(table, faults)
        if columns is not None:
            return CheckedRows(columns, kinds, bad, doubtful=self._count_doubtful(table, columns))
        records, row_kinds, bad = self._reader.read(table, faults)
        errors = {row.position: row.error for row in bad}
        columns = _columns_of(records, self._node.record, errors)
        bad = [BadRow(position, errors[position]) for position in sorted(errors)]
        doubtful = self._count_doubtful(table, columns)
        return CheckedRows(columns, pa.array(row_kinds, pa.int32()), bad, doubtful=doubtful)

    def doubtful_times(self, columns: pa.StructArray) -> int:
        """Count the doubtful times of all columns of checked rows, as if they had no unit."""
        return sum(
            count_doubtful(columns.field(column.name)) for column in columns_of(self._node.record) if column.is_time
        )

    def _count_doubtful(self, table: pa.Table, columns: pa.StructArray) -> int:
        """Count the doubtful times of columns that hold numbers; timestamps have a unit."""
        names = [column.name for column in columns_of(self._node.record) if column.is_time]
        numbers = [name for name in names if name in table.schema.names and is_number(table.schema.field(name).type)]
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
            [f"{place}: " for place in message_places(table, positions)] if self._messages else [""] * len(positions)
        )
        bad = [
            BadRow(position, f"{place}{self._node.event_time} {limit.problem(times[position].as_py())}")
            for position, place in zip(positions, places, strict=True)
        ]
        columns = pc.if_else(ahead, pa.scalar(None, rows.columns.type), rows.columns)
        every = sorted([*rows.bad, *bad], key=lambda row: row.position)
        return CheckedRows(columns, rows.kinds, every, len(bad), rows.doubtful)


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
