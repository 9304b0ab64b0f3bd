"""A job with 10,000,000 keys beside one with a tenth of them: what grows with the state, and what does not.

    python -m benchmarks.scale --keys 50000000     some ten minutes, and 20 GB of disk

Time, CPU, and peaks of memory of the load, of warm micro-batches of 10,000 rows, of a compaction, of the rebuilding of the local
copies and of a look-up by the command line; and the disk that they take. Memory of a worker must depend on its slice and on the
settings, not on the state. All sums are checked, in the sink and in the state.
"""

import argparse
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

from benchmarks._costs import measured
from benchmarks._large_job import LargeWorkload
from benchmarks._memory import peak_memory
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.session import session

ROWS = 10_000
WARM_UP, BATCHES = 3, 5
GOAL = 1.3
"""Most that a micro-batch on the large state may take, over the time on the small one."""

LOOK_UP_GOAL = 1.5
"""Most that a look-up of a key in the large state may take, over that in the small one."""

WORKER_LIMIT = 1.5e9
"""Most bytes of a process that rebuilds or compacts, whatever the size of the state."""


class Figures:
    """Figures of all phases, by their names."""

    def __init__(self):
        self.rows = []

    @contextmanager
    def phase(self, name, *, bounded=False):
        """Measure a block: seconds, CPU, memory; with `bounded`, the largest worker has a goal."""
        with measured() as cost, peak_memory() as peak:
            yield
        self.add(f"{name}, wall", [cost.wall], "s")
        self.add(f"{name}, CPU", [cost.cpu], "s")
        self.add(f"{name}, peak of all processes", [peak.tree / 1e6], "MB")
        goal = (
            {"goal": f"<= {WORKER_LIMIT / 1e6:,.0f}", "met": lambda size: size * 1e6 <= WORKER_LIMIT} if bounded else {}
        )
        self.add(f"{name}, peak of the largest worker", [peak.worker / 1e6], "MB", **goal)

    def add(self, name, values, unit, **goal):
        self.rows.append(figure(name, values, unit, **goal))
        print(f"{name}: {self.rows[-1]['value']:,.4g} {unit}", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=10_000_000)
    parser.add_argument("--small", type=int, default=1_000_000, help="keys of the job beside it")
    options = parser.parse_args()
    figures = Figures()
    large, small = (load(keys, figures) for keys in (options.keys, options.small))
    look_ups(large, small, figures, "before compaction")
    compact(large, figures)
    compact(small, figures)
    look_ups(large, small, figures, "after compaction")
    disk(large, figures, "after compaction")
    spark = session(load_job("flights"))
    for job in (large, small):
        job.spark = spark
    for backend in ("rocksdb", "delta"):
        micro_batches(large, small, backend, figures)
    rebuild(large, figures)
    with figures.phase("check"):
        large.check()
        small.check()
    spark.stop()
    report(f"scale_{options.keys // 1_000_000}_million", figures.rows)
    for job in (large, small):
        shutil.rmtree(job.root)


def load(keys, figures):
    job = LargeWorkload(Path(f"var/bench/scale-{keys}"), keys)
    with figures.phase(f"load of {keys:,} keys"):
        job.load()
    disk(job, figures, "loaded")
    return job


def disk(job, figures, when):
    what = f"{job.keys:,} keys, {when}"
    figures.add(f"{what}: local copies", [size_of(job.config.local_folder) / 1e6], "MB")
    figures.add(f"{what}: Delta tables of the job", [size_of(job.config.job_folder) / 1e6], "MB")


def size_of(folder):
    """Return the bytes of a folder; of a file with several hard links once."""
    stats = [path.stat() for path in Path(folder).rglob("*") if path.is_file()]
    return sum({stat.st_ino: stat.st_size for stat in stats}.values())


def look_ups(large, small, figures, when):
    """Look up keys of both jobs in turns, by the command line."""
    with figures.phase(f"state get on {large.keys:,} keys, {when}"):
        look_up(large, 0)
    turns = [[look_up(job, turn) for job in (large, small)] for turn in range(1, BATCHES + 1)]
    for job, walls in zip((large, small), zip(*turns, strict=True), strict=True):
        figures.add(f"state get on {job.keys:,} keys, {when}, in turns, wall", walls, "s")
    goal = {"goal": f"<= {LOOK_UP_GOAL}", "met": lambda ratio: ratio <= LOOK_UP_GOAL}
    name = f"state get, {when}: {large.keys:,} keys / {small.keys:,} keys, wall"
    figures.add(name, [of_large / of_small for of_large, of_small in turns], "ratio", **goal)


def look_up(job, turn):
    """Return the seconds that a look-up of a key takes; another turn asks for another key."""
    key = job.keys // 3 + turn * 1_000
    with measured() as cost:
        answer = headrace(job, "state", "get", "counting", f"key-{key:08d}", "--json")
    assert f'"sum":{job.expected[key]}' in answer.replace(" ", "").replace("\\", ""), answer
    return cost.wall


def compact(job, figures):
    with figures.phase(f"compaction of {job.keys:,} keys", bounded=True):
        headrace(job, "compact", "counting")


def headrace(job, *arguments):
    """Run a command; return what it prints."""
    line = [str(Path(sys.executable).parent / "headrace"), *arguments]
    environment = os.environ | {"HEADRACE_HOME": str(job.root.absolute())}
    return subprocess.run(line, env=environment, check=True, capture_output=True, text=True).stdout


def micro_batches(large, small, backend, figures):
    costs = {large.keys: [], small.keys: []}
    for _ in range(WARM_UP + BATCHES):
        for job in (large, small):
            costs[job.keys].append(job.batch(ROWS, backend))
    walls, cpus, workers = (
        {keys: [turn[at] for turn in turns[WARM_UP:]] for keys, turns in costs.items()} for at in range(3)
    )
    ratios = [a / b for a, b in zip(walls[large.keys], walls[small.keys], strict=True)]
    name = f"{ROWS:,} rows, {backend}: {large.keys:,} keys / {small.keys:,} keys, wall"
    figures.add(
        name,
        ratios,
        "ratio",
        **({"goal": f"<= {GOAL}", "met": lambda ratio: ratio <= GOAL} if backend == "rocksdb" else {}),
    )
    for keys in costs:
        what = f"{ROWS:,} rows on {keys:,} keys, {backend}"
        figures.add(f"{what}, wall", walls[keys], "s")
        figures.add(f"{what}, CPU", cpus[keys], "s")
        figures.add(f"{what}, largest worker", [size / 1e6 for size in workers[keys]], "MB")


def rebuild(job, figures):
    """Remove the local copies, and take in a file."""
    shutil.rmtree(job.config.local_folder)
    with figures.phase(f"rebuild of {job.keys:,} keys, and {ROWS:,} rows", bounded=True):
        job.batch(ROWS)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
