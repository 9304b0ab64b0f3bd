"""A keyed count and sum over large micro-batches, end to end (workload W1): CPU of the whole process tree per record.

Everything counts: reading the file, Spark's jobs, state changes, all Delta commits and the sink. The sums in the sink
are checked against a plain dict at the end. The first batch of a session, in which workers start, is not reported.
"""

import argparse
import os
from pathlib import Path

from benchmarks._counting_job import Workload
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.session import session


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument("--backends", nargs="*", default=["hashmap", "rocksdb"])
    options = parser.parse_args()
    spark = session(load_job("flights"))
    figures = []
    for backend in options.backends:
        load = Workload(spark, Path(f"var/bench/end-to-end-{backend}"), backend, options.keys)
        load.batch(options.rows)
        result = [load.batch(options.rows) for _ in range(options.batches)]
        load.check()
        name = f"{backend}, {options.rows:,} rows on {options.keys:,} keys"
        figures.append(figure(f"{name}, CPU a record", [cpu / options.rows * 1e6 for _, cpu in result], "us"))
        figures.append(figure(f"{name}, wall", [wall for wall, _ in result], "s"))
        figures += [figure(f"{name}: {phase}", [seconds], "s") for phase, seconds in load.phases().items()]
    report("end_to_end", figures)
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
