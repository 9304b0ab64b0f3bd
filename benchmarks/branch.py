"""Branches: the cost of a fork, of a backfill of one day in thirty, and of reading state through a branch.

    make bench-branch

The job counts the events of each key, in one process and without Spark; tables and commits are real. Its state is one
count per key, and its sink has one row per key. The backfill recomputes the first day of the second half from a
corrected file, and all later days. The straight run processes the same days for the first time. The contents of both
are compared.
"""

import argparse
import gc
import shutil
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from benchmarks._report import figure, report
from headrace import KeyedProcessFunction, Pipeline, RowKind, Struct, Timestamp, ValueState, clock
from headrace.commit.run_check import checked_plan
from headrace.edits.fork import drop_branch, fork, log_of
from headrace.edits.promote import promoting
from headrace.local.tasks import LocalTasks
from headrace.run.backfill import Backfill
from headrace.run.backfill_plan import plan_backfill
from headrace.run.job_run import run_on
from headrace.run.options import RunOptions
from headrace.sources.interval import Interval
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE
from headrace.testing import PipelineHarness

FIRST = datetime(2019, 12, 1, tzinfo=UTC)
DAYS, CORRECTED, CHANGED = 30, 15, 10_000


class Event(Struct, frozen=True):
    """An event of a key."""

    key: str
    at: Timestamp


class Count(Struct, frozen=True):
    """The number of events of a key."""

    key: str
    count: int


class Counts(KeyedProcessFunction[Event, Count]):
    """Counts events."""

    count = ValueState("count", int)

    async def process(self, event, ctx, /):
        count = (await self.count.value() or 0) + 1
        await self.count.update(count)
        if count > 1:
            ctx.collect(Count(event.key, count - 1), RowKind.UPDATE_BEFORE)
        ctx.collect(Count(event.key, count), RowKind.INSERT if count == 1 else RowKind.UPDATE_AFTER)


def counts():
    """Return the pipeline."""
    pipeline = Pipeline("counts")
    counted = pipeline.source("events", Event, event_time="at").key_by("key").process("counts", Counts())
    counted.upsert_materialize("latest", primary_key=("key",), upsert_key=("key",)).sink("totals")
    return pipeline


class Job:
    """The job with one file per day, and runs of it in this process."""

    def __init__(self, backend):
        job = {"sources": {"events": {"interval": "%Y-%m-%d"}}}
        self.harness = PipelineHarness(counts(), backend=backend, bucket=100_000, files_per_batch=1, job=job)
        self.config = self.harness.config
        self.runs = 0

    def write(self, day, keys, shift=0):
        """Write, or rewrite, the file of a day with one event per key."""
        start = FIRST + timedelta(days=day)
        timestamp = round(start.timestamp() * 1000)
        names = pa.array([f"key-{number + shift:07d}" for number in range(keys)])
        times = pa.array([timestamp + number for number in range(keys)], pa.timestamp("ms", tz="UTC"))
        name = f"{start:%Y-%m-%d}.parquet"
        (self.harness.folder / "input" / "events" / name).unlink(missing_ok=True)
        self.harness.feed_table("events", pa.table({"key": names, "at": times}), file=name)

    def run_on_branch(self, config, options):
        """Run the job or a branch of it."""
        return run_on(LocalTasks(), config, options, lambda _event: None)

    def run(self):
        """Process all input."""
        self.runs += 1
        options = RunOptions(run_id=f"run-{self.runs}", backend=self.harness.backend, parallelism=2)
        return self.run_on_branch(self.config, options)

    def backfill(self, first, end):
        """Recompute days, up to the comparison; return the name of the branch."""
        timestamps = (round((FIRST + timedelta(days=day)).timestamp() * 1000) for day in (first, end))
        plan = plan_backfill(self.config, checked_plan(self.config), Interval(*timestamps), None)
        options = RunOptions(run_id="backfill", backend=self.harness.backend, parallelism=2)
        Backfill(self.config, checked_plan(self.config), plan, options, self.run_on_branch).run()
        return plan.name

    def sink(self):
        """Return the rows of the sink, sorted."""
        table = Storage(self.config.sinks["totals"].table_path).table().latest()
        return table.read(table.schema).sort_by("key")


