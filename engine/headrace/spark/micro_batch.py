"""One micro-batch: from a slice of the sources to staged files, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar, cast

import msgspec

from headrace import clock, faults
from headrace.api import AsyncWait, SourceNode
from headrace.async_io.service_metrics import ServiceMetrics
from headrace.async_io.service_metrics import merged as merged_services
from headrace.checkpoint.checkpoint import Bucket, Checkpoint, OutputFile, last_micro_batch
from headrace.checkpoint.files import StagedFile
from headrace.checkpoint.open_job import OpenJob
from headrace.checkpoint.run_check import lost_elements
from headrace.checkpoint.ttl_history import declared_ttls, history_ttls
from headrace.errors import StateSchemaError
from headrace.execution.element import Watermark, before_watermark
from headrace.execution.fast_drain import seen_and_held
from headrace.plan.order import record_order
from headrace.plan.stages import KeyedStage, Plan, waits_in
from headrace.sources.arrival import Watermarks, advance
from headrace.sources.source import InputFile, Slice
from headrace.spark.reports import AsyncSettings, KeyedTask, Place, SourceTask, TaskReport
from headrace.spark.stage_tasks import StageTasks
from headrace.spark.task_output import transit_folder

Group = tuple[str, ...]
"""Sources that meet, by name."""


@dataclass(slots=True)
class LineResult:
    """Where a micro-batch leaves a line of ordinals, which sources that meet share.

    `watermarks` are all that its operators get, `watermark` is the last one of them, `seen` the last one that all operators
    have seen; `repeated` are those after it.
    """

    bucket: Bucket
    watermarks: Watermarks
    watermark: int | None
    seen: int | None
    repeated: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class BatchResult:
    """What the stages of a micro-batch left behind, for the commit."""

    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    outputs: dict[str, list[OutputFile]] = field(default_factory=dict)
    transit: dict[str, list[str]] = field(default_factory=dict)
    broadcast: dict[str, list[str]] = field(default_factory=dict)
    local_copies: dict[str, dict[str, str]] = field(default_factory=dict)
    timers_fired: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[Group, LineResult] = field(default_factory=dict)
    cuts: dict[str, bytes] = field(default_factory=dict)
    """By operator that did not come to the end: up to where it did."""
    blocks: dict[str, bytes] = field(default_factory=dict)
    held: int = 0
    pending: int = 0
    due: int | None = None
    services: dict[str, ServiceMetrics] = field(default_factory=dict)

    @property
    def watermark(self) -> int | None:
        """Return the earliest of the lines' watermarks; None as long as one has none."""
        seen = [line.seen for line in self.lines.values()]
        return None if None in seen else min(cast("list[int]", seen), default=None)

    def add(self, operator: str, reports: Sequence[TaskReport]) -> None:
        """Take in the reports of a stage."""
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
            self.services = merged_services((self.services, report.services))
            self.metrics.update(report.metrics)
        if copies:
            self.local_copies[operator] = copies

    def cut_behind(self, operators: Iterable[str], watermarks: Watermarks) -> bytes | None:
        """Return up to where operators have come, the earliest of them; None if that is everything.

        One with an element that waits and lets others pass comes no further than to the first watermark after that element.
        """
        cut: bytes | None = None
        for name in operators:
            cut = _earlier(cut, self.cuts.get(name))
            if (first := self.blocks.get(name)) is not None:
                places = (Watermark(record_order(ordinal), time) for ordinal, time in watermarks)
                held = next((before_watermark(place) for place in places if place.order > first), None)
                cut = _earlier(cut, held)
        return cut

    def of_services(self) -> dict[str, Any]:
        """The metrics of services, for the checkpoint."""
        return {"services": {name: made.shown() for name, made in self.services.items()}} if self.services else {}

    @contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Measure a phase."""
        started = clock.monotonic()
        yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + clock.monotonic() - started


class MicroBatch:
    """Runs the stages of one slice on top of the job's last checkpoint."""

    def __init__(
        self,
        tasks: StageTasks,
        job: OpenJob,
        plan: Plan,
        *,
        parallelism: int,
        backend: str,
        async_state: bool | None = None,
        stop_at: int | None = None,
        finishes: bool = False,
    ) -> None:
        """Every operator gets `parallelism` tasks; `async_state`, unless None, overrules what the job enables.

        At `stop_at` (ms) keyed tasks stop and hold what has not begun. With `finishes` services are called for the last time
        for all that waits for them.
        """
        self._tasks = tasks
        self._job = job
        self._plan = plan
        self._parallelism = parallelism
        self._processing_time = clock.now()
        declared = declared_ttls(plan) | history_ttls(plan)
        self._rebuilt = job.last.state_ttl.changed(declared)
        self.state_ttl = job.last.state_ttl.advanced(
            declared,
            paused_since=last_micro_batch(job.log.checkpoints),
            watermark_of=job.last.latest_watermark_of,
            processing_time=self._processing_time,
        )
        """For the checkpoint: what lives of entries depend on in this micro-batch."""
        self._async_state = async_state
        self._stop_at = stop_at
        self._finishes = finishes
        config = job.config
        self._place = Place(
            code=config.code,
            job_folder=config.job_folder,
            checkpoint_id=job.next_id,
            attempt_id=job.lease.attempt_id,
            max_parallelism=config.max_parallelism,
            parallelism=parallelism,
            local_folder=str(config.local_folder),
            backend=backend,
            cache_bytes=config.state.cache_bytes,
            versions=job.versions,
            sinks={name: sink.path for name, sink in config.sinks.items()},
            appended=config.appended,
            storage=config.storage_options,
        )

    def run(self, taken: Slice) -> BatchResult:
        """Run all stages; nothing is committed yet.

        Raises what a task reported: `UserFunctionError`, `ServiceError`, `SourceError`,
        `StorageError`, `StateSchemaError`.
        """
        result = BatchResult()
        self._check_elements()
        by_source = self._read(taken.files, result)
        for group in self._plan.groups:
            result.lines[group] = self._line(group, taken, by_source)
        faults.reached("ingest.after")
        for stage in self._plan.keyed:
            with result.timed(stage.name):
                reports = self._keyed(stage, result)
            result.add(stage.name, reports)
        for group, line in result.lines.items():
            self._settle_watermarks(group, line, result)
        return result

    def _check_elements(self) -> None:
        """Raise `StateSchemaError` when elements belong to operators that the pipeline does not have: they would be lost."""
        job = self._job
        if problems := [*lost_elements(job.config, job.last, self._place.versions, self._plan)]:
            raise StateSchemaError("\n".join(problems))

    @property
    def _resumes(self) -> bool:
        """Whether elements wait for services."""
        return self._job.last.pending > 0

    @cached_property
    def _async_settings(self) -> AsyncSettings:
        config = self._job.config
        return AsyncSettings(
            services={name: service.url for name, service in config.services.items()},
            overrides={name: _settings(override) for name, override in config.async_io.items()},
            limits={name: (service.rate, service.concurrency) for name, service in config.services.items()},
            open_until=open_breakers(self._job.log.checkpoints),
            resumes=self._resumes,
            finishes=self._finishes,
        )

    def _settle_watermarks(self, group: Group, line: LineResult, result: BatchResult) -> None:
        """Find the last watermark that all operators of a line have seen; the others are repeated."""
        places = [Watermark(record_order(ordinal), time) for ordinal, time in line.watermarks]
        operators = [stage.name for stage in self._plan.keyed if stage.sources[0] in group]
        operators += [wait.name for one in self._plan.source_stages if one.name in group for wait in waits_in(one.flow)]
        seen, _ = seen_and_held(places, result.cut_behind(operators, line.watermarks))
        line.seen = seen[-1].timestamp if seen else line.seen
        line.repeated = tuple(line.watermarks[len(seen) :])

    def _read(self, files: Sequence[InputFile], result: BatchResult) -> dict[str, list[TaskReport]]:
        """Run the stages of all sources, side by side; return the reports by source."""
        tasks: list[SourceTask] = []
        for stage in self._plan.source_stages:
            own = [file for file in files if file.source == stage.name]
            tasks += self._source_tasks(stage.source, own, bool(waits_in(stage.flow)))
        with result.timed("sources"):
            reports = self._tasks.sources(tasks)
        by_source: dict[str, list[TaskReport]] = {stage.name: [] for stage in self._plan.source_stages}
        for task, report in zip(tasks, reports, strict=True):
            by_source[task.source].append(report)
        for name, made in by_source.items():
            result.add(name, made)
        return by_source

    def _source_tasks(self, source: SourceNode, files: Sequence[InputFile], calls: bool) -> list[SourceTask]:  # noqa: FBT001
        config = self._job.config
        bound = config.sources[source.name]
        shares = _shares(files, self._parallelism)
        if self._resumes and calls:
            shares += [[] for _ in range(self._parallelism - len(shares))]
        return [
            SourceTask(
                place=self._place,
                source=source.name,
                files=list(share),
                bucket=config.watermark.bucket,
                async_io=self._async_settings,
                index=index,
                tasks=len(shares),
                stop_at=self._stop_at,
                stop_file=stop_file(self._place.job_folder, self._place.attempt_id),
                on_bad_file=bound.on_bad_file,
                on_bad_row=bound.on_bad_row,
            )
            for index, share in enumerate(shares)
        ]

    def _line(self, group: Group, taken: Slice, by_source: Mapping[str, Sequence[TaskReport]]) -> LineResult:
        """Return where a line stands after the slice.

        Its watermarks are those that are repeated, then one for operators whose lines have become one, then those that are planned,
        or follow from what tasks report.
        """
        parent = self._job.last
        part = next((part for part in taken.lines if part.sources == group), None)
        before, seen = parent.watermarks(group)
        if part is not None and part.after is not None:
            bucket, new = part.after, part.watermarks or []
        else:
            latest: dict[int, int] = {}
            for report in (report for name in group for report in by_source[name]):
                for number, time in report.buckets.items():
                    latest[number] = max(time, latest.get(number, time))
            lag = max(source.out_of_orderness for source in self._plan.sources if source.name in group)
            bucket, new = advance(
                parent.line(group),
                latest,
                0 if part is None else part.rows,
                size=self._job.config.watermark.bucket,
                lag=lag // _MILLISECOND + 1,
                watermark=before,
            )
        known = [parent.offsets[name] for name in group if name in parent.offsets]
        repeated = max((offset.repeated for offset in known), default=())
        watermarks = [*repeated, *new]
        if before is not None and any(offset.watermark != before for offset in known):
            watermarks = [*repeated, (parent.line(group).next_ordinal, before), *new]
        return LineResult(bucket, watermarks, watermarks[-1][1] if watermarks else before, seen)

    def _keyed(self, stage: KeyedStage, result: BatchResult) -> list[TaskReport]:
        parent, name = self._job.last, stage.name
        group = self._plan.group_of(name)
        line = result.lines[group]
        is_wait = isinstance(stage.operator, AsyncWait)
        task = KeyedTask(
            place=self._place,
            stage=stage.number,
            watermark=parent.watermark_of(name) if name in parent.lines else line.seen,
            watermarks=line.watermarks,
            processing_time=self._processing_time,
            first_ordinal=parent.line(group).next_ordinal,
            async_state=self._job.config.async_state(name, enabled=self._async_state),
            timers_fired=parent.timers_fired.get(name, {}),
            upsert_materialize=self._job.config.upsert_materialize(name, self._place.backend),
            state_ttl=self.state_ttl,
            local_copies={} if name in self._rebuilt else parent.local_copies.get(name, {}),
            parent_id=parent.checkpoint_id,
            resumes=parent.held,
            async_io=self._async_settings if is_wait else AsyncSettings(services={}),
            broadcast=tuple(result.broadcast.get(name, ())),
            cut=result.cut_behind(stage.after, line.watermarks),
            stop_at=self._stop_at,
            stop_file=stop_file(self._place.job_folder, self._place.attempt_id),
        )
        return self._tasks.keyed(task, stage.takes, result.transit.get(name, ()))


