"""What driver and tasks tell each other, as JSON."""

from __future__ import annotations

from typing import Any

import msgspec

from headrace.async_io.service_metrics import ServiceMetrics
from headrace.config import FileOptions
from headrace.execution.options import AsyncStateOptions
from headrace.materializer.options import MaterializerOptions
from headrace.plan.loader import PipelineCode
from headrace.sinks.sink import OutputFile
from headrace.sources.source import InputFile
from headrace.state.ttl_history import TtlHistory
from headrace.tables.files import StagedFile


class BatchSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings that all tasks of a micro-batch share."""

    code: PipelineCode
    job_folder: str
    checkpoint_id: int
    attempt_id: str
    max_parallelism: int
    parallelism: int
    local_folder: str
    backend: str
    cache_bytes: int
    inline_reads_below: int
    versions: dict[str, int]
    sinks: dict[str, str]
    appended: tuple[str, ...] = ()
    """The sinks that rows are only added to."""
    partition_by: dict[str, tuple[str, ...]] = {}
    """By sink: the columns that its table is partitioned by."""
    folders: tuple[str, ...] = ()
    """The sinks whose partitions are folders."""
    storage: dict[str, str] | None = None
    progress_from: int | None = None
    """From when on tasks tell how far they have come (ms); None: never."""


class AsyncSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What tasks have to know for calls to services."""

    services: dict[str, str]
    overrides: dict[str, dict[str, Any]] = {}
    """By operator: what the job's file says in place of the pipeline; spans are seconds."""
    limits: dict[str, tuple[float | None, int | None]] = {}
    """By service: calls a second, and calls at once."""
    open_until: dict[str, int] = {}
    """By operator whose breaker was left open: when the next probe is due (ms)."""
    resumes: bool = False
    """Whether earlier micro-batches have left elements."""
    finishes: bool = False
    """Whether those are called for once more, and for the last time."""


class SourceTask(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one source that one task reads."""

    batch: BatchSettings
    source: str
    files: list[InputFile]
    bucket: int
    async_io: AsyncSettings
    index: int = 0
    """Its number among the tasks of the source."""
    tasks: int = 1
    """How many there are: each takes up what was left for its share of the key groups."""
    stop_at: int | None = None
    """When to leave what has not been answered (ms)."""
    stop_file: str | None = None
    on_bad_file: str = "fail"
    on_bad_row: str = "quarantine"
    file_options: FileOptions = FileOptions()


class KeyedTask(msgspec.Struct, frozen=True, kw_only=True):
    """One keyed operator's work, the same for all of its tasks."""

    batch: BatchSettings
    stage: int
    watermark: int | None
    watermarks: list[tuple[int, int]]
    processing_time: int
    """What the driver's clock said when the micro-batch began (ms): the same in every task and attempt."""
    first_ordinal: int
    """The arrival ordinal that the micro-batch's first record has, or would have."""
    async_state: AsyncStateOptions = AsyncStateOptions()
    upsert_materialize: MaterializerOptions = MaterializerOptions()
    state_ttl: TtlHistory = TtlHistory()
    timers_fired: dict[str, int] = {}
    """By clock, up to where no timer of the operator is left (ms)."""
    local_copies: dict[str, str] = {}
    parent_id: int = 0
    resumes: bool = False
    """Whether an earlier run held records."""
    async_io: AsyncSettings = AsyncSettings(services={})
    broadcast: tuple[str, ...] = ()
    """Staged files that every task reads."""
    cut: bytes | None = None
    """Records at or after this place are held: an operator before it came no further."""
    stop_at: int | None = None
    """When to stop, and hold what has not begun (ms)."""
    stop_file: str | None = None
    """A file that, once it is there, says to stop."""


class TaskReport(msgspec.Struct, kw_only=True):
    """What one task did: files it staged by state table, files for the next stage, files for sinks."""

    task: int = 0
    state_files: dict[str, list[StagedFile]] = {}
    transit: dict[str, list[str]] = {}
    """By the stage that reads them: staged files of records."""
    transit_rows: dict[str, int] = {}
    """Likewise: how many records those are."""
    broadcast: dict[str, list[str]] = {}
    """Likewise, for all tasks of the stage."""
    outputs: dict[str, list[OutputFile]] = {}
    buckets: dict[int, int] = {}
    metrics: dict[str, int] = {}
    local_copy: dict[str, str] = {}
    timers_fired: dict[str, int] = {}
    cuts: dict[str, bytes] = {}
    """By operator that did not come to the end: up to where it did."""
    held: int = 0
    blocks: dict[str, bytes] = {}
    """By async operator: the first element that waits and lets others pass, up to the next watermark."""
    pending: int = 0
    """Elements in `async_requests`."""
    due: int | None = None
    """When the first of them is due (ms)."""
    services: dict[str, ServiceMetrics] = {}
    """By async operator."""
    error: str | None = None
    error_class: str | None = None
    exit_code: int = 0


encode_report = msgspec.json.encode
decode_report = msgspec.json.Decoder(TaskReport).decode
