"""Queries of Nexmark, end to end and committed, beside the same queries in Spark: seconds, and CPU of the whole process tree.

    make bench-nexmark
    python -m benchmarks.nexmark --queries q3,q8 --events 1000000 --repeat 3

Job and Spark take turns in one warm session, read the same files in as many micro-batches, and write a Delta table,
which is compared with DuckDB outside the time taken. Spark is Structured Streaming with `availableNow` and RocksDB
(see `_nexmark_streams`), or, with `--peer batch`, SQL that reads all input at once and keeps no state for a later
run. Both make a small run before the turns of a query, so that neither pays for code generated at first use.

Figures of measured queries are read from the file that the last line names, so an interrupted run can be continued.
`--again` measures them anew.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks._costs import measured
from benchmarks._nexmark_sql import SPARK_SQL
from benchmarks._nexmark_streams import AHEAD, STREAMS, Way
from benchmarks._nexmark_turns import Turns, WrongPeer
from benchmarks._report import figure, written
from headrace.config import load_job
from headrace.spark.session import session
from pipelines.nexmark.generator import Shape

ROOT = Path("var/bench/nexmark")
SMALL = 20_000
"""Number of events of the small runs before the measured ones."""


class Figures:
    """The measured figures of each query, kept in a file between runs of the benchmark."""

    def __init__(self, path):
        self.path = path
        self.of = json.loads(path.read_text()) if path.exists() else {}

    def keep(self, query, measured):
        self.of[query] = measured
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.of, indent=2) + "\n")


def way_of(query, peer):
    return "batch SQL" if peer == "batch" else STREAMS[query].way.value


def goal_of(query, peer):
    """Return the largest acceptable ratio of CPU, if there is a goal."""
    if peer == "batch" or STREAMS[query].way is Way.STATELESS:
        return None
    return 1.0 if STREAMS[query].way in AHEAD else 2.0


def measure(turns, query, peer, repeat):
    """Return seconds, CPU seconds and micro-batches of `repeat` turns of both."""
    both = [(turns.job(query), getattr(turns, peer)(query)) for _ in range(repeat)]
    sides = {"job": [job for job, _ in both], "spark": [spark for _, spark in both]}
    return {
        "load": round(os.getloadavg()[0], 2),
        **{
            side: {
                "cpu": [round(turn.cost.cpu, 3) for turn in runs],
                "wall": [round(turn.cost.wall, 3) for turn in runs],
                "batches": runs[-1].batches,
            }
            for side, runs in sides.items()
        },
    }


def ratios(measured, unit):
    return [job / spark for job, spark in zip(measured["job"][unit], measured["spark"][unit], strict=True)]


def shown(figures, peer):
    """Return the table: medians of all turns, ratios turn by turn."""
    table = Table(box=None, pad_edge=False)
    for column in ("query", f"Spark: {peer}"):
        table.add_column(column)
    for column in ("CPU s\njob", "\nSpark", "\nratio", "\ngoal", "wall s\njob", "\nSpark", "\nratio"):
        table.add_column(column, justify="right")
    for query, runs in figures.items():
        cells = [query, way_of(query, peer)]
        goal, ratio = goal_of(query, peer), statistics.median(ratios(runs, "cpu"))
        for unit in ("cpu", "wall"):
            cells += [f"{statistics.median(runs[side][unit]):.2f}" for side in ("job", "spark")]
            cells.append(f"{statistics.median(ratios(runs, unit)):.2f}")
            if unit == "cpu":
                cells.append("" if goal is None else f"{goal:g}{'' if ratio <= goal else ' NO'}")
        table.add_row(*cells)
    return table


def as_figures(figures, peer):
    """Return the ratios, then the seconds, in the form of all benchmarks."""
    listed = []
    for query, runs in figures.items():
        goal, name = goal_of(query, peer), f"{query}, {way_of(query, peer)}"
        met = None if goal is None else lambda ratio, goal=goal: ratio <= goal
        message = None if goal is None else f"<= {goal:g}"
        listed.append(figure(f"{name}: CPU, job / Spark", ratios(runs, "cpu"), "", goal=message, met=met))
        listed.append(figure(f"{name}: wall, job / Spark", ratios(runs, "wall"), ""))
    for query, runs in figures.items():
        for side in ("job", "spark"):
            listed += [figure(f"{query}, {side}: {unit}", runs[side][unit], "s") for unit in ("cpu", "wall")]
    return listed


def options_of(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__.splitlines()[0])
    parser.add_argument("--queries", default=",".join(STREAMS), help="such as q3,q8 (default: all 16)")
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=16, help="files of each table")
    parser.add_argument("--batches", type=int, default=4, help="micro-batches, of the job and of the stream")
    parser.add_argument("--repeat", type=int, default=3, help="turns of each query")
    parser.add_argument(
        "--backend", default="rocksdb", choices=("rocksdb", "hashmap"), help="where the job keeps state"
    )
    parser.add_argument("--peer", default="stream", choices=("stream", "batch"))
    parser.add_argument("--again", action="store_true", help="measure queries anew that have figures")
    options = parser.parse_args(arguments)
    options.queries = options.queries.split(",")
    if unknown := {*options.queries} - {*SPARK_SQL}:
        parser.error(f"no query {', '.join(sorted(unknown))}; there are {', '.join(SPARK_SQL)}")
    if options.files % options.batches:
        parser.error(f"{options.files} files cannot be split into {options.batches} micro-batches of equally many")
    return options


def main():
    options = options_of()
    peer, events = options.peer, options.events
    names = f"{events}-{options.files}-{options.batches}-{options.backend}-{peer}-{options.repeat}"
    figures = Figures(ROOT / f"figures-{names}.json")
    if wanted := [query for query in options.queries if options.again or query not in figures.of]:
        with measured() as start:
            spark = session(load_job("flights"))
        print(f"the session's start: {start.wall:.1f} s, {start.cpu:.1f} s of CPU")
        limits = {"files": options.files, "batches": options.batches, "backend": options.backend}
        small = Turns(spark, ROOT / f"{SMALL}-{options.files}", Shape(SMALL), **limits)
        large = Turns(spark, ROOT / f"{events}-{options.files}", Shape(events), **limits)
        for name in ("job", peer):
            first = getattr(small, name)("q17").cost
            print(f"the first {name} of a session, {SMALL:,} events: {first.wall:.1f} s, {first.cpu:.1f} s of CPU")
        for query in wanted:
            began = time.perf_counter()
            small.job(query)
            getattr(small, peer)(query)
            try:
                result = measure(large, query, peer, options.repeat)
            except WrongPeer as wrong:
                print(f"{query}: not compared. {wrong}", flush=True)
                figures.of.pop(query, None)
                continue
            figures.keep(query, result)
            ratio = statistics.median(ratios(result, "cpu"))
            counts = f"{result['job']['batches']} and {result['spark']['batches']} micro-batches"
            print(
                f"{query}: both as DuckDB; CPU {ratio:.2f}; {counts}; {time.perf_counter() - began:.0f} s", flush=True
            )
        small.clear()
        large.clear()
        spark.stop()
    output = {query: figures.of[query] for query in options.queries if query in figures.of}
    machine = written("nexmark", as_figures(output, peer))
    print(f"\n{events:,} events, median of {options.repeat}; load {machine['load'][0]} on {machine['cores']} cores")
    Console(width=80).print(shown(output, peer))
    print(f"\n{figures.path}")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
