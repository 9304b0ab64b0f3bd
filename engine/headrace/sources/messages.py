"""Decoding of a topic's messages to records: JSON values, checked one by one.

A value that is not JSON, or does not fit the record, is a bad row. Members of an object that the record lacks are ignored. A
time is a number of milliseconds, or ISO 8601 text, in UTC unless it names a zone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api import RowKind, SourceNode
from headrace.plan.column_types import Column, columns_of
from headrace.plan.columns import BadRow, record_error
from headrace.plan.record_columns import UnfitRecord, to_struct_array
from headrace.plan.source_values import fitting
from headrace.tables.files import Storage, read_parquet

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_KINDS: Final = {kind.symbol: int(kind) for kind in RowKind}
_UNDECODABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, RecursionError, OverflowError)
"""Errors of decoding a value that does not fit, or that a `__post_init__` refuses."""


class Messages(msgspec.Struct, frozen=True):
    """Settings for decoding the rows of a landed file."""

    on_tombstone: Literal["quarantine", "skip"] = "quarantine"


def read_messages(uri: str, storage: Storage = None) -> pa.Table:
    r"""Read a landed file. Keys and values are text; a byte that is not UTF-8 is written as `\xff`."""
    return text_columns(read_parquet(uri, storage))


def text_columns(table: pa.Table) -> pa.Table:
    """Return messages with their keys and values as text."""
    for name in ("key", "value"):
        table = table.set_column(table.schema.names.index(name), name, _as_text(table[name]))
    return table


def _as_text(values: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        texts = (None if value is None else value.decode(errors="backslashreplace") for value in values.to_pylist())
        return pa.chunked_array([pa.array(texts, pa.string())])


class MessageReader:
    """Decoder of one source's messages."""

    def __init__(self, node: SourceNode, messages: Messages) -> None:
        """Make a decoder to the record of `node`."""
        self._record = node.record
        self._columns = columns_of(node.record)
        self._row_kind = node.row_kind
        self._skips = messages.on_tombstone == "skip"
        self._decode = msgspec.json.Decoder(node.record).decode
        self._decode_kind = None if node.row_kind is None else _member_decoder(node.row_kind)

    def read_columns(self, table: pa.Table) -> tuple[pa.StructArray, pa.Int32Array, list[BadRow]]:
        """Return the records (in the form of `to_struct_array`), the row kinds, and the rows that do not fit.

        `table` comes from `read_messages`. A row that does not fit is null in the result, like a tombstone that is skipped.
        """
        errors: dict[int, str] = {}
        records: list[msgspec.Struct | None] = []
        kinds: list[int] = []
        for position, value in enumerate(table["value"].to_pylist()):
            record, kind = None, 0
            try:
                if value is not None:
                    record = self._record_of(value)
                    kind = self._kind_of(value)
                elif not self._skips:
                    errors[position] = "the message has no value (a tombstone)"
            except _UNDECODABLE as error:
                record = None
                errors[position] = str(error) or type(error).__name__
            except BaseException as error:
                raise record_error(self._record, value, error) from error
            records.append(record)
            kinds.append(kind)
        columns = _fit(records, self._record, errors)
        places = message_places(table, sorted(errors))
        bad = [BadRow(at, f"{place}: {errors[at]}") for at, place in zip(sorted(errors), places, strict=True)]
        return columns, pa.array(kinds, pa.int32()), bad

    def _record_of(self, value: str) -> msgspec.Struct:
        try:
            return self._decode(value)
        except msgspec.ValidationError:
            raw = msgspec.json.decode(value)
            if not isinstance(raw, dict):
                raise
            timed = _with_times(raw, self._columns)
            if timed == raw:
                raise
            return msgspec.convert(timed, self._record)

    def _kind_of(self, value: str) -> int:
        if self._decode_kind is None:
            return int(RowKind.INSERT)
        symbol = self._decode_kind(value)
        if not isinstance(symbol, str) or symbol not in _KINDS:
            msg = f"{self._row_kind} is {symbol!r:.200}, not one of {', '.join(_KINDS)}"
            raise ValueError(msg)
        return _KINDS[symbol]


def _member_decoder(name: str) -> Callable[[str], Any]:
    """Return a decoder of one member of an object; it returns None where the object lacks the member."""
    kind = msgspec.defstruct("Member", [("value", Any, None)], rename={"value": name})
    decoder = msgspec.json.Decoder(kind)
    return lambda text: decoder.decode(text).value  # type: ignore[attr-defined]  # a struct made here


def _milliseconds(value: Any) -> Any:
    """Convert ISO 8601 text to milliseconds; return any other value unchanged."""
    if not isinstance(value, str):
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        return value
    return ((time if time.tzinfo is not None else time.replace(tzinfo=UTC)) - _EPOCH) // _MILLISECOND


def _with_times(raw: dict[str, Any], columns: Sequence[Column]) -> dict[str, Any]:
    """Return an object with the texts of its time columns converted to milliseconds."""
    by_name = {column.name: column for column in columns}
    return {name: _timed(value, by_name[name]) if name in by_name else value for name, value in raw.items()}


def _timed(value: Any, column: Column) -> Any:
    if column.is_time:
        return _milliseconds(value)
    if column.record is not None and isinstance(value, dict):
        return _with_times(value, column.parts)
    if isinstance(value, list) and len(column.parts) == 1:
        return [_timed(item, column.parts[0]) for item in value]
    if isinstance(value, dict) and len(column.parts) > 1:
        return {key: _timed(item, column.parts[1]) for key, item in value.items()}
    return value


def _fit(records: list[msgspec.Struct | None], record: type[msgspec.Struct], errors: dict[int, str]) -> pa.StructArray:
    """Return the records as columns; a record that columns cannot store becomes null, with an error."""
    while True:
        try:
            columns = to_struct_array(records, record)
        except UnfitRecord as error:
            unfit = {error.index: f"{error.field} {error.why}" if error.field else error.why}
        else:
            if not (unfit := _out_of_range(columns, record)):
                return columns
        errors |= unfit
        for position in unfit:
            records[position] = None


def _out_of_range(columns: pa.StructArray, record: type[msgspec.Struct]) -> dict[int, str]:
    """Return the faults of times outside the years 1 to 9999, by position; all types fit already."""
    positions = pc.indices_nonzero(columns.is_valid()).to_pylist()
    present = columns.drop_null()
    unfit: dict[int, str] = {}
    for column in columns_of(record):
        _, faults = fitting(pa.chunked_array([present.field(column.name)]), column)
        for place, fault in faults.items():
            unfit.setdefault(positions[place], f"{column.name}{fault.path} {fault.why}")
    return unfit


def message_places(table: pa.Table, positions: Sequence[int]) -> list[str]:
    """Return where messages are in their topic, as TOPIC-PARTITION@OFFSET."""
    chosen = table.select(["topic", "partition", "offset"]).take(pa.array(positions, pa.int64()))
    places = zip(*(column.to_pylist() for column in chosen.columns), strict=True)
    return [f"{topic}-{partition}@{offset}" for topic, partition, offset in places]