def stop_file(job_folder: str, attempt_id: str) -> str:
    """The file that tells the tasks of an attempt to stop; it goes with the attempt's transit files."""
    return f"{transit_folder(job_folder, attempt_id)}/stop"


def spark_uri(uri: str) -> str:
    """A path or URI as Spark wants it: Hadoop's S3 client calls itself s3a."""
    return f"s3a{uri[2:]}" if uri.startswith("s3://") else uri


_MILLISECOND = timedelta(milliseconds=1)


Place_ = TypeVar("Place_", int, bytes)


def _earlier(one: Place_ | None, other: Place_ | None) -> Place_ | None:
    return min((value for value in (one, other) if value is not None), default=None)


def _extend(into: dict[str, list[Any]], more: Mapping[str, list[Any]]) -> None:
    for name, items in more.items():
        into.setdefault(name, []).extend(items)


def _keep_earliest(into: dict[str, bytes], more: Mapping[str, bytes]) -> None:
    for name, place in more.items():
        into[name] = min(place, into.get(name, place))


def _shares(files: Sequence[InputFile], count: int) -> list[list[InputFile]]:
    """Files dealt out so that tasks get about as many rows each: the largest first, to the emptiest."""
    shares: list[list[InputFile]] = [[] for _ in range(min(count, len(files)))]
    rows = [0] * len(shares)
    for file in sorted(files, key=lambda file: -file.rows):
        lightest = rows.index(min(rows))
        shares[lightest].append(file)
        rows[lightest] += max(file.rows, 1)
    return [sorted(share, key=lambda file: file.first_ordinal) for share in shares]


def _settings(override: msgspec.Struct) -> dict[str, Any]:
    timeout, park_after = getattr(override, "timeout", None), getattr(override, "park_after", None)
    return {
        "capacity": getattr(override, "capacity", None),
        "timeout": None if timeout is None else timeout.total_seconds(),
        "park_after": None if park_after is None else park_after.total_seconds(),
    }


def open_breakers(line: Sequence[Checkpoint]) -> dict[str, int]:
    """By operator: when the breaker that it has left open lets the next probe through (ms).

    Not every checkpoint tells of it: a compaction, a requeue, or a micro-batch in which the operator had nothing to do.
    """
    last: dict[str, dict[str, Any]] = {}
    for checkpoint in reversed(line):
        last = {**checkpoint.metrics.get("services", {}), **last}
    return {name: made["open_until"] for name, made in last.items() if made.get("open_until")}
