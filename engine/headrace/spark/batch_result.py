"""Result of a micro-batch, combined from the reports of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import msgspec

from headrace import clock
from headrace.async_io.service_metrics import ServiceMetrics, merged_metrics
from headrace.commit.row_times import NO_ROW_TIMES, row_times_of_task
from headrace.commit.run_warnings import RowTimes
from headrace.plan.watermarks import Watermarks, cut_at_block
from headrace.sinks.sink import OutputFile
from headrace.sources.offset import SourceOffset
from headrace.sources.source import Slice
from headrace.spark.line_watermarks import Group, LineResult
from headrace.spark.reports import TaskReport
from headrace.tables.files import StagedFile


@dataclass(slots=True)
class BatchResult:
    """Collector of the files and metrics of a micro-batch's stages, for the commit."""

    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    outputs: dict[str, list[OutputFile]] = field(default_factory=dict)
    transit: dict[str, list[str]] = field(default_factory=dict)
    transit_rows: Counter[str] = field(default_factory=Counter)
    transit_bytes: Counter[str] = field(default_factory=Counter)
    broadcast: dict[str, list[str]] = field(default_factory=dict)
    local_copies: dict[str, dict[str, str]] = field(default_factory=dict)
    timers_fired: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[Group, LineResult] = field(default_factory=dict)
    cuts: dict[str, bytes] = field(default_factory=dict)
    """Place that an operator has reached, by operator; only of operators that did not finish."""
    blocks: dict[str, bytes] = field(default_factory=dict)
    """First waiting element that lets others pass, by operator."""
    held: int = 0
    pending: int = 0
    due: int | None = None
    services: dict[str, ServiceMetrics] = field(default_factory=dict)
    row_times: dict[str, RowTimes] = field(default_factory=dict)
    """Late rows, and rows too far ahead, by operator or source."""

    @property
    def watermark(self) -> int | None:
        """Return the earliest of the lines' watermarks; None while a line has none."""
        seen = [line.seen for line in self.lines.values()]
        return None if None in seen else min(cast("list[int]", seen), default=None)

    def add(self, operator: str, reports: Sequence[TaskReport]) -> None:
        """Add the reports of a stage."""
        copies: dict[str, str] = {}
        if fired := [report.timers_fired for report in reports if report.timers_fired]:
            clocks = set.intersection(*map(set, fired))
            self.timers_fired[operator] = {name: min(until[name] for until in fired) for name in sorted(clocks)}
        for report in reports:
            _extend(self.files, report.state_files)
            _extend(self.outputs, report.outputs)
            _extend(self.transit, report.transit)
            self.transit_rows.update(report.transit_rows)
            self.transit_bytes.update(report.transit_bytes)
            _extend(self.broadcast, report.broadcast)
            _keep_earliest(self.cuts, report.cuts)
            _keep_earliest(self.blocks, report.blocks)
            copies |= report.local_copy
            self.held += report.held
            self.pending += report.pending
            self.due = _earlier(self.due, report.due)
            self.services = merged_metrics((self.services, report.services))
            self.metrics.update(report.metrics)
            counts = row_times_of_task(report.metrics)
            self.row_times[operator] = self.row_times.get(operator, NO_ROW_TIMES) + counts
        if copies:
            self.local_copies[operator] = copies

    def cut_behind(self, operators: Iterable[str], watermarks: Watermarks) -> bytes | None:
        """Return the earliest place that one of the operators has reached; None if all have finished.

        An operator with a waiting element that lets others pass has reached at most the first watermark after that element.
        """
        cut: bytes | None = None
        for name in operators:
            cut = _earlier(cut, self.cuts.get(name))
            if (block := self.blocks.get(name)) is not None:
                cut = _earlier(cut, cut_at_block(block, watermarks))
        return cut

    def offsets_after(self, former: Mapping[str, SourceOffset], taken: Slice) -> dict[str, SourceOffset]:
        """Return the offsets after a slice, from the `former` ones. Each has also values of its line, and of the whole job."""
        held = self.held > 0 or any(line.repeated for line in self.lines.values())
        lines = {name: line for names, line in self.lines.items() for name in names}
        offsets: dict[str, SourceOffset] = {}
        for name, before in {**former, **taken.offsets}.items():
            moved = taken.offsets.get(name)
            offset = msgspec.structs.replace(
                before,
                held=held,
                repeated=(),
                pending=self.pending,
                due=self.due,
                names=None if moved is None else moved.names,
                stamps=() if moved is None else moved.stamps,
                contents=() if moved is None else moved.contents,
                idle=before.idle if moved is not None else False,
            )
            if (own := lines.get(name)) is not None:
                offset = msgspec.structs.replace(
                    offset, bucket=own.bucket, repeated=own.repeated, watermark=own.watermark, seen=own.seen
                )
                if not own.has_input:
                    offset = msgspec.structs.replace(offset, taken_at=former.get(name, SourceOffset()).taken_at)
            offsets[name] = offset
        return offsets

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure the time of the block as a phase."""
        started = clock.monotonic()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + clock.monotonic() - started


_Comparable = TypeVar("_Comparable", int, bytes)


def _earlier(first: _Comparable | None, other: _Comparable | None) -> _Comparable | None:
    return min((value for value in (first, other) if value is not None), default=None)


def _extend(into: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for name, items in more.items():
        into.setdefault(name, []).extend(items)


def _keep_earliest(into: dict[str, bytes], more: Mapping[str, bytes]) -> None:
    for name, place in more.items():
        into[name] = min(place, into.get(name, place))
