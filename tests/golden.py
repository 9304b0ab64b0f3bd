"""Compare results of whole jobs with digests that are committed: `python -m tests.golden`, ten minutes at most on one core.

    python -m tests.golden                       all runs
    python -m tests.golden q4 flights            the runs of these jobs
    python -m tests.golden --against HEAD~3      show rows that differ from those of that commit
    python -m tests.golden --spark               three runs on Spark besides
    python -m tests.golden --write               commit to new results: write tests/golden.json

A run takes in all input, perhaps dies on the way and begins again, and then ends the input. Both times its parts are
digested: sorted rows of sinks, live state, timers, histories of materializers, and the quarantine. They do not depend on
clocks, ids, paths or stored formats, and are the same for any number of micro-batches and tasks, any backend and any crash.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace import UpsertMaterialize, clock, crash_points
from headrace.local.runner import run as run_locally
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.state import rows_as_entries, scan
from headrace.readers.waiting import list_quarantine, list_timers
from headrace.run.options import RunOptions
from pipelines.comparison import plain_columns, read_table
from pipelines.flights.raw_data import data_folder
from pipelines.flights.records import Weather
from pipelines.flights.weather_lookup import Question, WeatherLookup, WeatherUnavailableError
from pipelines.flights.weather_service import Observations, load_observations
from pipelines.logbook.changes import SOURCES
from pipelines.nexmark.generator import Shape, write_events
from pipelines.nexmark.queries import NAMES, load
from pipelines.nexmark.runs import BEGIN, UNTIL_TIMERS, sources
from tests.jobs.flight_days import write_flights
from tests.jobs.home import FLIGHTS, PROJECT, PYTHONPATH, Home
from tests.jobs.logbook_days import write_days, write_raw
from tests.jobs.quick_syncs import without_waiting
from tests.jobs.weather import weather_service

if TYPE_CHECKING:
    from headrace.config import JobConfig
    from headrace.readers.query import Rows

GOLDEN: Final = PROJECT / "tests" / "golden.json"
FILES: Final = 31
"""Files of each source."""

CARRIERS: Final = ("AS", "F9", "HA", "YV")
"""Airlines with few flights, which nevertheless share airports."""

UNAVAILABLE: Final = 50
EXAMPLES: Final = 5
ALL: Final = 1_000_000_000
BUDGET: Final = 1_000_000_000.0
"""Seconds."""

Parts = dict[str, list[str]]
"""Sorted rows by part, each as JSON."""

Digests = dict[str, str]
"""The number of rows and a digest, by part."""


# -------------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Setting:
    """How a job is run. Nothing here may change its results."""

    batches: int
    parallelism: int
    backend: str
    crash: str | None = None
    """A crash point, and after a colon which visit of it."""

    runner: str = "local"

    def __str__(self) -> str:
        crash = f", dies at {self.crash}" if self.crash else ""
        return f"{self.batches} micro-batches, {self.parallelism} tasks, {self.backend}{crash}, {self.runner}"


PAIRWISE: Final = (
    Setting(1, 1, "rocksdb"),
    Setting(1, 7, "hashmap", "commit.after"),
    Setting(5, 1, "hashmap", "run.after:3"),
    Setting(5, 7, "rocksdb"),
    Setting(31, 1, "rocksdb", "publish.after"),
    Setting(31, 7, "hashmap"),
)
"""Each value of a column meets each value of all other columns."""

ON_SPARK: Final = {
    "flights": Setting(5, 2, "rocksdb", runner="spark"),
    "logbook": Setting(1, 3, "hashmap", runner="spark"),
    "q4": Setting(5, 2, "rocksdb", "commit.before:2", runner="spark"),
}
TWICE: Final = ("q4", "q5", "q9", "q13", "q20")
"""Queries that have a second run: they join, or aggregate what they have joined."""


@dataclass(frozen=True)
class Run:
    """A job and how it is run."""

    job: str
    setting: Setting

    def __str__(self) -> str:
        return f"{self.job}: {self.setting}"


def chosen_runs(*, on_spark: bool = False) -> list[Run]:
    """Return all runs: flights and logbook in each setting, the queries in one setting or two."""
    runs = [Run(job, setting) for job in ("flights", "logbook") for setting in PAIRWISE]
    runs += [Run(query, setting) for query, setting in zip(NAMES, itertools.cycle(PAIRWISE))]
    runs += [Run(query, PAIRWISE[(NAMES.index(query) + 3) % len(PAIRWISE)]) for query in TWICE]
    return runs + [Run(job, setting) for job, setting in ON_SPARK.items() if on_spark]


# ------------------------------------------------------------------------------------------------------------------ jobs


def query_job(query: str) -> dict[str, Any]:
    """Return the configuration of a query of Nexmark."""
    merges = any(isinstance(operator, UpsertMaterialize) for operator in load(query).operators)
    return {
        "job": f"nexmark_{query}",
        "pipeline": f"pipelines.nexmark.queries.{query}:pipeline",
        "state": {"root": "state", "local": "local"},
        "watermark": {"bucket": 50},
        "sources": {name: {"path": f"input/{name}"} for name in sources(query)},
        "sinks": {"result": {"path": "lake/result", "mode": "merge" if merges else "append"}},
    }


LOGBOOK: Final = {
    "job": "logbook",
    "pipeline": "pipelines.logbook:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": 50},
    "sources": {
        name: {"path": f"input/{name}", "interval": "%Y-%m-%d", "complete_intervals": True} for name in SOURCES
    },
    "sinks": {"logbook": {"path": "lake/logbook", "mode": "merge"}},
}
FLIGHT_BOARD: Final = {**FLIGHTS, "watermark": {"bucket": 50}}


class Inputs:
    """Input of all jobs, below one folder; each is written when a run needs it first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def nexmark(self) -> Path:
        """Folders `bids`, `auctions`, ... of 4,000 events, with bids that have no price."""
        folder = self._folder / "nexmark"
        write_events(folder, Shape(4000, gap_ms=100), files=FILES)
        for file in sorted((folder / "bids").iterdir())[::10]:
            _spoil(file, "price", 20)
        return folder

    @cached_property
    def flights(self) -> Path:
        """A folder with the events of a few airlines in January, some without the id of their flight."""
        folder = self._folder / "flights"
        write_flights(folder, FILES)
        for file in sorted(folder.iterdir()):
            events = pq.read_table(file)
            pq.write_table(events.filter(pc.is_in(events["carrier"], pa.array(CARRIERS))), file)
        for file in sorted(folder.iterdir())[::10]:
            _spoil(file, "flight_id", 7)
        return folder

    @cached_property
    def logbook(self) -> Path:
        """Folders `entries`, `planes` and `weather`."""
        folder = self._folder / "logbook"
        write_days(folder, 1, write_raw(self._folder / "raw"))
        return folder


