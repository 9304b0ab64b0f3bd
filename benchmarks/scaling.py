"""One large micro-batch of a keyed count and sum (workload W1), by number of workers, without Spark.

    python benchmarks/scaling.py            needs nothing but an installed headrace; doubles the workers up to the cores
    ... --quick                             a hundredth of the rows and keys: for trying it, not for figures

A run of its own for each number of workers and each form of the operator: one's own code, and `aggregate`. It begins with no state,
so all keys are new. Each takes all rows in one micro-batch, and everything counts: the start of Python, reading, the operator, state,
the sink, the commit. The sums in each sink are checked against NumPy's. `serial` is the time of a run in which no worker has a task.
The job is written here, and not taken from `benchmarks.counting`: this file alone runs on a machine that has only the wheel.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from headrace.native import runs_in

CLUSTER = "master: local[{cores}]\nparallelism: {cores}\nspark: {{}}\n"
JOB = """\
job: {form}
pipeline: scaling_job:{form}
max_parallelism: 128
max_memory: {limit}
state: {{root: state, local: local, backend: {backend}}}
sources: {{clicks: {{path: ../events}}}}
sinks: {{counts: {{path: lake/counts, mode: append}}}}
"""
CODE = """\
from typing import Annotated

from headrace import Context, KeyedProcessFunction, Lifetime, Pipeline, Struct, Timestamp, ValueState
from headrace.operators import Count, Sum


class Click(Struct, frozen=True):
    key: str
    value: int
    ts: Timestamp


class Total(Struct, frozen=True):
    count: int
    sum: int


class Counted(Struct, frozen=True):
    key: str
    count: Annotated[int, Count()]
    sum: Annotated[int, Sum("value")]


class CountAndSum(KeyedProcessFunction[Click, Counted]):
    total = ValueState("total", Total)

    async def process(self, click: Click, ctx: Context, /) -> None:
        before = await self.total.value() or Total(0, 0)
        after = Total(before.count + 1, before.sum + click.value)
        await self.total.update(after)
        ctx.collect(Counted(click.key, after.count, after.sum))


def keyed(name):
    pipeline = Pipeline(name)
    return pipeline, pipeline.source("clicks", Click, event_time="ts").key_by("key")


