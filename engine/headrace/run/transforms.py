"""Transforms without state, and errors of the user code in them.

Transforms without state: apply map, filter, flat_map and assign_event_time to records.
"""

from __future__ import annotations

import operator as operators
import traceback
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import msgspec

from headrace.api.graph import Additions, AssignEventTime, DropUpdateBefore, Filter, FlatMap, Map, StatelessTransform
from headrace.api.records import RowKind
from headrace.errors import SinkMismatchError, UserFunctionError
from headrace.execution.element import Emitted, make_emitted, shown_record
from headrace.execution.process_context import LATEST_TIMER
from headrace.execution.record_copies import copied, is_immutable
from headrace.interrupts import is_interrupt
from headrace.records.column_kinds.kind import ScalarKind
from headrace.records.column_types import columns_of
from headrace.records.order import output_order
from headrace.records.value_arrays import UnfitPartition, UnfitRecord
from headrace.run.rows import ColumnarRows, Pipe, Rows, as_records


def called(transform: str, function: Callable[[Any], Any], record: msgspec.Struct) -> Any:
    """Return the result of a transform's function on a record.

    Raises `UserFunctionError` with transform, record and traceback when the function fails, or tries to end the process.
    """
    try:
        return function(record)
    except BaseException as error:
        if is_interrupt(error):
            raise
        raise failed(transform, record, "".join(traceback.format_exception(error))) from error


def failed(transform: str, record: msgspec.Struct, why: str) -> UserFunctionError:
    """Return the error of a transform at a record."""
    return UserFunctionError(transform, None, shown_record(record), why)


@contextmanager
def refusing_unfit(maker: str, emitted: Sequence[Emitted], sink: str | None = None) -> Iterator[None]:
    """Raise `UserFunctionError` when columns cannot store a record that the operator or transform `maker` has made.

    Raises `SinkMismatchError` where a partition of the `sink` cannot have its name.
    """
    try:
        yield
    except UnfitPartition as error:
        msg = (
            f"sink '{sink}' is partitioned by {error.field}, and a record of '{maker}' has no name for a partition: {error.field} "
            f"{error.why}. Nothing of this micro-batch was committed. Give such records another text or None before the sink, or filter "
            f"them out; or partition it by another column.\n  record {emitted[error.index].record!r:.500}"
        )
        raise SinkMismatchError(msg) from error
    except UnfitRecord as error:
        why = f"it emitted this record, and {error.field or 'it'} {error.why}. {error.advice}"
        raise UserFunctionError(maker, None, f"{emitted[error.index].record!r:.500}", why) from error


@dataclass(frozen=True, slots=True)
class Transform(Pipe):
    """Pipe through a transform without state."""

    transform: StatelessTransform

    def take(self, rows: Rows, /) -> None:
        """Pass on the results of the transform. Raises `UserFunctionError` as `applied` does."""
        if isinstance(self.transform, DropUpdateBefore) and isinstance(rows, ColumnarRows):
            self.next.take(rows.without_update_before())
        else:
            self.next.take(list(applied(self.transform, as_records(rows))))


