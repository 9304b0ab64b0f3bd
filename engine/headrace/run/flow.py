"""Flows: the pipes from a stage, through transforms without state, to other stages and sinks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, cast

import msgspec

from headrace.api.graph import AssignEventTime, AsyncWait, DropUpdateBefore, FlatMap, Map, StatelessTransform
from headrace.errors import SourceError
from headrace.execution.element import Emitted, make_emitted
from headrace.execution.record_copies import copied, is_immutable
from headrace.plan.stages import Flow, Through, ToSink, ToStage, Use
from headrace.records.order import edge_order
from headrace.records.source_columns import EventTimeLimit
from headrace.run.output import ForCalls, SinkFiles, TaskOutput, Transit
from headrace.run.rows import ColumnarRows, Outlet, Pipe, Rows, Taker, as_records
from headrace.run.transforms import Transform
from headrace.state.codec import encode
from headrace.tables.changelog import QuarantineRow


class Waits(Protocol):
    """Runner of async waits."""

    def run(self, wait: AsyncWait, emitted: list[Emitted]) -> list[Emitted]:
        """Send records through the wait; return its results."""
        ...


def laid(flow: Flow, output: TaskOutput, waits: Waits | None = None, maker: str | None = None) -> Taker:
    """Lay the pipes from a stream to each of its uses.

    `waits` makes the calls of a source's stage; without it, records stop at an async wait, and are staged for a later task that
    makes its calls. `maker` is the transform that makes the records, by default the stage's operator.
    """
    maker = maker or output.operator
    pipes = [_laid_to(use.to, flow, output, waits, maker) for use in flow.uses]
    return pipes[0] if [use.edge for use in flow.uses] == [None] else _Fork(flow.record, flow.uses, tuple(pipes))


def _laid_to(to: ToStage | ToSink | Through, flow: Flow, output: TaskOutput, waits: Waits | None, maker: str) -> Taker:
    if isinstance(to, ToSink):
        return SinkFiles(output, to.sink, flow.record, maker)
    if isinstance(to, ToStage):
        return Transit(output, to, flow.record, maker)
    transform = to.transform
    if isinstance(transform, AsyncWait) and waits is None:
        return ForCalls(output, transform.name, flow.record, maker)
    behind = laid(to.flow, output, waits, transform.name if isinstance(transform, Map | FlatMap | AsyncWait) else maker)
    if isinstance(transform, AsyncWait):
        return _Wait(behind, cast("Waits", waits), transform)
    if isinstance(transform, AssignEventTime) and output.limit is not None:
        behind = _TimeLimit(behind, output, transform, output.limit)
    return Transform(behind, transform)


@dataclass(frozen=True, slots=True)
class _Fork(Taker):
    """Pipe to several uses of a stream. Each gets all rows, with its edge in their places."""

    record: type[msgspec.Struct]
    uses: tuple[Use, ...]
    pipes: tuple[Taker, ...]

    def take(self, rows: Rows, /) -> None:
        """Pass on rows to each use. Records are made once, and copied where a transform could change them for another use."""
        records = as_records(rows) if any(map(_needs_records, self.pipes)) else rows
        for use, pipe in zip(self.uses, self.pipes, strict=True):
            taken = rows if _wants_columns(pipe) else records
            if use.edge is not None:
                taken = _on_edge(taken, use.edge)
            if not (isinstance(pipe, Outlet) or isinstance(taken, ColumnarRows) or is_immutable(self.record)):
                taken = [emitted._replace(record=copied(emitted.record)) for emitted in taken]
            pipe.take(taken)

    def end(self) -> None:
        """Pass on the end to each use."""
        for pipe in self.pipes:
            pipe.end()


@dataclass(frozen=True, slots=True)
class _Wait(Pipe):
    """Pipe through an async wait: it makes its calls at the end, for all records at once, and also for those that earlier runs have left."""

    waits: Waits
    wait: AsyncWait
    records: list[Emitted] = field(default_factory=list)

    def take(self, rows: Rows, /) -> None:
        """Keep rows until the end."""
        self.records.extend(as_records(rows))

    def end(self) -> None:
        """Pass on the results of all calls, and the end."""
        self.next.take(self.waits.run(self.wait, self.records))
        self.next.end()


@dataclass(frozen=True, slots=True)
class _TimeLimit(Pipe):
    """Pipe behind a transform that assigns event times. Records that are too far ahead (`max_ahead`) go to the quarantine."""

    output: TaskOutput
    transform: StatelessTransform
    limit: EventTimeLimit

    def take(self, rows: Rows, /) -> None:
        """Pass on the records within the limit.

        Raises `SourceError` for another one if a source of the stage has `on_bad_row: fail`.
        """
        emitted = as_records(rows)
        if ahead := [row for row in emitted if row.timestamp > self.limit.latest]:
            self._refuse(ahead)
            emitted = [row for row in emitted if row.timestamp <= self.limit.latest]
        self.next.take(emitted)

    def _refuse(self, ahead: list[Emitted]) -> None:
        operator = self.output.operator
        errors = [f"the event time of {self.transform.name} {self.limit.problem(row.timestamp)}" for row in ahead]
        if self.limit.is_strict:
            msg = f"'{operator}': {encode(ahead[0].record).decode():.500}: {errors[0]}. Nothing was committed."
            raise SourceError(msg)
        self.output.quarantine(
            [
                QuarantineRow.of_record(operator, row.order, row.record, "null", error)
                for row, error in zip(ahead, errors, strict=True)
            ]
        )
        self.output.count(ahead=len(ahead))


def _needs_records(pipe: Taker) -> bool:
    return not (isinstance(pipe, Outlet) or _drops_updates(pipe))


def _wants_columns(pipe: Taker) -> bool:
    """Return whether records would only become columns again."""
    if isinstance(pipe, Transform) and _drops_updates(pipe):
        return _wants_columns(pipe.next)
    return isinstance(pipe, ForCalls)


def _drops_updates(pipe: Taker) -> bool:
    return isinstance(pipe, Transform) and isinstance(pipe.transform, DropUpdateBefore)


def _on_edge(rows: Rows, edge: int) -> Rows:
    if isinstance(rows, ColumnarRows):
        return rows.on_edge(edge)
    return [make_emitted((edge_order(order, edge), timestamp, kind, record)) for order, timestamp, kind, record in rows]
