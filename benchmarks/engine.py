"""The engine alone, without Spark: records/s of a keyed count and sum (workload W1) and of a materializer.

A keyed process reads state ahead, runs the records, and writes changes of state to its backend: with ten records a key,
and with keys that come once. `async def` runs in turns with the same code as plain `def`.

The peer is a plain Python loop over a dict, run in turns with the engine in this process. Results are checked:
counts, sums and the materialized rows must equal those of the plain loop.
"""

import argparse
import gc
import random
import shutil
import time
from collections import defaultdict
from pathlib import Path

import msgspec

from benchmarks._report import figure, report
from benchmarks.counting import Click, Counted, Total, pipeline, plain
from headrace import Emit, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.plan.planner import plan_stages
from headrace.records.order import record_order
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.rocksdb import RocksDbBackend

BATCH = 20_000
LOADS = {"ten records a key": 10, "keys that come once": 1}
GOALS = {"hashmap": 500_000, "rocksdb": 260_000}
"""Records/s with ten records a key."""
PLAIN_GOAL = 0.6
"""What `async def` may cost more than plain `def` (us a record)."""
FOLDER = Path("var/bench/engine")


class Version(Struct, frozen=True):
    """A row for the materializer."""

    key: str
    version: int
    text: str


def clicks(count, keys):
    """Return records on so many keys, all equally often, in random order."""
    chance = random.Random(42)
    numbers = [ordinal % keys for ordinal in range(count)]
    chance.shuffle(numbers)
    results = []
    for ordinal, number in enumerate(numbers):
        record = Click(f"key-{number:07d}", chance.randrange(100), ordinal, 1_000_000 + ordinal)
        results.append(Element(record_order(ordinal), record.ts, 0, encode(record.key), record))
    return results


def batches(elements):
    return [elements[first : first + BATCH] for first in range(0, len(elements), BATCH)]


def bare(elements):
    """The lower bound: a dict without a framework."""
    state, out = {}, []
    for element in elements:
        click = element.record
        count, total = state.get(click.key, (0, 0))
        state[click.key] = (count + 1, total + click.value)
        out.append(Counted(click.key, click.seq, count + 1, total + click.value))
    return {key: Total(*pair) for key, pair in state.items()}


def keyed(elements, backend, job=pipeline):
    """Run a keyed process, and write its changes of state, which are returned."""
    operator = plan_stages(job).keyed[0].operator
    process = KeyedProcess(operator, backend, records=(Click,), watermark=None, last_watermark=None)
    process.run(batches(elements), [])
    (store,) = process.stores
    changes = list(store.changes())
    backend.write_batch(store.writes(changes))
    return changes


def totals(changes):
    """Return the stored totals."""
    return {msgspec.json.decode(c.key_json): msgspec.json.decode(c.raw, type=Total) for c in changes}


def changelog(count, keys):
    """Return an insert, then late pairs of -U and +U: the new row often comes before the retraction of the old row."""
    chance = random.Random(43)
    last, results, ordinal = {}, [], 0
    while len(results) < count:
        key = encode(f"key-{chance.randrange(keys):07d}")
        row = Version(key.decode(), ordinal, "x" * 60)
        pair = [(RowKind.UPDATE_AFTER if key in last else RowKind.INSERT, row)]
        if key in last:
            pair.insert(chance.randrange(2), (RowKind.UPDATE_BEFORE, last[key]))
        last[key] = row
        for kind, row in pair:
            results.append(Element(record_order(ordinal), ordinal, int(kind), key, row))
            ordinal += 1
    return results, {key: encode(row) for key, row in last.items()}


def materialize(elements, backend):
    operator = UpsertMaterialize("board", ("key",), None, Strategy.LEGACY, Emit.NET_CHANGE)
    materializer = UpsertMaterializer(operator, backend, record=Version)
    materializer.run(batches(elements))
    backend.write_batch(materializer.writes())
    return materializer


def final_rows(materializer):
    """Return the last row of each key, by the outputs."""
    table = {}
    for output in materializer.outputs():
        if output.kind is RowKind.DELETE:
            table.pop(output.key_json, None)
        else:
            table[output.key_json] = output.raw
    return table


def timed(work):
    gc.collect()
    gc.disable()  # as tasks do: headrace.run.tasks
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def backends():
    yield "hashmap", HashMapBackend
    yield "rocksdb", lambda: RocksDbBackend(fresh())


def fresh():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    return FOLDER


class Turns:
    """Walls and CPU of all turns (us a record), by what was run."""

    def __init__(self):
        self.walls, self.costs = defaultdict(list), defaultdict(list)

    def run(self, name, count, work):
        result, wall, cpu = timed(work)
        self.walls[name].append(wall / count * 1e6)
        self.costs[name].append(cpu / count * 1e6)
        return result

    def rate(self, name, least=None):
        rates = [1e6 / wall for wall in self.walls[name]]
        goal = None if least is None else f">= {least:,}"
        return figure(name, rates, "records/s", goal=goal, met=None if least is None else lambda rate: rate >= least)

    def cost(self, name):
        return figure(f"{name}: CPU", self.costs[name], "us a record")

    def ratio(self, name, peer):
        pairs = zip(self.costs[name], self.costs[peer], strict=True)
        return figure(f"{name} / {peer}, CPU", [mine / theirs for mine, theirs in pairs], "ratio")

    def difference(self, name, peer, most):
        pairs = zip(self.costs[name], self.costs[peer], strict=True)
        values = [mine - theirs for mine, theirs in pairs]
        return figure(f"{name} - {peer}, CPU", values, "us a record", goal=f"<= {most}", met=lambda cost: cost <= most)


def count_and_sum(turns, load, elements):
    """Run one turn of each way to count."""
    count = len(elements)
    expected = turns.run(f"bare loop, {load}", count, lambda: bare(elements))
    jobs = [(name, make, pipeline) for name, make in backends()]
    for name, make, job in [*jobs, ("plain def", HashMapBackend, plain)]:
        backend = make()
        changes = turns.run(f"{name}, {load}", count, lambda backend=backend, job=job: keyed(elements, backend, job))
        backend.close()
        assert totals(changes) == expected, f"{name}: wrong counts"


def late_rows(turns, rows, last):
    for name, make in backends():
        backend = make()
        result = turns.run(f"materializer, {name}", len(rows), lambda backend=backend: materialize(rows, backend))
        backend.close()
        assert final_rows(result) == last, f"{name}: wrong rows"


def figures(turns):
    ten, once = LOADS
    yield from (turns.rate(f"{name}, {ten}", least) for name, least in GOALS.items())
    yield turns.difference(f"hashmap, {ten}", f"plain def, {ten}", PLAIN_GOAL)
    yield from (turns.rate(f"{name}, {once}") for name in GOALS)
    yield from (turns.rate(f"materializer, {name}") for name in GOALS)
    yield from (turns.ratio(f"{name}, {load}", f"bare loop, {load}") for load in LOADS for name in GOALS)
    yield from (turns.cost(name) for name in turns.costs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=250_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    loads = {load: clicks(options.records, options.records // times) for load, times in LOADS.items()}
    rows, last = changelog(options.records // 2, options.records // 10)
    turns = Turns()
    for _ in range(options.runs):
        for load, elements in loads.items():
            count_and_sum(turns, load, elements)
        late_rows(turns, rows, last)
    report("engine", list(figures(turns)))


if __name__ == "__main__":
    main()
