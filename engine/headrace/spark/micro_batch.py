"""One micro-batch: from a slice of the source to staged files, stage by stage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

import msgspec
from pyspark.sql import DataFrame, SparkSession

from headrace import clock, faults
from headrace.api import AsyncWait
from headrace.async_io.service_metrics import ServiceMetrics
from headrace.async_io.service_metrics import merged as merged_services
from headrace.checkpoint.async_requests import waiting_for
from headrace.checkpoint.buffered_requests import holders
from headrace.checkpoint.checkpoint import Bucket, Checkpoint, OutputFile, last_micro_batch
from headrace.checkpoint.files import StagedFile
from headrace.checkpoint.open_job import OpenJob
from headrace.checkpoint.tables import ASYNC_REQUESTS, BUFFERED_REQUESTS
from headrace.checkpoint.ttl_history import declared_ttls, history_ttls
from headrace.errors import EngineBug, HeadraceError, StateSchemaError
from headrace.execution.element import Watermark, before_watermark
from headrace.execution.fast_drain import seen_and_held
from headrace.plan.order import record_order
from headrace.plan.stages import Plan, waits_of
from headrace.sources.arrival import Watermarks, advance
from headrace.sources.source import InputFile, Slice
from headrace.spark.reports import (
    AsyncSettings,
    IngestTask,
    KeyedTask,
    Place,
    TaskReport,
    decode_report,
    encode,
)
from headrace.spark.task_output import TRANSIT, TRANSIT_DDL
from headrace.spark.tasks import REPORT_DDL, ingest_partition, keyed_partition, transit_partition


@dataclass(frozen=True, slots=True)
class LineResult:
    """Where a micro-batch leaves a line of ordinals: its bucket, its last watermark, and those that not every operator has seen."""

    bucket: Bucket
    watermark: int | None = None
    repeated: tuple[tuple[int, int], ...] = ()


@dataclass(slots=True)
class BatchResult:
    """What the stages of a micro-batch left behind, for the commit."""

    files: dict[str, list[StagedFile]] = field(default_factory=dict)
    outputs: dict[str, list[OutputFile]] = field(default_factory=dict)
    local_copies: dict[str, dict[str, str]] = field(default_factory=dict)
    timers_fired: dict[str, dict[str, int]] = field(default_factory=dict)
    metrics: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, ...], LineResult] = field(default_factory=dict)
    """By the names of the sources that share the line."""
    watermark: int | None = None
    cut: bytes | None = None
    held: int = 0
    blocks: bytes | None = None
    pending: int = 0
    due: int | None = None
    services: dict[str, ServiceMetrics] = field(default_factory=dict)

    def add(self, operator: str, reports: Iterable[TaskReport]) -> None:
        """Take in the reports of a stage."""
        copies: dict[str, str] = {}
        reports = list(reports)
        if fired := [report.timers_fired for report in reports if report.timers_fired]:
            clocks = set.intersection(*map(set, fired))
            self.timers_fired[operator] = {name: min(until[name] for until in fired) for name in sorted(clocks)}
        for report in reports:
            for table, files in report.state_files.items():
                self.files.setdefault(table, []).extend(files)
            for sink, outputs in report.outputs.items():
                self.outputs.setdefault(sink, []).extend(outputs)
            copies |= report.local_copy
            self.held += report.held
            self.pending += report.pending
            self.due = _earlier(self.due, report.due)
            self.blocks = _earlier(self.blocks, report.blocks)
            self.services = merged_services((self.services, report.services))
            self.cut = _earlier(self.cut, report.cut)
            self.metrics.update(report.metrics)
        if copies:
            self.local_copies[operator] = copies

    def hold_watermarks(self, watermarks: Watermarks) -> None:
        """Come no further than to the first watermark after an element that waits and lets others pass."""
        if self.blocks is not None:
            places = (Watermark(record_order(ordinal), time) for ordinal, time in watermarks)
            first = next((before_watermark(place) for place in places if place.order > self.blocks), None)
            self.cut = _earlier(self.cut, first)

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
        spark: SparkSession,
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
        self._spark = spark
        self._job = job
        self._plan = plan
        self._parallelism = parallelism
        self._processing_time = clock.now()
        declared = declared_ttls(plan) | history_ttls(plan)
        self._rebuilt = job.last.state_ttl.changed(declared)
        self.state_ttl = job.last.state_ttl.advanced(
            declared,
            paused_since=last_micro_batch(job.log.checkpoints),
            watermark=job.last.latest_watermark,
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
        source = self._plan.ingest.source
        self._check_holders()
        with result.timed(source.name):
            reports = self._ingest(taken.files)
        result.add(source.name, reports)
        parent = self._job.last
        (sources,) = self._plan.groups  # one line of ordinals, so far
        repeated = max((parent.offsets[name].repeated for name in sources if name in parent.offsets), default=())
        bucket, new = self._line(reports, parent, taken)
        watermarks = [*repeated, *new]
        result.hold_watermarks(watermarks)
        faults.reached("ingest.after")
        transit = [path for report in reports for path in report.transit]
        for number, stage in enumerate(self._plan.keyed):
            name = stage.operator.name
            with result.timed(name):
                reports = self._keyed(number, transit, watermarks, parent, result.cut)
            result.add(name, reports)
            result.hold_watermarks(watermarks)
            transit = [path for report in reports for path in report.transit]
        repeated = self._settle_watermarks(result, watermarks, parent)
        last = watermarks[-1][1] if watermarks else parent.latest_watermark
        result.lines[sources] = LineResult(bucket, last, repeated)
        return result

    def _check_holders(self) -> None:
        """Raise `StateSchemaError` when an operator holds records that the pipeline does not have: they would be lost."""
        self._check_waiting()
        if not self._job.last.held:
            return
        place = self._place
        found = holders(place.job_folder, place.versions[BUFFERED_REQUESTS], storage=place.storage)
        gone = sorted(found - {stage.operator.name for stage in self._plan.keyed})
        if gone:
            msg = (
                f"operator {', '.join(map(repr, gone))} holds records of a run that had to stop, and the pipeline has no "
                "such operator any more. Bring the name back until a run has gone through, or restore to a checkpoint before "
                "the run that stopped."
            )
            raise StateSchemaError(msg)

    def _check_waiting(self) -> None:
        if not self._resumes:
            return
        place = self._place
        found = waiting_for(place.job_folder, place.versions[ASYNC_REQUESTS], storage=place.storage)
        gone = sorted(found - {wait.name for wait in waits_of(self._plan)})
        if gone:
            msg = (
                f"elements wait for operator {', '.join(map(repr, gone))} (headrace retries JOB), and the pipeline has no such "
                "async wait any more. Bring the name back and let the job finish what waits (headrace run JOB --finish), or "
                "restore to a checkpoint before."
            )
            raise StateSchemaError(msg)

    @property
    def _resumes(self) -> bool:
        """Whether elements wait for services."""
        return self._job.last.pending > 0

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

    @staticmethod
    def _settle_watermarks(
        result: BatchResult, watermarks: Watermarks, parent: Checkpoint
    ) -> tuple[tuple[int, int], ...]:
        """Make the last watermark that all operators have seen the job's; return the others, which are repeated."""
        places = [Watermark(record_order(ordinal), time) for ordinal, time in watermarks]
        seen, _ = seen_and_held(places, result.cut)
        result.watermark = seen[-1].timestamp if seen else parent.watermark
        return tuple(watermarks[len(seen) :])

    def _ingest(self, files: Sequence[InputFile]) -> list[TaskReport]:
        config = self._job.config
        source = config.sources[self._plan.ingest.source.name]
        shares = _shares(files, self._parallelism)
        if self._resumes and self._plan.ingest.waits:
            shares += [[] for _ in range(self._parallelism - len(shares))]
        tasks = [
            IngestTask(
                place=self._place,
                files=list(share),
                bucket=config.watermark.bucket,
                async_io=self._async_settings(),
                tasks=len(shares),
                stop_at=self._stop_at,
                stop_file=stop_file(self._place.job_folder, self._place.attempt_id),
                on_bad_file=source.on_bad_file,
                on_bad_row=source.on_bad_row,
            )
            for share in shares
        ]
        if not tasks:
            return []
        payloads = [encode(task) for task in tasks]
        ids = self._spark.range(0, len(tasks), 1, len(tasks))
        return _collect(ids.mapInArrow(ingest_partition(payloads), REPORT_DDL), len(tasks))

    def _line(self, reports: Sequence[TaskReport], parent: Checkpoint, taken: Slice) -> tuple[Bucket, Watermarks]:
        """Return where the line of ordinals stands, and its new watermarks: as planned, or as tasks report them."""
        (sources,) = self._plan.groups
        line = next((line for line in taken.lines if line.sources == sources), None)
        if line is not None and line.after is not None:
            return line.after, line.watermarks or []
        seen: dict[int, int] = {}
        for report in reports:
            for number, latest in report.buckets.items():
                seen[number] = max(latest, seen.get(number, latest))
        lag = self._plan.ingest.source.out_of_orderness // _MILLISECOND + 1
        size = self._job.config.watermark.bucket
        rows = 0 if line is None else line.rows
        return advance(parent.line(sources), seen, rows, size=size, lag=lag, watermark=parent.latest_watermark)

    def _keyed(
        self, number: int, transit: Sequence[str], watermarks: Watermarks, parent: Checkpoint, cut: bytes | None
    ) -> list[TaskReport]:
        operator = self._plan.keyed[number].operator.name
        is_wait = isinstance(self._plan.keyed[number].operator, AsyncWait)
        task = KeyedTask(
            place=self._place,
            stage=number,
            watermark=parent.watermark,
            watermarks=watermarks,
            processing_time=self._processing_time,
            first_ordinal=parent.line(self._plan.groups[0]).next_ordinal,
            async_state=self._job.config.async_state(operator, enabled=self._async_state),
            timers_fired=parent.timers_fired.get(operator, {}),
            upsert_materialize=self._job.config.upsert_materialize(operator, self._place.backend),
            state_ttl=self.state_ttl,
            local_copies={} if operator in self._rebuilt else parent.local_copies.get(operator, {}),
            parent_id=parent.checkpoint_id,
            resumes=parent.held,
            async_io=self._async_settings() if is_wait else AsyncSettings(services={}),
            cut=cut,
            stop_at=self._stop_at,
            stop_file=stop_file(self._place.job_folder, self._place.attempt_id),
        )
        if not transit:
            # Over an empty relation Spark runs no task at all, but timers may be due.
            ids = self._spark.range(0, self._parallelism, 1, self._parallelism)
            idle = ids.mapInArrow(keyed_partition(encode(task), idle=True), REPORT_DDL)
            return _collect(idle, self._parallelism)
        owner = f"cast(key_group * {self._parallelism} div {self._place.max_parallelism} as int)"
        rows = self._read(transit).selectExpr("*", f"{owner} as task").repartitionById(self._parallelism, "task")
        ordered = rows.drop("task").sortWithinPartitions("order")
        return _collect(ordered.mapInArrow(keyed_partition(encode(task)), REPORT_DDL), self._parallelism)

    def _read(self, transit: Sequence[str]) -> DataFrame:
        if "://" not in self._place.job_folder:
            return self._spark.read.schema(TRANSIT_DDL).parquet(*transit)
        # Executors read from the object store as they wrote to it, so Spark needs no S3 client of its own.
        paths = self._spark.createDataFrame([(path,) for path in transit], "path string")
        spread = paths.repartition(min(len(transit), self._parallelism))
        return spread.mapInArrow(transit_partition(self._place.storage), TRANSIT_DDL)


def transit_folder(job_folder: str, attempt_id: str) -> str:
    """Return the folder of what an attempt's tasks hand on to each other."""
    return f"{job_folder}/{TRANSIT}/{attempt_id}"


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


def _collect(reports: DataFrame, expected: int) -> list[TaskReport]:
    found = sorted((decode_report(bytes(row.report)) for row in reports.collect()), key=lambda r: r.task)
    for report in found:
        if report.error is not None:
            raise _as_raised(report.error_class or "", report.error)
    if [report.task for report in found] != list(range(expected)):
        msg = f"{expected} tasks ran, but reports came from {[report.task for report in found]}"
        raise EngineBug(msg)
    return found


def _as_raised(name: str, message: str) -> HeadraceError:
    classes = {cls.__name__: cls for cls in HeadraceError.__subclasses__()}
    return classes.get(name, EngineBug).told(message)
