"""The engine alone, without Spark: records/s of a keyed count and sum (workload W1) and of a materializer.

The peer is a plain Python loop over a dict, run in turns with the engine in this process. Results are checked:
counts, sums and the materialized rows must equal those of the plain loop.
"""

import argparse
import gc
import random
import shutil
import time
from pathlib import Path

import msgspec

from benchmarks._report import figure, report
from benchmarks.counting import Click, Counted, Total, pipeline
from headrace import Emit, RowKind, Strategy, Struct, UpsertMaterialize
from headrace.execution.element import Element
from headrace.execution.keyed_process import KeyedProcess
from headrace.materializer.upsert_materializer import UpsertMaterializer
from headrace.plan.order import record_order
from headrace.plan.planner import plan_stages
from headrace.state.backend import HashMapBackend
from headrace.state.codec import encode
from headrace.state.rocksdb import RocksDbBackend

BATCH = 20_000
FOLDER = Path("var/bench/engine")


class Version(Struct, frozen=True):
    """A row for the materializer."""

    key: str
    version: int
    text: str


def clicks(count, keys):
    chance = random.Random(42)
    results = []
    for ordinal in range(count):
        key = f"key-{chance.randrange(keys):07d}"
        record = Click(key, chance.randrange(100), ordinal, 1_000_000 + ordinal)
        results.append(Element(record_order(ordinal), record.ts, 0, encode(key), record))
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


def keyed(elements, backend):
    operator = plan_stages(pipeline).keyed[0].operator
    process = KeyedProcess(operator, backend, records=(Click,), watermark=None, last_watermark=None)
    process.run(batches(elements), [])
    (store,) = process.stores
    changes = list(store.changes())
    backend.write_batch(store.writes(changes))
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
    gc.disable()  # as tasks do: headrace.spark.tasks
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


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    elements = clicks(options.records, options.keys)
    rows, last = changelog(options.records // 2, options.keys // 2)
    rates, costs, ratios = {}, {}, {}
    for _ in range(options.runs):
        expected, wall, cpu = timed(lambda: bare(elements))
        floor = cpu
        rates.setdefault("bare loop over a dict", []).append(len(elements) / wall)
        costs.setdefault("bare loop over a dict", []).append(cpu / len(elements) * 1e6)
        for name, make in backends():
            backend = make()
            actual, wall, cpu = timed(lambda backend=backend: keyed(elements, backend))
            backend.close()
            assert actual == expected, f"{name}: wrong counts"
            rates.setdefault(f"keyed process, {name}", []).append(len(elements) / wall)
            costs.setdefault(f"keyed process, {name}", []).append(cpu / len(elements) * 1e6)
            ratios.setdefault(f"keyed process, {name} / bare loop, CPU", []).append(cpu / floor)
        for name, make in backends():
            backend = make()
            result, wall, cpu = timed(lambda backend=backend: materialize(rows, backend))
            backend.close()
            assert final_rows(result) == last, f"{name}: wrong rows"
            rates.setdefault(f"materializer, {name}", []).append(len(rows) / wall)
            costs.setdefault(f"materializer, {name}", []).append(cpu / len(rows) * 1e6)
    figures = [figure(name, values, "ratio") for name, values in ratios.items()]
    figures += [figure(name, values, "records/s") for name, values in rates.items()]
    figures += [figure(f"{name}: CPU", values, "us a record") for name, values in costs.items()]
    report("engine", figures)


if __name__ == "__main__":
    main()