def _spoil(file: Path, column: str, row: int) -> None:
    """Write a file again, without a value in one row."""
    table = pq.read_table(file)
    values = table[column].to_pylist()
    values[row] = None
    field = pa.field(column, table.schema.field(column).type)
    position = table.schema.get_field_index(column)
    pq.write_table(table.set_column(position, field, pa.array(values, field.type)), file)


def home_of(run: Run, inputs: Inputs, folder: Path) -> Home:
    """Return a project folder with the job, and its input in as many micro-batches as the setting says."""
    if run.job == "flights":
        home, files = Home(folder, FLIGHT_BOARD), {"flight_events": inputs.flights}
    elif run.job == "logbook":
        home, files = Home(folder, LOGBOOK), {name: inputs.logbook / name for name in SOURCES}
    else:
        home, files = Home(folder, query_job(run.job)), {name: inputs.nexmark / name for name in sources(run.job)}
    count = max(len([*path.iterdir()]) for path in files.values())
    most = -(-count // run.setting.batches)
    home.configure(
        {"sources": {name: {"path": str(path), "max_files_per_batch": most} for name, path in files.items()}}
    )
    return home


# --------------------------------------------------------------------------------------------------------------- running


class _DeadError(BaseException):
    """Stands for the death of the driver."""


class _VirtualClock(clock.VirtualClock):
    """Stands still, so that a run's processing time is always the same. Its ids differ at both ends: names of files have the first."""

    def unique_id(self) -> str:
        """Return the next number, twice."""
        number = super().unique_id()
        return number[-12:] + number[-20:]


Runner = Callable[[Home, RunOptions], Any]


def _dies_at(crash: str) -> Callable[[str], None]:
    place, _, visit = crash.partition(":")
    visits = itertools.count(1)

    def reached(name: str) -> None:
        if name == place and next(visits) == int(visit or 1):
            raise _DeadError

    return reached


def rows_of(run: Run, inputs: Inputs, folder: Path, runner: Runner) -> Parts:
    """Run a job, and return the rows of all its parts: after all input, and after the end of the input."""
    home = home_of(run, inputs, folder)
    options = partial(
        RunOptions,
        run_id="golden",
        parallelism=run.setting.parallelism,
        backend=run.setting.backend,
        # Without Spark, each look for the stop sign during calls advances the clock: on a busy machine by more than the job's budget.
        budget=BUDGET,
    )
    if run.setting.crash:
        died = False
        with crash_points.observed(_dies_at(run.setting.crash)):
            try:
                runner(home, options())
            except _DeadError:
                died = True
        if not died:
            raise RuntimeError(f"{run}: the run never came there")
    runner(home, options())
    rows = parts_of(home.config(), "all input")
    if isinstance(current := clock.use(clock.SystemClock()), clock.VirtualClock):
        current.advance(UNTIL_TIMERS)
    clock.use(current)
    runner(home, options(end_of_input=True))
    return rows | parts_of(home.config(), "the end")


def parts_of(config: JobConfig, when: str) -> Parts:
    """Return the sorted rows of sinks, live state, timers, histories and quarantine."""
    job = JobAtCheckpoint(config)
    entries = ("operator", "key", "state", "namespace", "user_key", "value")
    parts = {f"sink {name}": _of_table(sink.path) for name, sink in config.sinks.items()}
    parts["state"] = _chosen(scan(job, limit=ALL), entries)
    parts["histories"] = _chosen(rows_as_entries(job, ()), entries)
    parts["timers"] = _chosen(list_timers(job, ALL), ("operator", "key", "domain", "timestamp", "namespace"))
    parts["quarantine"] = _chosen(list_quarantine(job, ALL), ("source", "raw", "error"))
    return {f"{name}, after {when}": rows for name, rows in parts.items()}


def _of_table(path: str) -> list[str]:
    """Return the rows of a sink as JSON with the names of columns, sorted."""
    table = read_table(path)
    rows = plain_columns(table, sorted(table.column_names)).to_pylist()
    return sorted(json.dumps(row, default=str, ensure_ascii=False) for row in rows)


def _chosen(rows: Rows, columns: Sequence[str]) -> list[str]:
    """Return the values of these columns of each row as JSON, sorted: names of stored columns may change."""
    places = [rows.columns.index(name) for name in columns]
    return sorted(json.dumps([row[at] for at in places], default=str, ensure_ascii=False) for row in rows.rows)


def digests_of(rows: Parts) -> Digests:
    """Return the number of rows and a digest of each part; parts without rows are left out."""
    return {
        name: f"{len(lines)} {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()[:16]}"
        for name, lines in sorted(rows.items())
        if lines
    }


# ------------------------------------------------------------------------------------------------------------- comparing


def differing(before: Digests, after: Digests) -> list[str]:
    """Return a sentence for each part whose digest is another one, is new, or is missing."""
    names = sorted({*before, *after})
    return [
        f"{name}: {_count(before, name)} rows before, {_count(after, name)} now"
        for name in names
        if before.get(name) != after.get(name)
    ]


def _count(digests: Digests, name: str) -> str:
    return digests.get(name, "0").partition(" ")[0]


def row_differences(before: Parts, after: Parts) -> Iterator[str]:
    """Yield the first rows of each part that only one side has."""
    for name in sorted({*before, *after}):
        old, new = Counter(before.get(name, [])), Counter(after.get(name, []))
        for sign, only in (("-", old - new), ("+", new - old)):
            if only:
                yield f"{name}: {only.total()} rows {'are missing' if sign == '-' else 'are new'}"
                yield from (f"  {sign} {row}" for row in sorted(only.elements())[:EXAMPLES])


class Verdicts:
    """Digests of all jobs, with which each run is compared: those committed, or those of the job's first run."""

    def __init__(self, committed: Mapping[str, Digests]) -> None:
        self.of = dict(committed)
        self.differing: list[Run] = []

    def add(self, run: Run, digests: Digests) -> list[str]:
        """Return how a run differs. The first run of a job that nothing is known of differs in nothing."""
        if sentences := differing(self.of.setdefault(run.job, digests), digests):
            self.differing.append(run)
        return sentences


# ------------------------------------------------------------------------------------------------------------- the program


@contextlib.contextmanager
def workplace() -> Iterator[tuple[Inputs, Path, dict[str, Runner]]]:
    """Give the input of all jobs, an empty folder, and the runners by name."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="golden-")))
        stack.enter_context(without_waiting())
        stack.enter_context(mock.patch.object(WeatherLookup, "look_up", _Observed().look_up))
        yield Inputs(folder / "inputs"), folder, {"local": _locally, "spark": _OnSpark(stack)}


def _locally(home: Home, options: RunOptions) -> None:
    run_locally(home.config(), options, lambda _: None, rows_worth_workers=sys.maxsize)


class _Observed:
    """Weather as the service has it, without the service. Now and then it is unavailable."""

    def __init__(self) -> None:
        self._calls = itertools.count(1)

    @cached_property
    def _observations(self) -> Observations:
        return load_observations(data_folder())

    async def look_up(self, key: Question, /) -> Weather:
        if next(self._calls) % UNAVAILABLE == 0:
            raise WeatherUnavailableError("every fiftieth call fails")
        origin, hour = key
        text = f"{datetime.fromtimestamp(hour / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
        return msgspec.convert(self._observations.get((origin, text), {}), Weather)


class _OnSpark:
    """Runs jobs in one session, which starts with the first of them, as does the weather service."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self._session: Any = None

    def __call__(self, home: Home, options: RunOptions) -> None:
        from headrace.spark.runner import run_in
        from headrace.spark.session import session

        if self._session is None:
            os.environ["PYTHONPATH"] = PYTHONPATH
            os.environ["WEATHER_URL"] = self._stack.enter_context(weather_service())
            self._session = session(home.config())
            self._stack.callback(self._session.stop)
        run_in(self._session, home.config(), options, lambda _: None)


def perform(run: Run, inputs: Inputs, folder: Path, runners: Mapping[str, Runner]) -> Parts:
    """Return the rows of a run. Without Spark it has a clock that stands still."""
    own = Path(tempfile.mkdtemp(dir=folder))
    before = clock.use(_VirtualClock(BEGIN) if run.setting.runner == "local" else clock.SystemClock())
    try:
        return rows_of(run, inputs, own, runners[run.setting.runner])
    finally:
        clock.use(before)
        shutil.rmtree(own)


def compare(runs: Sequence[Run], verdicts: Verdicts, against: str | None) -> None:
    """Perform all runs, and print a line for each, with the parts that differ below it."""
    with workplace() as (inputs, folder, runners):
        for number, run in enumerate(runs, 1):
            began = time.monotonic()
            rows = perform(run, inputs, folder, runners)
            sentences = verdicts.add(run, digests_of(rows))
            _show(
                f"{number:2}/{len(runs)} {time.monotonic() - began:5.1f} s  {run}: {'DIFFERS' if sentences else 'equal'}"
            )
            for sentence in sentences:
                _show(f"      {sentence}")
            if sentences and against:
                for line in row_differences(rows_at(against, run, folder), rows):
                    _show(f"      {line}")


def rows_at(commit: str, run: Run, folder: Path) -> Parts:
    """Return the rows that the code of another commit gives for a run."""
    tree, output = folder / f"tree-{commit.replace('/', '-')}", folder / "rows.json"
    git = ["git", "-C", str(PROJECT), "worktree"]
    if not tree.exists():
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
    try:
        if not (tree / "tests" / "golden.py").exists():
            shutil.copy(__file__, tree / "tests" / "golden.py")
        setting = run.setting
        asked = [run.job, setting.batches, setting.parallelism, setting.backend, setting.crash or "", setting.runner]
        command = [sys.executable, "-m", "tests.golden", "--rows", str(output), *map(str, asked)]
        subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": f"{tree}/engine:{tree}"}, check=True)
    finally:
        subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    rows: Parts = json.loads(output.read_text())
    return rows


def write_rows(output: Path, asked: Sequence[str]) -> None:
    """Write the rows of one run, for `rows_at` of another commit."""
    job, batches, parallelism, backend, crash, runner = asked
    run = Run(job, Setting(int(batches), int(parallelism), backend, crash or None, runner))
    with workplace() as (inputs, folder, runners):
        output.write_text(json.dumps(perform(run, inputs, folder, runners)))


def _show(line: str) -> None:
    print(line, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; return 1 if a run differs."""
    parser = argparse.ArgumentParser(prog="python -m tests.golden", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("jobs", nargs="*", help="flights, logbook, q0, q1, ... (default: all)")
    parser.add_argument("--against", metavar="COMMIT", help="show rows that differ from those of a commit")
    parser.add_argument("--spark", action="store_true", help="three runs on Spark besides")
    parser.add_argument("--write", action="store_true", help=f"write the digests of these jobs to {GOLDEN.name}")
    parser.add_argument("--rows", type=Path, metavar="FILE", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.rows:
        write_rows(options.rows, options.jobs)
        return 0
    if unknown := {*options.jobs} - {"flights", "logbook", *NAMES}:
        parser.error(f"no job {', '.join(sorted(unknown))}; there are flights, logbook, {', '.join(NAMES)}")
    runs = [run for run in chosen_runs(on_spark=options.spark) if not options.jobs or run.job in options.jobs]
    committed = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    asked = {run.job for run in runs}
    verdicts = Verdicts({job: digests for job, digests in committed.items() if not (options.write and job in asked)})
    compare(runs, verdicts, options.against)
    if options.write and not verdicts.differing:
        GOLDEN.write_text(json.dumps(verdicts.of, indent=1, sort_keys=True) + "\n")
    _show(
        f"{len(verdicts.differing)} of {len(runs)} runs differ"
        if verdicts.differing
        else f"{len(runs)} runs, all equal"
    )
    return 1 if verdicts.differing else 0


if __name__ == "__main__":
    sys.exit(main())