def timed(work):
    """Return the result of a call, seconds and seconds of CPU."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def forks(backend, keys, turns):
    """Return the seconds of forks of a job with as many keys, and the bytes of data that each wrote."""
    job = Job(backend)
    job.write(0, keys)
    job.run()
    seconds, data = [], []
    for turn in range(turns + 1):
        _, wall, _ = timed(lambda: fork(job.config, "again", None, "bench"))
        folder = Path(job.config.on_branch("again").job_folder)
        files = [file for file in folder.rglob("*.parquet") if "_delta_log" not in file.parts]
        if turn:  # the first one loads modules and makes the table of branches
            seconds.append(wall)
            data.append(sum(file.stat().st_size for file in files if CHECKPOINTS not in file.parts))
        drop_branch(job.config, "again", "bench")
    return job, seconds, data


def replays(backend, keys, turns):
    """Return CPU seconds of the second half: of the first run, of the backfill, and of the promotion."""
    straight, backfilled, promoted = [], [], []
    for _ in range(turns):
        job = Job(backend)
        for day in range(CORRECTED):
            job.write(day, keys, day)
        job.run()
        for day in range(CORRECTED, DAYS):
            job.write(day, keys, day)
        straight.append(timed(job.run)[2])
        job.write(CORRECTED, keys, 7 * keys)
        name, _, cpu = timed(lambda job=job: job.backfill(CORRECTED, CORRECTED + 1))
        backfilled.append(cpu)

        def promote(job=job, name=name):
            with promoting(job.config, name, "bench") as promotion:
                promotion.promote()

        promoted.append(timed(promote)[2])
        other = Job(backend)
        for day in range(DAYS):
            other.write(day, keys, 7 * keys if day == CORRECTED else day)
        other.run()
        assert job.sink() == other.sink(), "the promoted sink is not that of a straight run"
    return straight, backfilled, promoted


def reads(job, keys, turns):
    """Return CPU seconds of reading all live state: of a branch that has written a tenth of the keys, and of the job after its promotion."""
    job.write(1, keys // 10)
    fork(job.config, "again", None, "bench")
    on_branch = job.config.on_branch("again")
    job.run_on_branch(on_branch, RunOptions(run_id="branch", backend=job.harness.backend, parallelism=2))
    through, direct = [], []

    def live(config):
        version = log_of(config).last.versions[KEYED_STATE]
        return len(JobFolder(config.job_folder).view(KEYED_STATE, version).live())

    def read_often(config, seconds):
        for turn in range(turns + 1):
            rows, _, cpu = timed(lambda: live(config))
            assert rows == keys, "rows are missing"
            if turn:  # the first one takes its memory from the system, which costs more than the reading
                seconds.append(cpu)

    read_often(on_branch, through)
    with promoting(job.config, "again", "bench") as promotion:
        promotion.promote()
    read_often(job.config, direct)
    return through, direct


def promotions(job, turns):
    """Return seconds of promotions of a branch that has written 10,000 keys, and the bytes of data that it kept."""
    seconds, data = [], []
    for turn in range(turns + 1):
        job.write(2 + turn, CHANGED)
        fork(job.config, "small", None, "bench")
        on_branch = job.config.on_branch("small")
        job.run_on_branch(on_branch, RunOptions(run_id="branch", backend=job.harness.backend, parallelism=2))
        files = [file for file in Path(on_branch.job_folder).rglob("*.parquet") if CHECKPOINTS not in file.parts]
        size = sum(file.stat().st_size for file in files)
        with promoting(job.config, "small", "bench") as promotion:
            _, wall, _ = timed(promotion.promote)
        if turn:
            seconds.append(wall)
            data.append(size)
    return seconds, data


def main():
    """Measure and report."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, nargs=2, default=(10_000, 1_000_000), help="keys of the two jobs to fork")
    parser.add_argument("--day", type=int, default=20_000, help="events of a day")
    parser.add_argument("--backend", default="hashmap")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    with clock.installed(clock.VirtualClock(round((FIRST + timedelta(days=DAYS)).timestamp() * 1000))):
        figures = measured(options)
    report("branch", figures)


def measured(options):
    """Return all figures."""
    figures, medians = [], []
    forked = [forks(options.backend, keys, options.turns) for keys in options.keys]
    for keys, (_, seconds, data) in zip(options.keys, forked, strict=True):
        medians.append(sorted(seconds)[len(seconds) // 2])
        figures.append(figure(f"fork of {keys:,} keys", seconds, "s", goal="<= 1", met=lambda value: value <= 1))
        figures.append(figure(f"data copied by it, {keys:,} keys", data, "B", goal="0", met=lambda value: value == 0))
    ratio = medians[1] / medians[0]
    figures.append(figure("fork, large by small", [ratio], "x", goal="<= 1.3", met=lambda value: value <= 1.3))
    job = forked[-1][0]
    through, direct = reads(job, options.keys[1], options.turns)
    ratios = [longer / shorter for longer, shorter in zip(sorted(through), sorted(direct), strict=True)]
    figures.append(figure("live state through a branch, CPU", through, "s"))
    figures.append(figure("the same of the job, CPU", direct, "s"))
    figures.append(figure("branch by job", ratios, "x", goal="<= 1.2", met=lambda value: value <= 1.2))
    promoted, data = promotions(job, options.turns)
    name = f"promotion of {CHANGED:,} keys of {options.keys[1]:,}"
    figures.append(figure(name, promoted, "s", goal="<= 1", met=lambda value: value <= 1))
    figures.append(figure("data of its branch", data, "B"))
    straight, backfilled, promoted = replays(options.backend, options.day, max(1, options.turns // 2))
    ratios = [longer / shorter for longer, shorter in zip(backfilled, straight, strict=True)]
    figures.append(figure(f"{DAYS - CORRECTED} days for the first time, CPU", straight, "s"))
    figures.append(figure("the same days as a backfill, CPU", backfilled, "s"))
    figures.append(figure("backfill by first time", ratios, "x", goal="<= 1.15", met=lambda value: value <= 1.15))
    figures.append(figure("promotion, CPU", promoted, "s"))
    shutil.rmtree(job.harness.folder, ignore_errors=True)
    return figures


if __name__ == "__main__":
    main()
