"""Trace of one run: spans with explicit times, made in the driver from what it does and what its tasks report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from headrace import clock
from headrace.async_io.traced_calls import TracedCall, error_text
from headrace.errors import HeadraceError
from headrace.log.checkpoint import Checkpoint
from headrace.run.messages import TaskReport, TaskTrace
from headrace.run.trace import NO_SPAN, Attribute
from headrace.run.trace import Span as RunSpan
from headrace.telemetry.instruments import Attributes, Point, points_of


@dataclass(slots=True, eq=False)
class Span:
    """Part of a run. Times are nanoseconds since the epoch."""

    name: str
    start: int
    end: int = 0
    attributes: dict[str, str | int | float] = field(default_factory=dict)
    error: str = ""
    """Class and message of the exception that ended it; empty if none did."""
    children: list[Span] = field(default_factory=list)

    def set(self, **attributes: Attribute) -> None:
        """Set attributes; leave out those that are None."""
        self.attributes.update({name: value for name, value in attributes.items() if value is not None})

    def failed(self, error: BaseException) -> None:
        """Note the exception that ended it. Texts of foreign exceptions may hold a secret: of them, only the class is noted."""
        self.error = error_text(error) if isinstance(error, HeadraceError) else type(error).__name__

    def within(self, parent: Span) -> Span:
        """Move the span so that it lies in its parent, where it was: the clock of another machine may be wrong."""
        length = min(self.end - self.start, parent.end - parent.start)
        self.start = min(max(self.start, parent.start), parent.end - length)
        self.end = self.start + length
        return self


@dataclass(frozen=True, slots=True)
class Began:
    """A run has begun. Its span has no end yet."""

    run: Span


@dataclass(frozen=True, slots=True)
class Ended:
    """A part of the run has ended, with all of its children."""

    part: Span


@dataclass(frozen=True, slots=True)
class Measured:
    """Values of metrics."""

    points: tuple[Point, ...]


Item = Began | Ended | Measured
"""What a trace sends on, in this order: the begin of the run, its parts as they end, and the run itself."""


class RunTrace:
    """Implements `Trace`: sends spans and points to `send`."""

    def __init__(
        self,
        send: Callable[[Item], None],
        job: Attributes,
        services: Callable[[], Mapping[str, str]],
        *,
        has_spans: bool,
        has_points: bool,
    ) -> None:
        """`job` are the attributes of all points. `services` returns the service of each async operator, once the plan is loaded."""
        self.wants_tasks = has_spans
        self._send, self._job, self._services, self._has_points = send, job, services, has_points
        # All times of the driver are those of one clock: no step of the wall clock makes a part end before it begins.
        self._epoch = clock.now() * 1_000_000 - _nanoseconds(clock.monotonic())
        self._open: list[Span] = []

    @contextmanager
    def run(self, **attributes: Attribute) -> Iterator[Span]:
        """Observe the run as a whole for the length of a block."""
        span = Span("run", self._now())
        span.set(**attributes)
        if self.wants_tasks:
            self._send(Began(span))
            self._open.append(span)
        try:
            with self._timed(span):
                yield span
        finally:
            self._open.clear()
            if self.wants_tasks:
                self._send(Ended(span))

    @contextmanager
    def span(self, name: str, **attributes: Attribute) -> Iterator[RunSpan]:
        """Observe a part; see `Trace.span`."""
        if not self._open:
            yield NO_SPAN
            return
        span = Span(name, self._now())
        span.set(**attributes)
        self._open.append(span)
        try:
            with self._timed(span):
                yield span
        finally:
            self._open.pop()
            if len(self._open) == 1:
                self._send(Ended(span))
            else:
                self._open[-1].children.append(span)

    @contextmanager
    def _timed(self, span: Span) -> Iterator[None]:
        """End a span with the block, or with the exception that leaves the block."""
        try:
            yield
        except BaseException as error:
            span.failed(error)
            raise
        finally:
            span.end = self._now()

    def tasks(self, reports: Sequence[TaskReport], names: Sequence[str]) -> None:
        """Take the reports of tasks; see `Trace.tasks`."""
        if not self._open:
            return
        parent = self._open[-1]
        parent.end = self._now()
        parent.children += [
            _task(report, report.trace, name).within(parent)
            for report, name in zip(reports, names, strict=True)
            if report.trace is not None
        ]
        for task in parent.children:
            task.children = [call.within(task) for call in task.children]

    def committed(self, checkpoint: Checkpoint) -> None:
        """Take what a micro-batch has counted; see `Trace.committed`."""
        if self._has_points:
            self._send(Measured(tuple(points_of(checkpoint, self._job, self._services()))))

    def _now(self) -> int:
        return self._epoch + _nanoseconds(clock.monotonic())


def _task(report: TaskReport, trace: TaskTrace, name: str) -> Span:
    start = trace.began_at * 1_000_000
    span = Span("task", start, start + _nanoseconds(trace.ended - trace.begun))
    span.set(operator=name, task=report.task, rows=_rows(report.metrics), calls_left_out=trace.calls.left_out or None)
    kept = sorted([*trace.calls.slowest, *trace.calls.failed], key=lambda call: call.begun)
    span.children = [_call(call, start + _nanoseconds(call.begun - trace.begun)) for call in kept]
    return span


def _call(call: TracedCall, start: int) -> Span:
    span = Span("call", start, start + _nanoseconds(call.seconds), error=call.error)
    span.set(
        operator=call.operator,
        service=call.service or None,
        attempt=call.attempt or None,
        elements=call.elements,
        outcome=call.outcome,
        seconds=round(call.seconds, 6),
    )
    return span


def _rows(metrics: Mapping[str, int]) -> int:
    """Return the number of rows that a task took: of a source, of an operator, or of an async operator."""
    return metrics.get("rows_in") or metrics.get("keyed_records") or metrics.get("requests", 0)


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