def applied(transform: StatelessTransform, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    """Return the results of a transform on records, each at the place of its record. Several results of one record get an index each.

    Raises `UserFunctionError` when the transform's function fails, or returns a value of a wrong type.
    """
    match transform:
        case Map():
            return _mapped(transform, emitted)
        case Filter():
            return _filtered(transform, emitted)
        case FlatMap():
            return _flat_mapped(transform, emitted)
        case DropUpdateBefore():
            return (element for element in emitted if element.kind != RowKind.UPDATE_BEFORE)
        case Additions():
            return _added(emitted)
        case AssignEventTime():
            return _timed(transform, emitted)
        case _:
            return iter(emitted)


def _added(emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    for order, timestamp, kind, record in emitted:
        if kind in {RowKind.INSERT, RowKind.UPDATE_AFTER}:
            yield make_emitted((order, timestamp, RowKind.INSERT, record))


def _mapped(transform: Map, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    name, function, wanted = transform.name, transform.function, transform.record
    check = _kept_check(name, transform.keeps)
    taken = wanted if is_immutable(wanted) else None
    for order, timestamp, kind, record in emitted:
        result = called(name, function, record)
        if type(result) is not taken:
            result = copied(_typed(name, record, result, wanted))
        if check is not None:
            check(record, result)
        yield make_emitted((order, timestamp, kind, result))


def _filtered(transform: Filter, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    name, is_kept = transform.name, partial(_is_kept, transform.predicate)
    if transform.deletes:
        return (_kept_or_deleted(name, is_kept, element) for element in emitted)
    return (element for element in emitted if called(name, is_kept, element.record))


def _flat_mapped(transform: FlatMap, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    name, check = transform.name, _kept_check(transform.name, transform.keeps)
    listed = partial(_listed, transform.function, copies=not is_immutable(transform.record))
    for order, timestamp, kind, record in emitted:
        for index, result in enumerate(called(name, listed, record)):
            typed = _typed(name, record, result, transform.record)
            if check is not None:
                check(record, typed)
            yield make_emitted((output_order(order, index), timestamp, kind, typed))


def _timed(transform: AssignEventTime, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    time = transform.time
    read = _time_of_field(time) if isinstance(time, str) else time
    timestamp = partial(_timestamp, read)
    for order, _, kind, record in emitted:
        yield make_emitted((order, called(transform.name, timestamp, record), kind, record))


def _time_of_field(name: str) -> Callable[[Any], int]:
    """Return the function that reads a field of instants as milliseconds."""
    kinds: dict[type, ScalarKind] = {}

    def read(record: msgspec.Struct) -> int:
        kind = kinds.get(type(record))
        if kind is None:
            columns = columns_of(type(record))
            kind = kinds[type(record)] = cast(
                "ScalarKind", next(column.kind for column in columns if column.name == name)
            )
        return kind.event_time(getattr(record, name))

    return read


def _kept_or_deleted(transform: str, is_kept: Callable[[Any], bool], element: Emitted) -> Emitted:
    """Return an upsert, or a deletion of its key where the row is refused."""
    if element.kind == RowKind.DELETE or called(transform, is_kept, element.record):
        return element
    return element._replace(kind=RowKind.DELETE)


def _kept_check(transform: str, keeps: tuple[str, ...]) -> Callable[[Any, Any], None] | None:
    """Return the function that raises `UserFunctionError` where a result does not keep the fields of its record."""
    if not keeps:
        return None
    read = operators.attrgetter(*keeps)

    def check(record: Any, result: Any) -> None:
        if read(record) != read(result):
            why = f"it declares keeps={keeps!r}, and returned {result!r:.300}: let it keep these fields, or take them out of keeps"
            raise failed(transform, record, why)

    return check


def _typed(transform: str, record: msgspec.Struct, result: object, wanted: type[msgspec.Struct]) -> msgspec.Struct:
    if isinstance(result, wanted):
        return result
    why = (
        f"it returned {result!r:.300} of type {type(result).__name__}, not a {wanted.__name__}: let it return what the pipeline "
        "declares (the annotation, or record=...)"
    )
    raise failed(transform, record, why)


def _is_kept(predicate: Callable[[Any], object], record: msgspec.Struct) -> bool:
    verdict = predicate(record)
    if verdict is True or verdict is False:
        return verdict
    if isinstance(verdict, Awaitable | Generator):
        msg = f"it returned {verdict!r:.100}, which is always true: return something true or false"
        raise TypeError(msg)
    return bool(verdict)


def _listed(function: Callable[[Any], object], record: msgspec.Struct, *, copies: bool) -> list[Any]:
    """Return the results of a function for a record; copies of those that a generator may change behind a yield."""
    result = function(record)
    if isinstance(result, Iterable):
        return (
            [copied(item) if isinstance(item, msgspec.Struct) else item for item in result] if copies else list(result)
        )
    msg = f"it returned {result!r:.300} of type {type(result).__name__}, not records: return a list of them, or yield them"
    raise TypeError(msg)


def _timestamp(time: Callable[[Any], object], record: msgspec.Struct) -> int:
    timestamp = time(record)
    if isinstance(timestamp, bool) or not isinstance(timestamp, int):
        msg = f"an event time is a whole number of milliseconds, not {timestamp!r:.100}"
        raise TypeError(msg)
    if not -LATEST_TIMER <= timestamp <= LATEST_TIMER:
        msg = f"an event time must lie within {LATEST_TIMER} ms of 1970, not at {timestamp}"
        raise ValueError(msg)
    return timestamp
