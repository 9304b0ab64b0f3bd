"""Keyed state: the cost of TTL, iterating a large map, compaction, and rebuilding a local copy.

    make bench-state

(a) Visits are counted in each kind of state, with and without TTL; variants of a kind take turns, micro-batch by
micro-batch. (b) One key's map is iterated entry by entry; the memory needed must not grow with the map. (c) A table
of 10 M entries, half of them expired, is compacted. (d) A local copy is rebuilt from the compacted table. Results are
checked.
"""

import argparse
import gc
import shutil
import time
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa

from benchmarks._home import new_home
from benchmarks._kinds import FOLDER, KINDS, OPERATOR, TTLS, Latest, Visit, Visits, backend_of, key_of
from benchmarks._report import figure, report
from benchmarks._turns import turns
from headrace import KeyedProcessFunction, MapState, Process
from headrace.commit.protocol import open_job
from headrace.edits.compact import compact
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.log.checkpoint import Kind
from headrace.records.order import record_order
from headrace.state.backend import EntryChange, stored_value, value_entry
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.tables.changelog import stage_state
from headrace.tables.entries import rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES

TURNS = 5
GROUPS = 128
HOUR = 3_600_000
JOB = """
job: visits
pipeline: benchmarks._kinds:pipeline
state: {root: state, local: local}
sources: {page_views: {path: visits}}
sinks: {nothing: {path: lake/nothing, mode: append}}
"""


class Sizes:
    def __init__(self, *, quick):
        self.records, self.users = (5_000, 10_000) if quick else (100_000, 100_000)
        self.small_map, self.large_map = (1_000, 20_000) if quick else (10_000, 1_000_000)
        self.entries = 100_000 if quick else 10_000_000


def ttl_cost(sizes):
    """Return records per second by kind, backend and TTL; variants of one kind and backend run in consecutive turns."""
    for backend in ("hashmap", "rocksdb"):
        for kind in KINDS:
            output = turns(
                TURNS,
                {name: Visits(kind, backend, ttl, sizes.records, sizes.users) for name, ttl in TTLS.items()},
            )
            without = [sum(turn.cpu) for turn in output["no TTL"]]
            for name, of in output.items():
                if name != "no TTL":
                    ratios = [sum(turn.cpu) / plain for turn, plain in zip(of, without, strict=True)]
                    # Looking at more entries than the default does is the user's choice.
                    is_goal = kind == "value" and "5" not in name
                    goal = {"goal": "<= 1.1", "met": lambda v: v <= 1.1} if is_goal else {}
                    yield figure(f"{backend}, {kind}: {name} / no TTL, CPU", ratios, "ratio", **goal)
            for name, of in output.items():
                yield figure(f"{backend}, {kind}, {name}", [turn.rate for turn in of], "records/s")


class Walk(KeyedProcessFunction[Visit, Visit]):
    """Sums up a map's values."""

    pages = MapState("pages", int, int)

    async def process(self, _visit, ctx, /):
        total = 0
        async for _, count in self.pages.entries():
            total += count
        ctx.collect(Visit("total", total))


def walking(sizes):
    """Measure the iteration of a map: entries per second, and peak memory."""
    peaks = {}
    for entries in (sizes.small_map, sizes.large_map):
        backend = backend_of("rocksdb")
        pages = (EntryChange(key_of(0), b"1", 0, 0, "", b"%d" % page) for page in range(entries))
        backend.write_batch((change.entry("pages"), stored_value(0, b"1")) for change in pages)
        seconds = [_walk(backend, entries) for _ in range(TURNS)]
        tracemalloc.start()
        peaks[entries] = []
        for _ in range(3):
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            _walk(backend, entries)
            peaks[entries].append((tracemalloc.get_traced_memory()[1] - before) / 1e6)
        tracemalloc.stop()
        yield figure(f"walk over a map of {entries:,}", [entries / second for second in seconds], "entries/s")
    small, large = peaks.values()
    ratios = [a / b for a, b in zip(large, small, strict=True)]
    name = f"walk: peak memory, map of {sizes.large_map:,} / of {sizes.small_map:,}"
    yield figure(name, ratios, "ratio", goal="<= 1.2", met=lambda v: v <= 1.2)
    yield figure(f"walk: peak memory, map of {sizes.large_map:,}", large, "MB")


