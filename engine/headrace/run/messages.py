"""Messages between driver and tasks, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.async_io.metrics import ServiceMetrics
from headrace.async_io.traced_calls import TracedCalls
from headrace.config import PipelineCode
from headrace.logs import Position
from headrace.options import AsyncStateOptions, MaterializerOptions
from headrace.records.source_columns import EventTimeLimit
from headrace.run.services import LiveResponses
from headrace.sinks.sink import OutputFile
from headrace.sinks.table_fit import PLAIN, Staging
from headrace.sources.row_check import RefusedRows
from headrace.sources.source import InputFile
from headrace.state.ttl import TtlHistory
from headrace.storage.files import StagedFile
from headrace.tables.folder import JobFolder


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all tasks of a micro-batch share."""

    code: PipelineCode
    folder: JobFolder
    job: str = "JOB"
    """Job as commands name it, on a branch with the branch: for messages."""
    checkpoint_id: int
    position: Position = Position()
    """For log lines of the tasks."""
    attempt_id: str
    max_parallelism: int
    parallelism: int
    local_folder: str
    backend: str
    cache_bytes: int
    inline_reads_below: int
    max_memory: int | None = None
    """Bytes of rows that a task holds at once; None: any number."""
    versions: dict[str, int]
    sinks: dict[str, str]
    appended: tuple[str, ...] = ()
    """Sinks that rows are only added to."""
    stagings: dict[str, Staging] = {}
    """How rows are staged, by sink, so that they fit the tables."""
    folders: tuple[str, ...] = ()
    """Sinks whose partitions are folders."""
    limits: dict[str, EventTimeLimit] = {}
    """Latest event time of a good row, by source or keyed operator; without an entry, any."""
    progress_from: int | None = None
    """Timestamp from which on tasks report progress (ms); None: never."""
    is_traced: bool = False
    """True if tasks report their times, and some of their calls."""

    def memory_for(self, part: int) -> int | None:
        """Return the bytes that one of so many parts of a task's memory has; None without a limit."""
        return None if self.max_memory is None else max(1, self.max_memory // part)

    def staging(self, sink: str) -> Staging:
        """Return how rows of a sink are staged."""
        return self.stagings.get(sink, PLAIN)


class AsyncSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of tasks for calls to services."""

    services: dict[str, str]
    overrides: dict[str, dict[str, Any]] = {}
    """Settings of the job's file that override the pipeline's, by operator; spans are seconds."""
    limits: dict[str, tuple[float | None, int | None]] = {}
    """Limits by service: calls per second, and concurrent calls."""
    open_until: dict[str, int] = {}
    """Timestamp of the next probe (ms), by operator with an open breaker."""
    resumes: bool = False
    """True if earlier micro-batches have left elements."""
    finishes: bool = False
    """True if services are called for the last time for these elements."""
    keep_responses: dict[str, int] = {}
    """Time for which responses are kept (ms), by service that keeps them."""
    responses: LiveResponses | None = None
    """Responses that the elements of a branch take; None on the job itself."""


class SourceTask(msgspec.Struct, frozen=True, kw_only=True):
    """Task of a source: the files that it reads, or the calls that it makes behind the plain stages."""

    batch: BatchSettings
    source: str
    files: list[InputFile]
    bucket: int
    async_io: AsyncSettings
    calls: dict[str, list[str]] | None = None
    """Staged files of records, by the async wait that takes them: the task makes the calls behind a shared source. None: it reads the source."""
    index: int = 0
    """Number of the task among those of the source."""
    tasks: int = 1
    """Number of tasks of the source: each resumes the waiting elements of its share of the key groups."""
    stop_at: int | None = None
    """Timestamp to stop, and to leave elements without a response (ms)."""
    stop_file: str | None = None
    on_bad_file: str = "fail"
    on_bad_row: str = "quarantine"


class KeyedTask(msgspec.Struct, frozen=True, kw_only=True):
    """Work of one keyed operator, the same for all of its tasks."""

    batch: BatchSettings
    stage: int
    watermark: int | None
    watermarks: list[tuple[int, int]]
    processing_time: int
    """Begin of the micro-batch by the driver's clock (ms): the same in every task and attempt."""
    first_ordinal: int
    """Arrival ordinal of the micro-batch's first record, even if it has no record."""
    async_state: AsyncStateOptions = AsyncStateOptions()
    upsert_materialize: MaterializerOptions = MaterializerOptions()
    state_ttl: TtlHistory = TtlHistory()
    timers_fired: dict[str, int] = {}
    """Timestamp up to which no timer of the operator is left (ms), by clock."""
    local_copies: dict[str, str] = {}
    parent_id: int = 0
    resumes: bool = False
    """True if an earlier run held records."""
    async_io: AsyncSettings = AsyncSettings(services={})
    broadcast: tuple[str, ...] = ()
    """Staged files that every task reads."""
    cut: bytes | None = None
    """Place from which on records are held: an earlier operator has reached only this place."""
    stop_at: int | None = None
    """Timestamp to stop, and to hold records not begun yet (ms)."""
    stop_file: str | None = None
    """File whose existence tells tasks to stop."""


class TransitFile(msgspec.Struct, frozen=True, kw_only=True):
    """File of rows in transit to a keyed stage: one part for each of its tasks, in the order of the tasks."""

    path: str
    ends: list[int]
    """Byte behind the part of each task."""
    rows: list[int]
    """Number of rows of each task."""
    firsts: list[bytes] = []
    """Place of the first row of each task, where memory has a limit: a task then reads its parts in this order."""
    sizes: list[int] = []
    """Bytes of the rows of each task in memory, likewise."""


class TaskTrace(msgspec.Struct, kw_only=True):
    """Times of a task, for the trace of its run."""

    began_at: int = 0
    """When it began, by the clock of its machine (ms)."""
    begun: float = 0.0
    """The same by the monotonic clock of its process (s), as `ended` and the times of the calls are."""
    ended: float = 0.0
    calls: TracedCalls


class TaskReport(msgspec.Struct, kw_only=True):
    """Report of one task: files that it staged by state table, files for the next stage, files for sinks."""

    task: int = 0
    state_files: dict[str, list[StagedFile]] = {}
    transit: dict[str, list[TransitFile]] = {}
    """Staged files of records, by the stage that reads them."""
    broadcast: dict[str, list[str]] = {}
    """Staged files that all tasks of a stage read, by stage."""
    calls: dict[str, list[str]] = {}
    """Staged files of records for later calls, by async wait."""
    calls_rows: int = 0
    """Number of records in these files."""
    outputs: dict[str, list[OutputFile]] = {}
    buckets: dict[int, int] = {}
    refused: list[RefusedRows] = []
    """Rows of its files that a source's task has refused."""
    metrics: dict[str, int] = {}
    local_copy: dict[str, str] = {}
    timers_fired: dict[str, int] = {}
    cuts: dict[str, bytes] = {}
    """Place that an operator has reached, by operator; only of operators that did not finish."""
    held: int = 0
    blocks: dict[str, bytes] = {}
    """First waiting element that lets others pass up to the next watermark, by async operator."""
    pending: int = 0
    """Number of elements in `async_requests`."""
    due: int | None = None
    """Timestamp when the first of them is due (ms)."""
    services: dict[str, ServiceMetrics] = {}
    """Metrics by async operator."""
    trace: TaskTrace | None = None
    """Its times; None unless the driver has asked for them."""
    error: str | None = None
    error_class: str | None = None
    exit_code: int = 0


encode_report = msgspec.json.encode
decode_report = msgspec.json.Decoder(TaskReport).decode
