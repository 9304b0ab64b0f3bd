"""Many small micro-batches of one run without Spark: 100 rows each on 1,000 keys, all committed.

    python -m benchmarks.small_batches --batches 1000

CPU and wall time of a micro-batch should stay the same, however many the run has committed. The sums in the sink are checked
against a plain dict at the end.
"""

import argparse
import itertools
import resource
import time
from pathlib import Path

from benchmarks._counting_job import Workload
from benchmarks._report import figure, report
from headrace.local import runner
from headrace.run.options import RunOptions

KEYS, PARTS = 1_000, 4


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=100)
    parser.add_argument("--backend", default="rocksdb")
    options = parser.parse_args()
    load = Workload(None, Path("var/bench/small-batches"), options.backend, KEYS)
    for _ in range(options.batches):
        load.feed([load.random.randrange(KEYS) for _ in range(options.rows)])
    times = [(spent(), time.perf_counter())]

    def note(event):
        if event.kind == "committed":
            times.append((spent(), time.perf_counter()))

    # In this process: worker processes would take their tasks from 100,000 rows on.
    runner.run(load.config, RunOptions(run_id="bench", mode="caught_up"), note, rows_worth_workers=10**9)
    load.check()
    report("small_batches", [*figures_of(times)])


def spent():
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def figures_of(times):
    """Yield CPU and wall time of the micro-batches of each quarter of the run."""
    pairs = [*itertools.pairwise(times)]
    for part in range(PARTS):
        quarter = pairs[part * len(pairs) // PARTS : (part + 1) * len(pairs) // PARTS]
        for place, name in enumerate(("CPU", "wall")):
            values = [after[place] - before[place] for before, after in quarter]
            goal = {"goal": "<= 0.1", "met": lambda value: value <= 0.1} if name == "wall" else {}
            yield figure(f"quarter {part + 1}: a micro-batch, {name}", values, "s", **goal)


if __name__ == "__main__":
    main()
