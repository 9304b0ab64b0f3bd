"""A year of daily runs: the time of a run, the files and the logs of a job should stay the same.

No JVM: each micro-batch stages a row of state, and is committed. The job's clock goes on by a day after each run. Compaction and
vacuum run as often as the job's file says, with its retention; `--every 0` disables both. The first quarter is left out of the
comparison: the retention begins to delete files in its second week only.

The size grows, as it must: the log keeps every checkpoint. An opening decodes all of them, some 4 us of CPU each.

A run's own time depends on the day: on the files since the last compaction, and on the logs of Delta. So the job's folder is kept on some
days of spring, and on days with equal numbers of them in winter; in the end these folders are opened in turns.
"""

import argparse
import os
import shutil
import statistics
import time
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from msgspec.structs import replace

from benchmarks._report import figure, report
from headrace import clock
from headrace.commit.protocol import open_job
from headrace.config import load_job
from headrace.edits.compact import compact
from headrace.edits.vacuum import vacuum
from headrace.log.checkpoint import Kind
from headrace.storage.table import LOG
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE, STATE_TABLES

COLUMNS = STATE_TABLES[KEYED_STATE].schema
DAY = timedelta(days=1)
QUARTERS = 4
PERIOD = 70
"""Runs after which compactions, and the checkpoints of Delta's logs, come again on equal days."""
HOME = Path("var/bench/log-growth").absolute()


class Calendar(clock.SystemClock):
    """Clock that is some days behind, and goes on by a day when it is told."""

    def __init__(self, days):
        self._behind = days * DAY

    def now(self):
        return super().now() - round(self._behind.total_seconds() * 1000)

    def next_day(self):
        self._behind -= DAY


class Run(NamedTuple):
    """CPU seconds of a run and of its parts, its wall seconds, and the sizes behind it."""

    cpu: float
    opening: float
    micro_batch: float
    wall: float
    files: int
    logs: int
    size: int


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=365)
    parser.add_argument("--a-run", type=int, default=1, help="micro-batches of a run")
    parser.add_argument("--turns", type=int, default=5, help="turns of openings in spring and in winter")
    parser.add_argument("--every", type=int, help="runs between two compactions and vacuums; default: the job's file")
    options = parser.parse_args()
    config = job()
    every = config.compaction.every if options.every is None else options.every
    calendar = Calendar(options.runs + 1)
    clock.use(calendar)
    runs, kept = [], days_to_keep(options.runs)
    for number in range(options.runs):
        runs.append(run(config, f"run {number}", options.a_run))
        if every and (number + 1) % every == 0:
            compact(config, "nightly")
            vacuum(config, "nightly", dry_run=False)
        end_day(config, calendar)
        if any(number in pair for pair in kept):
            shutil.copytree(config.state.root, kept_folder(number))
    check(config, runs, options.a_run)
    ratios = [ratio for _ in range(options.turns) for ratio in opening_ratios(config, kept, options.runs)]
    report("log_growth", [*growth_of(runs), *figures_of(runs), *openings_of(ratios)])


def job():
    """A job in an empty folder."""
    config = load_job("flights")
    shutil.rmtree(HOME, ignore_errors=True)
    root = HOME / "job"
    sinks = {name: replace(sink, path=f"{root}/lake/{name}") for name, sink in config.sinks.items()}
    return replace(config, state=replace(config.state, root=str(root)), sinks=sinks)


def run(config, run_id, micro_batches):
    wall, begun = time.perf_counter(), time.process_time()
    with open_job(config, run_id, create=True) as opened:
        open_at = time.process_time()
        for key in range(micro_batches):
            commit(opened, key)
        committed = time.process_time()
    cpu, wall = time.process_time() - begun, time.perf_counter() - wall
    return Run(cpu, open_at - begun, (committed - open_at) / micro_batches, wall, *sizes_of(config))


def commit(opened, key):
    entry = {"operator": "count", "key_group": key, "key": f'"{key}"', "state": "n", "value": str(opened.next_id)}
    row = {**dict.fromkeys(COLUMNS.names), **entry, "checkpoint_id": opened.next_id, "deleted": False}
    staged = opened.stage(KEYED_STATE, "0", pa.Table.from_pylist([row], COLUMNS))
    opened.commit(Kind.BATCH, files={KEYED_STATE: [staged]})


