"""A warm micro-batch of 10,000 rows on a state of 1,000,000 and of 10,000 keys (workload W4).

Everything counts: planning the slice, Spark's jobs, state changes, all Delta commits and the sink. The sums
in the sink are checked against a plain dict at the end.
"""

import argparse
import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks._report import figure, report
from headrace.checkpoint._log import CheckpointLog
from headrace.config import load_job
from headrace.spark.options import RunOptions
from headrace.spark.runner import run_in
from headrace.spark.session import session

JOB = """
job: counting
pipeline: benchmarks.counting:pipeline
state: {root: state, local: local, backend: %(backend)s}
sources: {clicks: {path: events, max_files_per_batch: 1}}
sinks: {counts: {path: lake/counts, mode: append}}
"""
ROWS = 10_000


class Workload:
    """A job in a folder of its own, fed file by file."""

    def __init__(self, spark, root, backend, keys):
        shutil.rmtree(root, ignore_errors=True)
        (root / "conf/jobs").mkdir(parents=True)
        (root / "events").mkdir()
        shutil.copytree("conf/clusters", root / "conf/clusters")
        (root / "conf/jobs/counting.yaml").write_text(JOB % {"backend": backend})
        self.spark, self.root, self.keys = spark, root, keys
        self.config = load_job("counting", home=root)
        self.expected = Counter()
        self.random = random.Random(keys)
        self.files = self.seq = 0

    def feed(self, keys):
        count = len(keys)
        values = [self.random.randrange(100) for _ in keys]
        for key, value in zip(keys, values, strict=True):
            self.expected[key] += value
        table = pa.table(
            {
                "key": [f"key-{key:08d}" for key in keys],
                "value": pa.array(values, pa.int64()),
                "seq": pa.array(range(self.seq, self.seq + count), pa.int64()),
                "ts": pa.array(range(self.seq, self.seq + count), pa.timestamp("ms", "UTC")),
            }
        )
        pq.write_table(table, self.root / f"events/{self.files:06d}.parquet")
        self.files += 1
        self.seq += count

    def load(self):
        for first in range(0, self.keys, 250_000):
            self.feed(list(range(first, min(first + 250_000, self.keys))))
        self.run()

    def batch(self):
        self.feed([self.random.randrange(self.keys) for _ in range(ROWS)])
        wall, cpu = time.perf_counter(), _cpu()
        self.run()
        return time.perf_counter() - wall, _cpu() - cpu

    def run(self):
        return run_in(self.spark, self.config, RunOptions(run_id=f"bench-{self.files}"), lambda event: None)

    def phases(self):
        last = CheckpointLog(self.config.job_folder).last
        return last.metrics["seconds"]

    def check(self):
        found = Counter()
        table = pa.table(DeltaTable(self.config.sinks["counts"].path).scan(columns=["key", "seq", "sum"]))
        best = {}
        for key, seq, total in zip(*(table[name].to_pylist() for name in ("key", "seq", "sum")), strict=True):
            if seq >= best.get(key, -1):
                best[key], found[int(key[4:])] = seq, total
        assert found == self.expected, "the sink's sums are wrong"


def _cpu():
    """CPU seconds of this process and all below it: driver, JVM, Python workers."""
    total = 0.0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            times = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=9)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--backend", default="rocksdb")
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000_000, 10_000])
    options = parser.parse_args()
    root = Path("var/bench")
    spark = session(load_job("flights"))
    loads = []
    for keys in options.keys:
        loads.append(Workload(spark, root / f"{options.backend}-{keys}", options.backend, keys))
        loads[-1].load()
    for load in loads:
        for _ in range(options.warm_up):
            load.batch()
    walls = {load.keys: [] for load in loads}
    cpus = {load.keys: [] for load in loads}
    phases = {}
    for _ in range(options.batches):
        for load in loads:
            wall, cpu = load.batch()
            walls[load.keys].append(wall)
            cpus[load.keys].append(cpu)
            for phase, seconds in load.phases().items():
                phases.setdefault((load.keys, phase), []).append(seconds)
    figures = []
    if len(loads) > 1:
        large, small = options.keys[:2]
        ratios = [a / b for a, b in zip(walls[large], walls[small], strict=True)]
        figures.append(
            figure(f"{large:,} keys / {small:,} keys, wall", ratios, "ratio", goal="<= 1.3", met=lambda v: v <= 1.3)
        )
    for load in loads:
        load.check()
        name = f"{ROWS:,} rows on {load.keys:,} keys"
        figures.append(figure(f"{name}, wall", walls[load.keys], "s", goal="< 1.5", met=lambda v: v < 1.5))
        figures.append(figure(f"{name}, CPU", cpus[load.keys], "s"))
        figures += [figure(f"{name}: {p}", v, "s") for (k, p), v in phases.items() if k == load.keys]
    report(f"micro_batch_{options.backend}" if options.backend != "rocksdb" else "micro_batch", figures)
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
