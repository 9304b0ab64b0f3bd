"""Rates of a keyed count and sum, end to end (workload W1): by number of keys, by parallelism, and by rows of a micro-batch.

    make bench-rates               some five minutes on a quiet machine
    ... --quick                    a hundredth of the rows and keys: for trying it, not for figures

Every point is a micro-batch of a job whose state has all its keys already. Everything counts: reading the file, Spark's
jobs, state changes, all Delta commits and the sink. Only one of keys, parallelism and rows changes at a time; the other
two are those of the base: 1,000,000 rows on 100,000 keys in 2 tasks. Points take turns in one session, after a warm-up
of each job. The sums in every sink are checked against a plain dict at the end.

The last figures say where the time of a micro-batch goes: the phases that its checkpoint and its run report.
"""

import argparse
import os
import shutil
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from benchmarks._counting_job import Workload
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.session import session

ROOT = Path("var/bench/rates")


class Point(NamedTuple):
    """A micro-batch of `rows`, in as many tasks as `parallelism`, on a state of `keys`."""

    keys: int
    parallelism: int
    rows: int


BASE = Point(keys=100_000, parallelism=2, rows=1_000_000)
SIZES = (1_000, 10_000, 100_000, 1_000_000)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    options = parser.parse_args()
    os.environ.setdefault("HEADRACE_CORES", str(os.cpu_count()))
    spark = session(load_job("flights"))
    axes = axes_of(100 if options.quick else 1)
    costs = measured_points(spark, axes, options)
    report("rates", [*rates(axes, costs), *phases(axes, costs)])
    spark.stop()


def axes_of(share):
    """Return the points of each axis, with rows and keys divided by `share`."""
    base = BASE._replace(keys=BASE.keys // share, rows=BASE.rows // share)
    return {
        "keys": [base._replace(keys=keys // share) for keys in SIZES],
        "parallelism": [base._replace(parallelism=tasks) for tasks in (1, 2, 4)],
        "rows": [base._replace(rows=rows // share) for rows in SIZES],
    }


def measured_points(spark, axes, options):
    """Return the `BatchCost`s of each point."""
    points = list(dict.fromkeys(point for line in axes.values() for point in line))
    largest = max(point.rows for point in points)
    loads = {}
    for keys, parallelism, _ in points:
        if (keys, parallelism) not in loads:
            folder = ROOT / f"{options.backend}-{keys}-{parallelism}"
            load = Workload(spark, folder, options.backend, keys, parallelism=parallelism)
            load.load()
            load.batch(largest)
            loads[keys, parallelism] = load
    costs = defaultdict(list)
    for _ in range(options.batches):
        for point in points:
            load = loads[point.keys, point.parallelism]
            wall, cpu = load.batch(point.rows)
            costs[point].append(BatchCost(wall, cpu, load.breakdown(wall)))
    for load in loads.values():
        load.check()
    shutil.rmtree(ROOT)
    return costs


class BatchCost(NamedTuple):
    """The seconds of a micro-batch."""

    wall: float
    cpu: float
    phases: dict[str, float]


def rates(axes, costs):
    """Yield rate and CPU of each point of each axis."""
    for axis, line in axes.items():
        for point in line:
            place = {"by": axis, "at": getattr(point, axis)}
            name, batches = f"by {axis}, {place['at']:,}", costs[point]
            yield figure(f"{name}: rate", [point.rows / batch.wall for batch in batches], "records/s") | place
            yield figure(f"{name}: CPU", [batch.cpu / point.rows * 1e6 for batch in batches], "us a record") | place


def phases(axes, costs):
    """Yield the seconds of each phase, by rows of a micro-batch."""
    for point in axes["rows"]:
        for phase in costs[point][0].phases:
            seconds = [batch.phases[phase] for batch in costs[point]]
            yield figure(f"{point.rows:,} rows: {phase}", seconds, "s") | {"phase": phase, "at": point.rows}


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