def days_to_keep(runs):
    """Return pairs of days, in the second quarter and some periods later, that differ in the length of the log alone."""
    first, between = runs // QUARTERS, runs // 2 // PERIOD * PERIOD
    return [(day, day + between) for day in range(first, min(first + PERIOD, runs - between), 3)] if between else []


def kept_folder(day):
    return HOME / "days" / str(day)


def opening_ratios(config, pairs, runs):
    """Yield the CPU of opening the job as it was on the later day of each pair, over that on the earlier one."""
    for pair in pairs:
        first, second = (opening(config, day, runs) for day in pair)
        yield second / first


def opening(config, day, runs):
    """Return the least CPU seconds of three openings of the job as it was on a day."""
    took = []
    for _ in range(3):
        shutil.rmtree(config.state.root)
        shutil.copytree(kept_folder(day), config.state.root)
        clock.use(Calendar(runs - day))
        begun = time.process_time()
        with open_job(config, "opening"):
            took.append(time.process_time() - begun)
    return min(took)


def sizes_of(config):
    """Return the number of all files, of those in the logs, and the bytes of all of them."""
    files = [path for path in Path(config.job_folder).rglob("*") if path.is_file()]
    return len(files), sum(path.parent.name == LOG for path in files), sum(path.stat().st_size for path in files)


def end_day(config, calendar):
    """Date the new files back to the calendar's day, and begin the next one."""
    now = calendar.now() / 1000
    for folder in (config.job_folder, *(sink.path for sink in config.sinks.values())):
        for path in Path(folder).rglob("*"):
            if path.is_file() and path.stat().st_mtime > now:
                os.utime(path, (now, now))
    calendar.next_day()


def check(config, runs, micro_batches):
    """Compare the state and the number of micro-batches with what the runs have written."""
    with open_job(config, "check") as opened:
        batches = [checkpoint for checkpoint in opened.checkpoints if checkpoint.kind is Kind.BATCH]
        live = opened.view(KEYED_STATE).live_rows(["key", "value"])
    assert len(batches) == len(runs) * micro_batches, f"{len(batches)} micro-batches are in the log"
    last = [checkpoint.checkpoint_id for checkpoint in batches[-micro_batches:]]
    assert {row["key"]: int(row["value"]) for row in live} == {f'"{key}"': id_ for key, id_ in enumerate(last)}


def quarter(runs, number):
    """Return the runs of a quarter of the year, counted from 0."""
    return runs[number * len(runs) // QUARTERS : (number + 1) * len(runs) // QUARTERS]


def growth_of(runs):
    """Yield for each field the median of the last quarter over that of the second one."""
    for name in Run._fields:
        before, after = (statistics.median(getattr(run, name) for run in quarter(runs, at)) for at in (1, QUARTERS - 1))
        goal = {"goal": "<= 1.1", "met": lambda ratio: ratio <= 1.1} if name in FLAT else {}
        yield figure(f"last / second quarter: {TITLES[name]}", [after / before], "ratio", **goal)


def openings_of(ratios):
    if ratios:
        goal = {"goal": "<= 1.02", "met": lambda ratio: ratio <= 1.02}
        yield figure("winter / spring: opening the job, day by day", ratios, "ratio", **goal)


def figures_of(runs):
    for at in range(QUARTERS):
        for name in Run._fields:
            scale, unit = UNITS[name]
            values = [getattr(run, name) * scale for run in quarter(runs, at)]
            yield figure(f"quarter {at + 1}: {TITLES[name]}", values, unit)


TITLES = {
    "cpu": "CPU of a run",
    "opening": "of it, opening the job",
    "micro_batch": "of it, the micro-batch",
    "wall": "run, wall",
    "files": "files of the job",
    "logs": f"of them in logs ({CHECKPOINTS} and state)",
    "size": "size of the job's folder",
}
UNITS = dict.fromkeys(("cpu", "opening", "micro_batch", "wall"), (1000, "ms")) | {
    "files": (1, "files"),
    "logs": (1, "files"),
    "size": (1e-6, "MB"),
}
FLAT = ("cpu", "opening", "micro_batch", "files", "logs")
"""Fields with a goal. A clock's time has none, since other work moves it; nor the size, which has the checkpoints of the year."""


if __name__ == "__main__":
    main()
