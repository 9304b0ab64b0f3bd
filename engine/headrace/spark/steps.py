"""Steps without state: apply map, filter, flat_map and assign_event_time to records."""

from __future__ import annotations

import operator as operators
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from functools import partial
from typing import Any

import msgspec

from headrace.api import RowKind
from headrace.api.graph import AssignEventTime, DropUpdateBefore, Filter, FlatMap, Map, StatelessStep
from headrace.execution.element import Emitted, make_emitted
from headrace.execution.process_context import LATEST_TIMER
from headrace.execution.record_copies import copied, is_immutable
from headrace.plan.order import output_order
from headrace.spark.step_errors import called, failed


def applied(step: StatelessStep, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    """Yield the results of a step on records, each at the place of its record. Several results of one record get an index each.

    Raises `UserFunctionError` when the step's function fails, or returns a value of a wrong type.
    """
    match step:
        case Map():
            yield from _mapped(step, emitted)
        case Filter(predicate):
            is_kept = partial(_is_kept, predicate)
            yield from (element for element in emitted if called(step.name, is_kept, element.record))
        case FlatMap(function, wanted):
            listed = partial(_listed, function, copies=not is_immutable(wanted))
            for order, timestamp, kind, record in emitted:
                for index, result in enumerate(called(step.name, listed, record)):
                    typed = _typed(step.name, record, result, wanted)
                    yield make_emitted((output_order(order, index), timestamp, kind, typed))
        case DropUpdateBefore():
            yield from (element for element in emitted if element.kind != RowKind.UPDATE_BEFORE)
        case AssignEventTime(time):
            read: Callable[[Any], Any] = operators.attrgetter(time) if isinstance(time, str) else time
            moment = partial(_moment, read)
            for order, _, kind, record in emitted:
                yield make_emitted((order, called(step.name, moment, record), kind, record))
        case _:
            yield from emitted


def _mapped(step: Map, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    function, wanted = step.function, step.record
    taken = wanted if is_immutable(wanted) else None
    for order, timestamp, kind, record in emitted:
        result = called(step.name, function, record)
        if type(result) is not taken:
            result = copied(_typed(step.name, record, result, wanted))
        yield make_emitted((order, timestamp, kind, result))


def _typed(step: str, record: msgspec.Struct, result: object, wanted: type[msgspec.Struct]) -> msgspec.Struct:
    if isinstance(result, wanted):
        return result
    why = (
        f"it returned {result!r:.300} of type {type(result).__name__}, not a {wanted.__name__}: let it return what the pipeline "
        "declares (the annotation, or record=...)"
    )
    raise failed(step, record, why)


def _is_kept(predicate: Callable[[Any], object], record: msgspec.Struct) -> bool:
    answer = predicate(record)
    if answer is True or answer is False:
        return answer
    if isinstance(answer, Awaitable | Generator):
        msg = f"it returned {answer!r:.100}, which is always true: return something true or false"
        raise TypeError(msg)
    return bool(answer)


def _listed(function: Callable[[Any], object], record: msgspec.Struct, *, copies: bool) -> list[Any]:
    """Return the results of a function for a record; copies of those that a generator may change behind a yield."""
    result = function(record)
    if isinstance(result, Iterable):
        return (
            [copied(item) if isinstance(item, msgspec.Struct) else item for item in result] if copies else list(result)
        )
    msg = f"it returned {result!r:.300} of type {type(result).__name__}, not records: return a list of them, or yield them"
    raise TypeError(msg)


def _moment(time: Callable[[Any], object], record: msgspec.Struct) -> int:
    moment = time(record)
    if isinstance(moment, bool) or not isinstance(moment, int):
        msg = f"an event time is a whole number of milliseconds, not {moment!r:.100}"
        raise TypeError(msg)
    if not -LATEST_TIMER <= moment <= LATEST_TIMER:
        msg = f"an event time must lie within {LATEST_TIMER} ms of 1970, not at {moment}"
        raise ValueError(msg)
    return moment
