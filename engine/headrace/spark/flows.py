"""What a stage does with the records that it sends on: steps without state, then other stages and sinks."""

from __future__ import annotations

import operator as operators
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import msgspec

from headrace.api import AsyncWait
from headrace.api._graph import AssignEventTime, Filter, FlatMap, Map, StatelessStep
from headrace.errors import UserFunctionError
from headrace.execution.element import Emitted
from headrace.execution.process_context import LATEST_TIMER
from headrace.plan.order import edge_order, output_order
from headrace.plan.stages import Flow, Through, ToSink
from headrace.spark.columnar_rows import ColumnarRows
from headrace.spark.task_output import TaskOutput
from headrace.state.codec import encode


class Waits(Protocol):
    """Sends records through an async wait."""

    def run(self, waits: Sequence[AsyncWait], emitted: list[Emitted]) -> list[Emitted]:
        """Return what the wait has answered."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """Sends what a stage emits through its flows. `waits` makes the calls of a source's stage."""

    output: TaskOutput
    waits: Waits | None = None

    def send(self, flow: Flow, rows: ColumnarRows | list[Emitted]) -> None:
        """Send records of a stream to each of its uses.

        Raises `UserFunctionError` when a step fails, or makes what it did not promise.
        """
        if isinstance(rows, ColumnarRows) and any(isinstance(use.to, Through) for use in flow.uses):
            rows = rows.emitted()
        for use in flow.uses:
            taken = rows if use.edge is None else _on_edge(rows, use.edge)
            if isinstance(use.to, ToSink):
                self.output.append_sink(use.to.sink, _as_records(taken), flow.record)
            elif isinstance(use.to, Through):
                self.send(use.to.flow, self._through(use.to.step, _as_records(taken)))
            elif isinstance(taken, ColumnarRows):
                self.output.transit_rows(use.to, taken)
            else:
                self.output.transit(use.to, flow.record, taken)

    def _through(self, step: StatelessStep | AsyncWait, emitted: list[Emitted]) -> list[Emitted]:
        if isinstance(step, AsyncWait):
            assert self.waits is not None  # noqa: S101 - the planner refuses a wait anywhere else
            return self.waits.run((step,), emitted)
        return list(_applied(step, emitted))


def _as_records(rows: ColumnarRows | list[Emitted]) -> list[Emitted]:
    return rows.emitted() if isinstance(rows, ColumnarRows) else rows


def _on_edge(rows: ColumnarRows | list[Emitted], edge: int) -> ColumnarRows | list[Emitted]:
    if isinstance(rows, ColumnarRows):
        return rows.on_edge(edge)
    return [Emitted(edge_order(order, edge), timestamp, kind, record) for order, timestamp, kind, record in rows]


def _applied(step: StatelessStep, emitted: Iterable[Emitted]) -> Iterator[Emitted]:
    """What a step makes of records, each at its place: of several made of one, each gets its index."""
    match step:
        case Map(function, made):
            for order, timestamp, kind, record in emitted:
                yield Emitted(
                    order, timestamp, kind, _typed(step.name, record, _called(step.name, function, record), made)
                )
        case Filter(predicate):
            yield from (one for one in emitted if _called(step.name, predicate, one.record))
        case FlatMap(function, made):
            for order, timestamp, kind, record in emitted:
                results = _called(step.name, partial(_all_of, function), record)
                for index, result in enumerate(results):
                    yield Emitted(output_order(order, index), timestamp, kind, _typed(step.name, record, result, made))
        case AssignEventTime(time):
            read: Callable[[Any], Any] = operators.attrgetter(time) if isinstance(time, str) else time
            for order, _, kind, record in emitted:
                yield Emitted(order, _called(step.name, lambda found: _moment(read(found)), record), kind, record)
        case _:
            yield from emitted


def _called(name: str, function: Callable[[Any], Any], record: msgspec.Struct) -> Any:
    try:
        return function(record)
    except Exception as error:
        raise _failed(name, record, "".join(traceback.format_exception(error))) from error


def _typed(name: str, record: msgspec.Struct, made: object, wanted: type[msgspec.Struct]) -> msgspec.Struct:
    if isinstance(made, wanted):
        return made
    raise _failed(name, record, f"it made a {type(made).__name__}, not a {wanted.__name__}: {made!r:.300}")


def _failed(name: str, record: msgspec.Struct, why: str) -> UserFunctionError:
    return UserFunctionError(name, None, encode(record)[:500].decode(errors="replace"), why)


def _all_of(function: Callable[[Any], Iterable[Any]], record: msgspec.Struct) -> list[Any]:
    return list(function(record))


def _moment(time: object) -> int:
    """An event time, in milliseconds."""
    if isinstance(time, bool) or not isinstance(time, int):
        msg = f"an event time is a whole number of milliseconds, not {time!r:.100}"
        raise TypeError(msg)
    if not -LATEST_TIMER <= time <= LATEST_TIMER:
        msg = f"an event time must lie within {LATEST_TIMER} ms of 1970, not at {time}"
        raise ValueError(msg)
    return time