def _walk(backend, entries):
    process = KeyedProcess(
        Process(OPERATOR, "user", Walk()), backend, records=(Visit,), watermark=None, last_watermark=None
    )
    gc.collect()
    began = time.perf_counter()
    process.run([[Element(record_order(0), 0, 0, key_of(0), Visit("", 0))]], [])
    took = time.perf_counter() - began
    assert [emitted.record for emitted in process.emitted] == [Visit("total", entries)], (
        "not all entries were walked over"
    )
    return took


def compaction(sizes):
    """Rewrite a table in which half of the entries have expired, and load the rest."""
    root = FOLDER / "job"
    config = new_home(root, "visits", JOB)
    with open_job(config, "fill", create=True) as job:
        files = list(_filled(config.job_folder, sizes.entries))
        job.commit(Kind.BATCH, files={KEYED_STATE: files}, watermark=2 * HOUR)
    wall, cpu = time.perf_counter(), time.process_time()
    checkpoint = compact(config, "bench")
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    assert checkpoint.metrics["rows_after"] == sizes.entries // 2, "compaction kept the wrong rows"
    name = f"compaction of {sizes.entries:,} rows, half expired"
    yield figure(f"{name}, wall", [wall], "s")
    yield figure(f"{name}", [sizes.entries / wall], "rows/s")
    yield figure(f"{name}, CPU", [cpu], "s")
    yield from rebuilding(config.job_folder, checkpoint, sizes.entries // 2)
    shutil.rmtree(root)


def _filled(folder, entries, chunk=1_000_000):
    """Even users are expired at a watermark of two hours, odd users are not."""
    schema = STATE_TABLES[KEYED_STATE].schema
    for number, (first, end) in enumerate(pairwise([*range(0, entries, chunk), entries])):
        keys = [key_of(user) for user in range(first, end)]
        stamps = pa.array(np.arange(first, end) % 2 * HOUR * 1000 + HOUR * 500).cast(schema.field("last_access").type)
        rows = pa.table(
            {
                **{name: pa.nulls(len(keys), schema.field(name).type) for name in schema.names},
                "operator": pa.array([OPERATOR]).take(pa.array(np.zeros(len(keys), np.int64))),
                "key_group": pa.array([key_group(key, GROUPS) for key in keys], pa.int32()),
                "key": pa.array([key.decode() for key in keys]),
                "state": pa.array([Latest.latest.name]).take(pa.array(np.zeros(len(keys), np.int64))),
                "value": pa.array([str(user % 100) for user in range(first, end)]),
                "last_access": stamps,
                "expires_at": pa.array(np.arange(first, end) % 2 * HOUR * 1000 + HOUR * 1500).cast(stamps.type),
                "checkpoint_id": pa.array(np.ones(len(keys), np.int64)),
                "deleted": pa.array(np.zeros(len(keys), bool)),
            }
        )
        yield stage_state(
            JobFolder(str(folder)), KEYED_STATE, f"{number}.parquet", rows.select(schema.names).cast(schema)
        )


def rebuilding(folder, checkpoint, entries):
    """Load the state of half of the key groups into a local copy, as a task does on a machine without one."""
    half = KeyGroupRange(0, GROUPS // 2 - 1)
    for kind in ("rocksdb", "hashmap"):
        rates, rows = [], 0
        for _ in range(3):
            backend = backend_of(kind)
            gc.collect()
            cpu = time.process_time()
            rows = rebuild(backend, JobFolder(str(folder)).views(checkpoint.versions), OPERATOR, half)
            rates.append(rows / (time.process_time() - cpu))
            _check(backend, entries)
            backend.close()
        goal = {"goal": ">= 300,000", "met": lambda v: v >= 300_000}
        yield figure(f"rebuild of {rows:,} rows, {kind}", rates, "rows per CPU second", **goal)


def _check(backend, entries):
    users = [user for user in range(1, min(2 * entries, 2000), 2) if key_group(key_of(user), GROUPS) < GROUPS // 2]
    result = backend.get_many([value_entry(Latest.latest.name, key_of(user)) for user in users])
    assert result == [stored_value(HOUR + HOUR // 2, b"%d" % (user % 100)) for user in users], "rebuilt wrongly"


PARTS = {"ttl": ttl_cost, "walking": walking, "compaction": compaction}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    sizes = Sizes(quick=options.quick)
    figures = [measured for part in options.parts for measured in PARTS[part](sizes)]
    figures.sort(key=lambda item: item["unit"] != "ratio")
    report("state", figures)


if __name__ == "__main__":
    main()