own, by_key = keyed("own")
by_key.process("totals", CountAndSum()).sink("counts")
aggregate, by_key = keyed("aggregate")
by_key.aggregate("totals", Counted, state_ttl=Lifetime.FOREVER).sink("counts")
"""
TASKS = ("sources", "totals")
"""Phases of a micro-batch in which workers have tasks."""


def main():
    """Print a line for each form and number of workers, and write `scaling.json`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    parser.add_argument("--rows", type=int, default=8_000_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=16, help="files of the input, of equal size")
    parser.add_argument("--workers", type=int, nargs="*", default=[1 << n for n in range(cores.bit_length())])
    parser.add_argument("--forms", nargs="*", default=["own", "aggregate"], choices=["own", "aggregate"])
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--max-memory", type=int, metavar="MIB", help="max_memory of the job")
    parser.add_argument(
        "--root", type=Path, default=Path("var/bench/scaling"), help="folder for input, state and tables"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out"), help="folder of scaling.json")
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    options = parser.parse_args()
    if options.quick:
        options.rows, options.keys = options.rows // 100, options.keys // 100
    root = options.root.absolute()
    shutil.rmtree(root, ignore_errors=True)
    expected = new_input(root, options)
    print(
        f"{options.rows:,} rows on {options.keys:,} keys in {counted(options.files)}, {cores} cores, medians of {options.repeat}"
    )
    print("form       workers  wall s  times  CPU us a row  largest process MB  serial")
    figures = [row for form in options.forms for row in curve(form, root, options, expected)]
    write(options.out, cores, figures)
    shutil.rmtree(root)


def write(out, cores, figures):
    """Write the figures as all benchmarks do."""
    packages = ("headrace", "deltalake", "pyarrow", "rocksdict", "msgspec")
    machine = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "cores": cores,
        "machine": platform.machine(),
        "python": platform.python_version(),
        "engine": runs_in,
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {package: version(package) for package in packages},
    }
    out.mkdir(parents=True, exist_ok=True)
    (out / "scaling.json").write_text(json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n")


def counted(files):
    """Return a number of files as text."""
    return "1 file" if files == 1 else f"{files} files"


def new_input(root, options):
    """Write the files; return the number and the sum of each key's values."""
    random = np.random.default_rng(7)
    (root / "events").mkdir(parents=True)
    counts, sums = np.zeros(options.keys, np.int64), np.zeros(options.keys, np.int64)
    names = pa.array([f"key-{key:08d}" for key in range(options.keys)])
    for number, places in enumerate(np.array_split(np.arange(options.rows), options.files)):
        keys, values = random.integers(0, options.keys, len(places)), random.integers(0, 100, len(places))
        counts += np.bincount(keys, minlength=options.keys)
        np.add.at(sums, keys, values)
        times = pa.array(places).cast(pa.timestamp("ms", "UTC"))
        rows = pa.table({"key": names.take(pa.array(keys)), "value": values, "ts": times})
        pq.write_table(rows, root / f"events/{number:04d}.parquet")
    return names, counts, sums


def curve(form, root, options, expected):
    """Yield the figures of each number of workers, and print a line."""
    first = None
    for workers in options.workers:
        runs = [one_run(form, workers, root, options, expected) for _ in range(options.repeat)]
        wall, cpu, memory, serial = ([run[name] for run in runs] for name in ("wall", "cpu", "memory", "serial"))
        first = first or statistics.median(wall)
        rows = [
            figure("wall", wall, "s"),
            figure("speed-up", [first / seconds for seconds in wall], "x"),
            figure("CPU", [seconds / options.rows * 1e6 for seconds in cpu], "us a record"),
            figure("largest process", [size / 1e6 for size in memory], "MB"),
            figure("serial", [part / whole * 100 for part, whole in zip(serial, wall, strict=True)], "%"),
        ]
        wide = ("{:7.2f}", "{:6.2f}", "{:13.2f}", "{:19,.0f}", "{:6.1f}%")
        cells = [cell.format(row["value"]) for cell, row in zip(wide, rows, strict=True)]
        print(f"{form:10} {workers:7}", *cells, flush=True)
        for row in rows:
            yield {**row, "name": f"{form}, {workers} workers: {row['name']}"}


def figure(name, values, unit):
    """Return the median of some values, and their spread."""
    low, middle, high = (round(value, 6) for value in (min(values), statistics.median(values), max(values)))
    measured = {"name": name, "value": middle, "unit": unit, "spread": [low, middle, high], "n": len(values)}
    return {**measured, "goal": None, "met": None}


def one_run(form, workers, root, options, expected):
    """Run a job in a new folder; return its costs."""
    home = root / "home"
    shutil.rmtree(home, ignore_errors=True)
    (home / "conf/jobs").mkdir(parents=True)
    (home / "conf/clusters").mkdir()
    (home / "conf/clusters/local.yaml").write_text(CLUSTER.format(cores=max(options.workers)))
    limit = "null" if options.max_memory is None else options.max_memory << 20
    (home / f"conf/jobs/{form}.yaml").write_text(JOB.format(form=form, backend=options.backend, limit=limit))
    (home / "scaling_job.py").write_text(CODE)
    paths = os.pathsep.join([str(home), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "HEADRACE_HOME": str(home), "PYTHONPATH": paths}
    line = [
        str(Path(sys.executable).with_name("headrace")),
        "run",
        form,
        "--runner",
        "local",
        "--parallelism",
        str(workers),
    ]
    begun = time.perf_counter()
    process = subprocess.Popen([*line, "--json"], env=environment, cwd=home, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)  # of the run and its ended workers, and of no other run
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, f"headrace ended with {process.returncode}"
    check(DeltaTable(home / "lake/counts"), expected)
    in_tasks = sum(seconds_of(home, form).get(phase, 0.0) for phase in TASKS)
    memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"wall": wall, "cpu": usage.ru_utime + usage.ru_stime, "memory": memory, "serial": wall - in_tasks}


def seconds_of(home, form):
    """Return the seconds of the phases of a job's only micro-batch."""
    from headrace.config import load_job
    from headrace.log.log import CheckpointLog
    from headrace.tables.folder import JobFolder

    return CheckpointLog(JobFolder(load_job(form, home=home).job_folder)).last.seconds


def check(sink, expected):
    """Compare the last result of each key with the expected one: counts and sums only grow."""
    names, counts, sums = expected
    rows = sink.to_pyarrow_table()
    last = rows.group_by("key").aggregate([("count", "max"), ("sum", "max")])
    places = pc.index_in(last["key"], names).to_numpy()
    assert len(places) == np.count_nonzero(counts), "keys are missing in the sink"
    assert np.array_equal(last["count_max"].to_numpy(), counts[places]), "the sink's counts are wrong"
    assert np.array_equal(last["sum_max"].to_numpy(), sums[places]), "the sink's sums are wrong"


if __name__ == "__main__":
    main()
