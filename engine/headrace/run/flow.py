"""Flows: send a stage's records through steps without state to other stages and sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from headrace.api.graph import AssignEventTime, AsyncWait, DropUpdateBefore, FlatMap, Map, StatelessStep
from headrace.errors import SourceError
from headrace.execution.element import Emitted, make_emitted
from headrace.execution.record_copies import copied, is_immutable
from headrace.plan.stages import Flow, Through, ToSink, ToStage
from headrace.records.order import edge_order
from headrace.records.value_arrays import UnfitRecord
from headrace.run.output import TaskOutput
from headrace.run.rows import ColumnarRows
from headrace.run.transforms import applied, refusing_unfit
from headrace.state.codec import encode
from headrace.tables.changelog import QuarantineRow


class Waits(Protocol):
    """Runner of async waits."""

    def run(self, wait: AsyncWait, emitted: list[Emitted]) -> list[Emitted]:
        """Send records through the wait; return its results."""
        ...


@dataclass(frozen=True, slots=True)
class Sender:
    """Sender of a stage's records through its flows. `waits` makes the calls of a source's stage."""

    output: TaskOutput
    waits: Waits | None = None

    def send(self, flow: Flow, rows: ColumnarRows | list[Emitted], maker: str | None = None) -> None:
        """Send records of a stream to each of its uses. `maker` is the step that made them, by default the stage's operator.

        Raises `UserFunctionError` when a step fails, or returns records of another type than declared.
        """
        if isinstance(rows, ColumnarRows) and any(_needs_records(use.to) for use in flow.uses):
            rows = rows.emitted()
        for use in flow.uses:
            taken = rows if use.edge is None else _on_edge(rows, use.edge)
            if isinstance(use.to, Through):
                step = use.to.step
                if len(flow.uses) > 1 and not isinstance(taken, ColumnarRows) and not is_immutable(flow.record):
                    taken = [emitted._replace(record=copied(emitted.record)) for emitted in taken]  # for this use alone
                by = step.name if isinstance(step, Map | FlatMap | AsyncWait) else maker
                self.send(use.to.flow, self._through(step, taken), by)
            elif isinstance(use.to, ToStage) and isinstance(taken, ColumnarRows):
                self.output.transit_rows(use.to, taken)
            elif not isinstance(use.to, ToSink) or not self._append(use.to.sink, taken):
                self._write(use.to, flow, _as_records(taken), maker or self.output.operator)

    def _append(self, sink: str, rows: ColumnarRows | list[Emitted]) -> bool:
        """Append rows to a sink as columns; return False if records have to be made, also to name the one that the sink refuses."""
        table = rows.sink_table() if isinstance(rows, ColumnarRows) else None
        if table is None:
            return False
        try:
            self.output.append_table(sink, table)
        except UnfitRecord:
            return False
        return True

    def _write(self, to: ToStage | ToSink, flow: Flow, emitted: list[Emitted], maker: str) -> None:
        with refusing_unfit(maker, emitted):
            if isinstance(to, ToSink):
                self.output.append_sink(to.sink, emitted, flow.record)
            else:
                self.output.transit(to, flow.record, emitted)

    def _through(
        self, step: StatelessStep | AsyncWait, rows: ColumnarRows | list[Emitted]
    ) -> ColumnarRows | list[Emitted]:
        if isinstance(step, DropUpdateBefore) and isinstance(rows, ColumnarRows):
            return rows.without_update_before()
        emitted = _as_records(rows)
        if isinstance(step, AssignEventTime):
            return self._within_limit(step, list(applied(step, emitted)))
        if isinstance(step, AsyncWait):
            assert self.waits is not None  # noqa: S101 - the planner refuses a wait anywhere else
            return self.waits.run(step, emitted)
        return list(applied(step, emitted))

    def _within_limit(self, step: AssignEventTime, emitted: list[Emitted]) -> list[Emitted]:
        """Return the records without those whose new event time is too far ahead (`max_ahead`): they go to the quarantine.

        Raises `SourceError` for such a record if a source of the stage has `on_bad_row: fail`.
        """
        limit = self.output.limit
        if limit is None or not (ahead := [row for row in emitted if row.timestamp > limit.latest]):
            return emitted
        errors = [f"the event time of {step.name} {limit.problem(row.timestamp)}" for row in ahead]
        if limit.is_strict:
            msg = f"'{self.output.operator}': {encode(ahead[0].record).decode():.500}: {errors[0]}. Nothing was committed."
            raise SourceError(msg)
        self.output.quarantine(
            [
                QuarantineRow.of_record(self.output.operator, row.order, row.record, "null", error)
                for row, error in zip(ahead, errors, strict=True)
            ]
        )
        self.output.count(ahead=len(ahead))
        return [row for row in emitted if row.timestamp <= limit.latest]


def _needs_records(to: ToStage | ToSink | Through) -> bool:
    return isinstance(to, Through) and not isinstance(to.step, DropUpdateBefore)


def _as_records(rows: ColumnarRows | list[Emitted]) -> list[Emitted]:
    return rows.emitted() if isinstance(rows, ColumnarRows) else rows


def _on_edge(rows: ColumnarRows | list[Emitted], edge: int) -> ColumnarRows | list[Emitted]:
    if isinstance(rows, ColumnarRows):
        return rows.on_edge(edge)
    return [make_emitted((edge_order(order, edge), timestamp, kind, record)) for order, timestamp, kind, record in rows]
