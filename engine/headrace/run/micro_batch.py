"""Micro-batch: process a slice of the sources stage by stage, into staged files.

Latest event times that the stages of a micro-batch accept, from `max_ahead` of their sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec

from headrace import crash_points, logs
from headrace.api.graph import AsyncWait, SourceNode
from headrace.commit.protocol import OpenJob
from headrace.commit.run_check import lost_elements
from headrace.config import SourceConfig
from headrace.errors import StateSchemaError
from headrace.log.checkpoint import open_breakers
from headrace.log.facts import OperatorFacts, WatermarkStep, by_operator
from headrace.log.ttl import declared_ttls, history_ttls
from headrace.log.warnings import open_step
from headrace.plan.stages import KeyedStage, Plan, SourceStage, waits_in
from headrace.records.source_columns import EventTimeLimit, limit_of
from headrace.records.watermarks import lag_of
from headrace.run.messages import AsyncSettings, BatchSettings, KeyedTask, SourceTask, TaskReport
from headrace.run.result import BatchResult, Group, timeline_after
from headrace.run.services import LiveResponses
from headrace.run.tasks import StageTasks
from headrace.run.trace import NO_TRACE, Trace
from headrace.run.watch import CALLS, NO_WATCH, SOURCES, Watch, keyed_stage, stop_file
from headrace.sources.row_check import QuarantineCheck
from headrace.sources.slices import Slice
from headrace.sources.source import InputFile
from headrace.tables.folder import JobFolder


def event_time_limits(plan: Plan, configs: Mapping[str, SourceConfig], began_at: int) -> dict[str, EventTimeLimit]:
    """Return the limit of each source and keyed operator, in a micro-batch that began at `began_at` (ms); stages without a limit are left out.

    An operator has the widest limit of the sources that reach it, and is strict if one of them is.
    """
    limits: dict[str, EventTimeLimit] = {}
    stages = {stage.name: (stage.name,) for stage in plan.source_stages} | {
        stage.name: stage.sources for stage in plan.keyed
    }
    for name, sources in stages.items():
        spans = [configs[source].max_ahead for source in sources]
        known = [span for span in spans if span is not None]
        if len(known) == len(spans):
            is_strict = any(configs[source].on_bad_row == "fail" for source in sources)
            limits[name] = limit_of(began_at, max(known), is_strict=is_strict)
    return limits


class MicroBatch:
    """Stages of one slice, run on top of the job's last checkpoint."""

    def __init__(
        self,
        tasks: StageTasks,
        job: OpenJob,
        plan: Plan,
        *,
        parallelism: int,
        backend: str,
        processing_time: int,
        async_state: bool | None = None,
        stop_at: int | None = None,
        finishes: bool = False,
        watch: Watch = NO_WATCH,
        trace: Trace = NO_TRACE,
        responses: LiveResponses | None = None,
    ) -> None:
        """Store the settings. Every operator gets `parallelism` tasks, and sees `processing_time` (ms).

        `async_state`, unless None, overrides the job's setting. At `stop_at` (ms) keyed tasks stop and hold elements not begun yet.
        With `finishes`, services are called for the last time for all waiting elements. `watch` watches the progress of each stage, `trace` observes it.
        On a branch, elements take `responses` of the live lineage.
        """
        self._tasks = tasks
        self._watch = watch
        self._trace = trace
        self._responses = responses
        self._job = job
        self._plan = plan
        self._parallelism = parallelism
        self._processing_time = processing_time
        declared = declared_ttls(plan) | history_ttls(plan)
        self._rebuilt = job.last.state_ttl.changed(declared)
        self.state_ttl = job.last.state_ttl.advanced(
            declared,
            paused_since=job.lineage.last_micro_batch(),
            watermark_of=job.last.latest_watermark_of,
            latest_event_of=job.last.latest_event_of,
            processing_time=self._processing_time,
        )
        """Values of this micro-batch that lifetimes of entries depend on, for the checkpoint."""
        self._async_state = async_state
        self._stop_at = stop_at
        self._finishes = finishes
        config = job.config
        self._shared = BatchSettings(
            code=config.code,
            folder=JobFolder.of(config),
            job=config.job if config.branch is None else f"{config.job} --branch {config.branch}",
            checkpoint_id=job.next_id,
            position=logs.position(),
            attempt_id=job.attempt_id,
            max_parallelism=config.max_parallelism,
            parallelism=parallelism,
            local_folder=str(config.local_folder),
            backend=backend,
            cache_bytes=config.state.cache_bytes,
            inline_reads_below=config.state.inline_reads_below,
            max_memory=config.max_memory,
            versions=job.versions,
            sinks={name: sink.table_path for name, sink in config.sinks.items()},
            appended=config.appended,
            stagings=job.stagings,
            folders=tuple(name for name, sink in config.sinks.items() if sink.kind.has_folders),
            limits=event_time_limits(plan, config.sources, processing_time),
            progress_from=watch.progress_from(),
            is_traced=trace.wants_tasks,
        )

    def run(self, taken: Slice) -> BatchResult:
        """Run all stages: plain ones first, since they need not wait for services. Commits nothing yet.

        Raises the error that a task reported: `UserFunctionError`, `ServiceError`, `SourceError`,
        `StorageError`, `StateSchemaError`.
        """
        result = BatchResult()
        self._check_elements()
        by_source = self._read(taken, result)
        for group in self._plan.groups:
            part = next((part for part in taken.timelines if part.sources == group), None)
            result.timelines[group] = timeline_after(
                self._job.last,
                group,
                part,
                [report for name in group for report in by_source[name]],
                size=self._job.config.watermark.bucket,
                out_of_orderness=self._out_of_orderness(group),
            )
        crash_points.reached("ingest.after")
        plain, others = self._plan.plain_and_others()
        for stage in plain:
            self._run_keyed(stage, result)
        self._make_calls(by_source, result)
        for stage in others:
            self._run_keyed(stage, result)
        for group, timeline in result.timelines.items():
            timeline.settle(result.cut_behind(self._operators_of(group), timeline.watermarks))
        return result

    def operators_after(self, result: BatchResult) -> dict[str, OperatorFacts]:
        """Return the facts of operators after the micro-batch. Of an operator that the code no longer has, fired timers stay."""
        timelines, ranks, since = self._plan.timelines(), self._plan.ranks(), by_operator(self.state_ttl.since)
        last = self._job.last
        left = {name: OperatorFacts(fired_until=facts.fired_until) for name, facts in last.operators.items()}
        own = {
            name: OperatorFacts(
                timeline=timeline,
                rank=ranks.get(name),
                fired_until=result.timers_fired.get(name, last.fired_until(name)),
                local_copies=result.local_copies.get(name, {}),
                ttl_since=since.get(name, {}),
            )
            for name, timeline in timelines.items()
        }
        return {name: facts for name, facts in (left | own).items() if facts != OperatorFacts()}

    def open_steps(self, result: BatchResult) -> Iterator[WatermarkStep]:
        """Yield the next step of each watermark that the rows taken in so far would move."""
        for group, timeline in result.timelines.items():
            step = open_step(
                group,
                timeline.bucket,
                timeline.watermark,
                size=self._job.config.watermark.bucket,
                lag=lag_of(self._out_of_orderness(group)),
                operators=self._operators_of(group),
            )
            if step is not None:
                yield step

    def _out_of_orderness(self, group: Group) -> timedelta:
        return max(source.out_of_orderness for source in self._plan.sources if source.name in group)

    def _check_elements(self) -> None:
        """Raise `StateSchemaError` if elements belong to operators that the pipeline lacks, so that they would be lost."""
        job = self._job
        if problems := [*lost_elements(job.config, job.last, self._shared.versions, self._plan)]:
            raise StateSchemaError("\n".join([*problems, "Nothing was taken in."]))

    @property
    def _resumes(self) -> bool:
        """Return whether elements wait for services."""
        return self._job.last.work.pending > 0

    @cached_property
    def _async_settings(self) -> AsyncSettings:
        config = self._job.config
        return AsyncSettings(
            services={name: service.url for name, service in config.services.items()},
            overrides={name: _settings(override) for name, override in config.async_io.items()},
            limits={name: (service.rate, service.concurrency) for name, service in config.services.items()},
            open_until=open_breakers(self._job.lineage.checkpoints),
            resumes=self._resumes,
            finishes=self._finishes,
            keep_responses={
                name: round(service.keep_responses.total_seconds() * 1000)
                for name, service in config.services.items()
                if service.keep_responses is not None
            },
            responses=self._responses,
        )

    def _operators_of(self, group: Group) -> list[str]:
        """Return the operators of a timeline that get its watermarks: keyed ones, and waits in the stages of its sources."""
        keyed = [stage.name for stage in self._plan.keyed if stage.sources[0] in group]
        return keyed + [
            wait.name for stage in self._plan.source_stages if stage.name in group for wait in waits_in(stage.flow)
        ]

    def _read(self, taken: Slice, result: BatchResult) -> dict[str, list[TaskReport]]:
        """Run the stages of all sources in parallel; return the reports by source."""
        tasks: list[SourceTask] = []
        for stage in self._plan.source_stages:
            own = [file for file in taken.files if file.source == stage.name]
            tasks += self._reading_tasks(stage, own)
        with (
            result.timed("sources"),
            self._watch.stage(self._shared.checkpoint_id, SOURCES, "reading", taken.rows),
            self._trace.span("stage", stage=SOURCES, rows=taken.rows),
        ):
            reports = self._tasks.sources(tasks)
            self._trace.tasks(reports, [task.source for task in tasks])
        by_source: dict[str, list[TaskReport]] = {stage.name: [] for stage in self._plan.source_stages}
        for task, report in zip(tasks, reports, strict=True):
            by_source[task.source].append(report)
        for name, reports_of_source in by_source.items():
            result.add(name, reports_of_source)
            self._check_refused(name, taken, reports_of_source)
        return by_source

    def _check_refused(self, source: str, taken: Slice, reports: Sequence[TaskReport]) -> None:
        """Raise `SourceError` if too many rows of a source are refused. Rows that return from the quarantine do not count."""
        if refused := [rows for report in reports for rows in report.refused]:
            rows = sum(file.taken for file in taken.files if file.source == source and file.picked is None)
            QuarantineCheck(self._job.config.job, source, self._job.config.sources[source]).check(refused, rows)

    def _make_calls(self, by_source: Mapping[str, Sequence[TaskReport]], result: BatchResult) -> None:
        """Make the calls behind shared sources, in tasks like those that read them."""
        shared = [stage for stage in self._plan.source_stages if self._plan.is_shared(stage)]
        tasks = [task for stage in shared for task in self._calling_tasks(stage, by_source[stage.name])]
        if not tasks:
            return
        rows = sum(report.calls_rows for stage in shared for report in by_source[stage.name])
        watched = self._watch.stage(self._shared.checkpoint_id, CALLS, "calling services", rows)
        with result.timed(CALLS), watched, self._trace.span("stage", stage=CALLS, rows=rows):
            reports = self._tasks.sources(tasks)
            self._trace.tasks(reports, [task.source for task in tasks])
        for task, report in zip(tasks, reports, strict=True):
            result.add(task.source, [report])

    def _reading_tasks(self, stage: SourceStage, files: Sequence[InputFile]) -> list[SourceTask]:
        shares = _shares(files, self._parallelism)
        if self._resumes and waits_in(stage.flow) and not self._plan.is_shared(stage):
            shares += [[] for _ in range(self._parallelism - len(shares))]
        return self._source_tasks(stage.source, [(share, None) for share in shares])

    def _calling_tasks(self, stage: SourceStage, reports: Sequence[TaskReport]) -> list[SourceTask]:
        """Return a task for the records that each task has left to call for; none if nothing is to be called for."""
        calls = [report.calls for report in reports]
        if self._resumes:
            calls += [{} for _ in range(self._parallelism - len(calls))]
        elif not any(calls):
            return []
        return self._source_tasks(stage.source, [([], staged) for staged in calls])

    def _source_tasks(
        self, source: SourceNode, shares: Sequence[tuple[list[InputFile], dict[str, list[str]] | None]]
    ) -> list[SourceTask]:
        """Return the tasks of a source: each for its files, or for the records that it makes calls for."""
        config = self._job.config
        bound = config.sources[source.name]
        return [
            SourceTask(
                batch=self._shared,
                source=source.name,
                files=files,
                calls=calls,
                bucket=config.watermark.bucket,
                async_io=self._async_settings,
                index=index,
                tasks=len(shares),
                stop_at=self._stop_at,
                stop_file=stop_file(self._shared.attempt_id),
                on_bad_file=bound.on_bad_file,
                on_bad_row=bound.on_bad_row,
            )
            for index, (files, calls) in enumerate(shares)
        ]

    def _run_keyed(self, stage: KeyedStage, result: BatchResult) -> None:
        rows = sum(sum(file.rows) for file in result.transit.get(stage.name, ()))
        watched = self._watch.stage(self._shared.checkpoint_id, keyed_stage(stage.number), stage.name, rows)
        with result.timed(stage.name), watched, self._trace.span("stage", stage=stage.name, rows=rows):
            reports = self._keyed(stage, result)
            self._trace.tasks(reports, [stage.name] * len(reports))
        result.add(stage.name, reports)

    def _keyed(self, stage: KeyedStage, result: BatchResult) -> list[TaskReport]:
        parent, name = self._job.last, stage.name
        group = self._plan.group_of(name)
        timeline = result.timelines[group]
        is_wait = isinstance(stage.operator, AsyncWait)
        task = KeyedTask(
            batch=self._shared,
            stage=stage.number,
            watermark=parent.watermark_of(name) if parent.timeline_of(name) else timeline.seen,
            watermarks=timeline.watermarks,
            processing_time=self._processing_time,
            first_ordinal=parent.timeline(group).bucket.next_ordinal,
            async_state=self._job.config.async_state(name, enabled=self._async_state),
            timers_fired=parent.fired_until(name),
            upsert_materialize=self._job.config.upsert_materialize(name, self._shared.backend),
            state_ttl=self.state_ttl,
            local_copies={} if name in self._rebuilt else parent.local_copies(name),
            parent_id=parent.checkpoint_id,
            resumes=parent.holds_records,
            async_io=self._async_settings if is_wait else AsyncSettings(services={}),
            broadcast=tuple(result.broadcast.get(name, ())),
            cut=result.cut_behind(stage.after, timeline.watermarks),
            stop_at=self._stop_at,
            stop_file=stop_file(self._shared.attempt_id),
        )
        return self._tasks.keyed(task, result.transit.get(name, ()))


def _shares(files: Sequence[InputFile], count: int) -> list[list[InputFile]]:
    """Distribute files so that tasks get similar numbers of rows: the largest file first, to the task with the fewest rows."""
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
