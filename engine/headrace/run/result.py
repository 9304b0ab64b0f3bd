"""Result of a micro-batch, and the timelines after it.

Watermarks of a timeline: those that a micro-batch gives to its operators, and the last one that all have seen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar, cast

import msgspec

from headrace import clock
from headrace.async_io.metrics import ServiceMetrics, merged_metrics
from headrace.execution.drain import seen_and_held
from headrace.execution.element import Watermark
from headrace.log.checkpoint import Checkpoint
from headrace.log.facts import NO_ROW_TIMES, JobWork, RowTimes
from headrace.log.warnings import row_times_of_task
from headrace.metrics import METRICS
from headrace.records.order import record_order
from headrace.records.watermarks import (
    Bucket,
    Timeline,
    Timelines,
    Watermarks,
    advance,
    cut_at_block,
    lag_of,
    latest_by_bucket,
    watermarks_of_timeline,
)
from headrace.run.messages import TaskReport, TransitFile
from headrace.sinks.sink import OutputFile
from headrace.sources.position import NO_FACTS, SourceFacts
from headrace.sources.slices import Slice, TimelineSlice
from headrace.storage.files import StagedFile

Group = tuple[str, ...]
"""Names of sources that meet. They share a timeline."""


@dataclass(slots=True)
class TimelineResult:
    """Timeline after a micro-batch. Sources that meet share one.

    `watermarks` are those that its operators get, `watermark` is the last of them, `seen` the last that all operators have seen;
    `repeated` are those after `seen`.
    """

    bucket: Bucket
    watermarks: Watermarks
    watermark: int | None
    seen: int | None
    repeated: tuple[tuple[int, int], ...] = ()
    has_input: bool = True
    """False if tasks have read nothing but refused rows: these do not count as input of an idle source."""

    def timeline(self, sources: Group) -> Timeline:
        """Return the timeline of these sources as the checkpoint records it."""
        return Timeline(sources, self.bucket, self.watermark, self.seen, self.repeated)

    def settle(self, cut: bytes | None) -> None:
        """Set `seen` to the last watermark before `cut`, the place that all operators have reached; later ones are `repeated`."""
        places = [Watermark(record_order(ordinal), time) for ordinal, time in self.watermarks]
        seen, _ = seen_and_held(places, cut)
        self.seen = seen[-1].timestamp if seen else self.seen
        self.repeated = tuple(self.watermarks[len(seen) :])


def timeline_after(
    parent: Checkpoint,
    group: Group,
    part: TimelineSlice | None,
    reports: Iterable[TaskReport],
    *,
    size: int,
    out_of_orderness: timedelta,
) -> TimelineResult:
    """Return the position of a timeline after a slice. `part` is its part of the slice; None if it has none.

    Its watermarks are planned, or follow from the tasks' reports. `size` is the number of ordinals in a bucket.
    """
    former = parent.timeline(group)
    latest_times: dict[int, int] = {}
    if part is not None and part.after is not None:
        bucket, new = part.after, part.watermarks or []
    else:
        latest_times = latest_by_bucket(report.buckets for report in reports)
        bucket, new = advance(
            former.bucket,
            latest_times,
            0 if part is None else part.rows,
            size=size,
            lag=lag_of(out_of_orderness),
            watermark=former.watermark,
        )
    joined = None
    if former.watermark is not None and any(part.watermark != former.watermark for part in parent.parts_of(group)):
        joined = former.bucket.next_ordinal, former.watermark
    watermarks = watermarks_of_timeline(new, repeated=former.repeated, joined=joined)
    watermark = watermarks[-1][1] if watermarks else former.watermark
    has_input = part is None or part.after is not None or bool(latest_times)
    return TimelineResult(bucket, watermarks, watermark, former.seen, has_input=has_input)


@dataclass(slots=True)
class BatchResult:
    """Collector of the files and metrics of a micro-batch's stages, for the commit."""

    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    outputs: dict[str, list[OutputFile]] = field(default_factory=dict)
    transit: dict[str, list[TransitFile]] = field(default_factory=dict)
    broadcast: dict[str, list[str]] = field(default_factory=dict)
    local_copies: dict[str, dict[str, str]] = field(default_factory=dict)
    timers_fired: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    timelines: dict[Group, TimelineResult] = field(default_factory=dict)
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
        """Return the earliest of the timelines' watermarks; None while a timeline has none."""
        seen = [result.seen for result in self.timelines.values()]
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
            _extend(self.broadcast, report.broadcast)
            _keep_earliest(self.cuts, report.cuts)
            _keep_earliest(self.blocks, report.blocks)
            copies |= report.local_copy
            self.held += report.held
            self.pending += report.pending
            self.due = _earlier(self.due, report.due)
            self.services = merged_metrics((self.services, report.services))
            for name, value in report.metrics.items():
                self.metrics[name] = METRICS[name].together(self.metrics.get(name), value)
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

    @property
    def work(self) -> JobWork:
        """Return what the micro-batch leaves to do."""
        return JobWork(self.held, self.pending, self.due)

    def sources_after(self, former: Mapping[str, SourceFacts], taken: Slice) -> dict[str, SourceFacts]:
        """Return the facts of sources after a slice, from the `former` ones."""
        has_input = {name: result.has_input for names, result in self.timelines.items() for name in names}
        facts: dict[str, SourceFacts] = {}
        for name, before in former.items():
            facts[name] = msgspec.structs.replace(before.for_next(), idle=False)
        for name, moved in taken.sources.items():
            taken_at = moved.taken_at if has_input.get(name, True) else former.get(name, NO_FACTS).taken_at
            facts[name] = msgspec.structs.replace(moved, taken_at=taken_at)
        return facts

    def timelines_after(self, former: Timelines) -> dict[str, Timeline]:
        """Return the timelines after the micro-batch. Sources that the pipeline no longer has keep the timeline that they had."""
        present = {name for names in self.timelines for name in names}
        left = (
            msgspec.structs.replace(
                timeline, sources=tuple(name for name in timeline.sources if name not in present), repeated=()
            )
            for timeline in former.values()
        )
        own = (result.timeline(names) for names, result in self.timelines.items())
        return {timeline.sources[0]: timeline for timeline in (*left, *own) if timeline.sources}

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
