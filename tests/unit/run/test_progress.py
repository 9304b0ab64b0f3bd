"""Progress within a micro-batch, without Spark: on a virtual clock, polled when the test says so."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from functools import partial

import pytest

from headrace import AsyncFunction, KeyedProcessFunction, OutputMode, Pipeline, Struct, Timestamp, clock, threads
from headrace.log.progress import ProgressFiles, TaskProgress
from headrace.run import job_run
from headrace.tables.folder import JobFolder
from headrace.testing import PipelineHarness
from headrace.testing._memory_disk import forget_disk, memory_disk
from headrace.testing._world_threads import WorldThreads

ROWS = 1000
BREAK = 300
"""At this record ten seconds pass: as many as there are between two files on an object store."""
LOOK = 700
"""At this record the driver looks."""
DISK = "progress"


class Order(Struct, frozen=True):
    id: str
    at: Timestamp


class Board(Struct, frozen=True):
    id: str
    at: int


class Timestamps(KeyedProcessFunction[Order, Board]):
    async def process(self, record, ctx, /):
        pass_time(record)
        ctx.collect(Board(record.id, record.at))


class Answer(AsyncFunction[Order, Order]):
    async def invoke(self, record, /):
        pass_time(record)
        await asyncio.sleep(0)
        return [record]


def pass_time(record):
    if record.at == BREAK:
        clock.sleep(10)
    if record.at == LOOK:
        BEATS[-1].beat()


BEATS = []


@pytest.fixture(autouse=True)
def looking(monkeypatch):
    BEATS.append(WorldThreads())
    before = threads.use(BEATS[-1])
    monkeypatch.setattr(job_run, "run_on", partial(job_run.run_on, shows_progress=True))
    yield
    threads.use(before)
    BEATS.clear()


def shop(*, asks=False, shares=False, rows=ROWS, **options):
    stream = Pipeline("shop").source("orders", Order, event_time="at")
    if shares:
        stream.deduplicate("orders_by_id", key="id").sink("orders_by_id")
    if asks:
        stream = stream.async_wait("ask", Answer(), mode=OutputMode.ORDERED, capacity=8, timeout=timedelta(minutes=1))
    stream = stream.key_by("id").process("timestamps", Timestamps())
    pipeline = stream.upsert_materialize("latest", primary_key=("id",)).sink("board")
    harness = PipelineHarness(pipeline, parallelism=1, **options)
    harness.feed("orders", [Order("a", at) for at in range(1, rows + 1)])
    return harness


def progress(harness):
    return [event.fields for event in harness.events if event.kind == "progress"]


def test_driver_sees_rows_done_within_a_stage():
    harness = shop()
    harness.run()
    (seen,) = progress(harness)
    assert (seen["operator"], seen["rows"], seen["of"], seen["checkpoint_id"]) == ("timestamps", 512, ROWS, 1)


def test_driver_sees_calls_in_flight():
    harness = shop(asks=True)
    harness.run()
    seen = progress(harness)[0]
    assert (seen["operator"], seen["of"]) == ("ask", ROWS)
    assert BREAK - 8 <= seen["rows"] < LOOK
    assert 0 < seen["in_flight"] <= 8


def test_driver_sees_calls_behind_a_shared_source():
    harness = shop(asks=True, shares=True)
    harness.run()
    seen = progress(harness)[0]
    assert (seen["operator"], seen["of"]) == ("ask", ROWS)


def test_quick_micro_batch_writes_no_file():
    written = []

    def note(step, path):
        if step == "write" and "/progress/" in path:
            written.append(path)

    harness = shop(rows=BREAK - 1, job={"state": {"root": f"memory://{DISK}/state"}})
    with memory_disk(DISK).failing(note):
        harness.run()
    forget_disk(DISK)
    assert (written, progress(harness)) == ([], [])


def test_run_leaves_no_file_behind():
    harness = shop()
    folder = harness.config.job_folder
    ProgressFiles(JobFolder(str(folder)), "dead").write_task(
        "stage0", "0", TaskProgress(operator="timestamps", rows=999_999)
    )
    harness.run()
    assert progress(harness)[0]["rows"] == 512
    assert ProgressFiles(JobFolder(str(folder)), "dead").read_tasks("stage0") == []


def test_store_that_refuses_progress_fails_no_run():
    refused = []

    def refuse(step, path):
        if "/progress/" in path:
            refused.append(step)
            raise OSError(28, "no space", path)

    harness = shop(job={"state": {"root": f"memory://{DISK}/state"}})
    with memory_disk(DISK).failing(refuse):
        report = harness.run()
    board = harness.sink("board")
    forget_disk(DISK)
    assert (report.rows_in, board, progress(harness)) == (ROWS, [Board("a", ROWS)], [])
    assert "write" in refused
