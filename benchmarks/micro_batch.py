"""A warm micro-batch of 10,000 rows on a state of 1,000,000 and of 10,000 keys (workload W4).

Everything counts: planning the slice, Spark's jobs, state changes, all Delta commits and the sink. The sums
in the sink are checked against a plain dict at the end.
"""

import argparse
import os
from pathlib import Path

from benchmarks._counting_job import Workload
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.session import session

ROWS = 10_000


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
            load.batch(ROWS)
    walls = {load.keys: [] for load in loads}
    cpus = {load.keys: [] for load in loads}
    phases = {}
    for _ in range(options.batches):
        for load in loads:
            wall, cpu = load.batch(ROWS)
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
        figures.append(figure(f"{name}, wall", walls[load.keys], "s", goal="<= 0.4", met=lambda v: v <= 0.4))
        figures.append(figure(f"{name}, CPU", cpus[load.keys], "s"))
        figures += [figure(f"{name}: {p}", v, "s") for (k, p), v in phases.items() if k == load.keys]
    report(f"micro_batch_{options.backend}" if options.backend != "rocksdb" else "micro_batch", figures)
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
