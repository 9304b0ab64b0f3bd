"""A keyed count and sum over large micro-batches, end to end (workload W1): CPU of the whole process tree per record.

Everything counts: reading the file, Spark's jobs, state changes, all Delta commits and the sink. Jobs and peers take the same
files in turns, in one Spark session; the first turn, in which workers start, is not reported. All sums are checked at the end.
bytewax takes part where `make peers` has installed it.
"""

import argparse
import os
from pathlib import Path

from benchmarks._counting_job import Workload
from benchmarks._counting_peers import PEERS, Bytewax
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.session import session

GOALS = {"window + MERGE": 1.0, "transformWithState": 1 / 7, "bytewax": 0.75}
"""Largest ratio of a job's CPU, with its state in RocksDB, to the CPU of a peer."""

JOBS = {
    "hashmap": ("hashmap", "pipeline"),
    "rocksdb": ("rocksdb", "pipeline"),
    "running_aggregate": ("rocksdb", "ready_made"),
    "aggregate": ("rocksdb", "aggregate"),
    "net aggregate": ("rocksdb", "net_aggregate"),
    "decimal": ("rocksdb", "priced"),
    "decimal aggregate": ("rocksdb", "priced_aggregate"),
}
"""Backend and pipeline, by name of the job."""

PLAIN = {"decimal": "rocksdb", "decimal aggregate": "aggregate"}
"""The job that counts whole numbers and carries no day, by the name of one that sums decimals and carries one."""

MOST_FOR_TYPES = 1.15
"""Largest ratio of their CPU."""

COSTS = {"aggregate": 4.5, "net aggregate": 2.5}
"""Largest CPU of a job (us a record)."""

LONGEST = 4.0
"""Largest wall time of the rated job (s)."""

RATED = "rocksdb"
"""The job that is compared with the peers."""


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--jobs", nargs="*", default=[*JOBS], choices=JOBS)
    parser.add_argument("--peers", nargs="*", default=[*PEERS], choices=PEERS)
    options = parser.parse_args()
    if "bytewax" in options.peers and not Bytewax.PYTHON.exists():
        print("bytewax is left out: `make peers` installs it")
        options.peers.remove("bytewax")
    spark = session(load_job("flights"))
    root = Path("var/bench/end-to-end")
    jobs = {name: Workload(spark, root / name, JOBS[name][0], options.keys, JOBS[name][1]) for name in options.jobs}
    peers = {name: PEERS[name](spark, root / name.replace(" + ", "-")) for name in options.peers}
    costs = {name: [] for name in (*jobs, *peers)}
    for _ in range(1 + options.turns):
        for name, job in jobs.items():
            costs[name].append(job.batch(options.rows))
        for name, peer in peers.items():
            costs[name].append(peer.batch(job.last_file))
    for job in jobs.values():
        job.check()
    for peer in peers.values():
        peer.check(job.expected)
    report("end_to_end", figures(costs, jobs, options))
    spark.stop()


def figures(costs, jobs, options):
    """Return the figures of all turns but the first; a ratio is the median of the ratios of each turn."""
    cpu = {name: [cpu / options.rows * 1e6 for _, cpu in turns[1:]] for name, turns in costs.items()}
    wall = {name: [wall for wall, _ in turns[1:]] for name, turns in costs.items()}
    what = f"{options.rows:,} rows on {options.keys:,} keys"
    result = [
        figure(f"{name}, CPU a record ({what})", values, "us", **at_most(COSTS.get(name)))
        for name, values in cpu.items()
    ]
    result += [
        figure(f"{name}, wall", values, "s", **at_most(LONGEST if name == RATED else None))
        for name, values in wall.items()
    ]
    for name in options.peers if RATED in cpu else ():
        ratios = [own / other for own, other in zip(cpu[RATED], cpu[name], strict=True)]
        result.append(figure(f"{RATED} / {name}, CPU", ratios, "ratio", **at_most(GOALS[name])))
    for name, plain in PLAIN.items():
        if name in cpu and plain in cpu:
            ratios = [own / other for own, other in zip(cpu[name], cpu[plain], strict=True)]
            result.append(figure(f"{name} / {plain}, CPU", ratios, "ratio", **at_most(MOST_FOR_TYPES)))
    for name, job in jobs.items():
        result += [figure(f"{name}: {phase}", [seconds], "s") for phase, seconds in job.phases().items()]
    return result


def at_most(goal):
    """Return the arguments of a figure that has a goal; none without one."""
    return {} if goal is None else {"goal": f"<= {goal:.2f}", "met": lambda value: value <= goal}


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
