"""Asynchronous execution (FLIP-425) against synchronous: state in memory, on disk, and remote.

The work is counting words: the same coroutine function everywhere, and the same function as plain `def`. Every
variant has a separate process; the variants run in turns, micro-batch by micro-batch, each over its own earlier
state. Output and state are checked after each turn.

The figures of the FLIP and of Flink are printed beside ours. Those figures are quoted, not measured here: other
machines (the FLIP's), other programs.
"""  # noqa: N999 - called as it is in `make bench-async`; nobody imports it

import argparse
from dataclasses import dataclass

from benchmarks._object_store import object_store
from benchmarks._plot import log_log_chart
from benchmarks._report import OUT, figure, report
from benchmarks._turns import turns
from benchmarks._word_count import Bare, Framework, Words
from headrace.options import EventOrder

TURNS = 5
SYNCHRONOUS = {"enabled": False}
STRICT, RELAXED = "strictly-ordered", "out-of-order"
QUOTED = "quoted"


@dataclass(frozen=True)
class Size:
    """The amount of work: records of a turn, by the duration of a record; keys that have state."""

    fast: int
    slow: int
    one_by_one: int
    keys: int
    keys_of_curve: int


FULL = Size(fast=200_000, slow=50_000, one_by_one=1000, keys=1_000_000, keys_of_curve=100_000)
QUICK = Size(fast=10_000, slow=5_000, one_by_one=100, keys=50_000, keys_of_curve=20_000)


def cpu(output, step=0):
    return [turn.cpu[step] for turn in output]


def processing(output):
    """Return records per second, without writing back."""
    return [1e6 / turn.wall[0] for turn in output]


def whole(output):
    return [turn.rate for turn in output]


def over(ours, theirs):
    """Return ratios of consecutive turns."""
    return [a / b for a, b in zip(ours, theirs, strict=True)]


def at_least(goal):
    return {"goal": f">= {goal:g}", "met": lambda v: v >= goal}


def at_most(goal):
    return {"goal": f"<= {goal:g}", "met": lambda v: v <= goal}


def quoted(name, value, source):
    return figure(f"{QUOTED}: {name} ({source})", [value], "records/s")


def local_state(size):
    """State in memory and on local disk: the cost of asynchronous execution, and the gain of batches."""
    uniform, zipf = (Words(size.fast, size.keys, zipf=skewed) for skewed in (False, True))
    even = turns(
        TURNS,
        {
            "no framework": Bare(uniform),
            "hashmap, in the task's cache": Framework(uniform, "hashmap", cached=True),
            "hashmap, sync": Framework(uniform, "hashmap", SYNCHRONOUS),
            "hashmap, def": Framework(uniform, "hashmap", plain=True),
            "hashmap, async": Framework(uniform, "hashmap"),
            "rocksdb, sync": Framework(uniform, "rocksdb", SYNCHRONOUS),
            "rocksdb, async": Framework(uniform, "rocksdb"),
            "rocksdb, async without prefetch": Framework(uniform, "rocksdb", prefetch=False),
        },
    )
    skewed = turns(
        TURNS,
        {
            "hashmap, async": Framework(zipf, "hashmap"),
            "rocksdb, sync": Framework(zipf, "rocksdb", SYNCHRONOUS),
            "rocksdb, async": Framework(zipf, "rocksdb"),
            "rocksdb, async without prefetch": Framework(zipf, "rocksdb", prefetch=False),
        },
    )
    asynchronous = cpu(even["hashmap, async"])
    above = [a - b for a, b in zip(cpu(even["hashmap, in the task's cache"]), cpu(even["no framework"]), strict=True)]
    yield figure("hashmap: async / sync, CPU", over(asynchronous, cpu(even["hashmap, sync"])), "ratio", **at_most(1.15))
    yield figure("hashmap: async / def, CPU", over(asynchronous, cpu(even["hashmap, def"])), "ratio", **at_most(1.15))
    for name, output in {"uniform": even, "zipf": skewed}.items():
        gain = over(cpu(output["rocksdb, sync"]), cpu(output["rocksdb, async"]))
        yield figure(f"rocksdb, {name}: sync / async, CPU", gain, "ratio", goal="> 1", met=lambda v: v > 1)
    for name, output in skewed.items():
        if "async" in name:
            yield figure(
                f"{name}: zipf / uniform, rate", over(whole(output), whole(even[name])), "ratio", **at_least(1)
            )
    yield figure("framework above the bare coroutine, CPU", above, "us a record", **at_most(1.5))
    for words, output in {"uniform": even, "zipf": skewed}.items():
        for name, of in output.items():
            yield figure(f"{words}, {name}", whole(of), "records/s")
    for words, output in {"uniform": even, "zipf": skewed}.items():
        for name, of in output.items():
            yield figure(f"{words}, {name}: processing, CPU", cpu(of), "us a record")
    yield quoted("hashmap, async API, uniform", 0.92e6, "Flink 2.3, peers/flink")
    yield quoted("ForSt on local disk, async, uniform", 0.21e6, "Flink 2.3, peers/flink")
    yield quoted("ForSt on local disk, async, zipf", 0.083e6, "Flink 2.3, peers/flink")
    yield quoted("RocksDB, async API", 0.256e6, "FLIP-425")


def remote_state(size):
    """Remote state: the cost of waiting for single accesses, and the gain of each optimization."""
    few, many = Words(size.one_by_one, size.keys), Words(size.slow, size.keys)
    seldom = Words(size.one_by_one // 5, size.keys)
    variants = {
        "rocksdb, sync": Framework(many, "rocksdb", SYNCHRONOUS),
        "1 ms, sync": Framework(few, 0.001, SYNCHRONOUS),
        "1 ms, async": Framework(many, 0.001, prefetch=False),
        "1 ms, async with prefetch": Framework(many, 0.001),
        "1 ms, async, cached": Framework(many, 0.001, cached=True),
        "5 ms, sync": Framework(seldom, 0.005, SYNCHRONOUS),
        "5 ms, async": Framework(many, 0.005, prefetch=False),
        "5 ms, async with prefetch": Framework(many, 0.005),
        "5 ms, async, cached": Framework(many, 0.005, cached=True),
    }
    with object_store() as storage:
        for place, options in (("delta", None), ("delta on S3", storage)):
            variants |= {
                f"{place}, sync": Framework(seldom, "delta", SYNCHRONOUS, storage=options),
                f"{place}, async": Framework(many, "delta", prefetch=False, storage=options),
                f"{place}, async with prefetch": Framework(many, "delta", storage=options),
                f"{place}, async, cached on disk": Framework(many, "delta, cached", storage=options),
            }
        output = turns(TURNS, variants)
    rates = {name: processing(of) for name, of in output.items()}
    for place in ("1 ms", "5 ms", "delta", "delta on S3"):
        goal = {} if place == "delta" else at_least(50)
        yield figure(f"{place}: async / sync", over(rates[f"{place}, async"], rates[f"{place}, sync"]), "ratio", **goal)
        cached = next(name for name in rates if name.startswith(f"{place}, async, cached"))
        yield figure(f"{cached} / rocksdb, sync", over(rates[cached], rates["rocksdb, sync"]), "ratio", **at_least(1))
        part = over(rates[f"{place}, async"], rates["rocksdb, sync"])
        yield figure(f"{place}, async / rocksdb, sync (FLIP-425 has 0.4)", part, "ratio")
    for name, rate in rates.items():
        yield figure(f"state behind {name}" if "ms" in name else name, rate, "records/s")
    yield quoted("sync on local disk", 17.1e3, "FLIP-425")
    yield quoted("sync on HDFS", 0.85e3, "FLIP-425")
    yield quoted("async on HDFS", 7e3, "FLIP-425")
    yield quoted("async on HDFS, all cached on disk", 42.7e3, "FLIP-425")


def watermarks(size):
    """The delay that a watermark causes when later records must wait for it."""
    variants = {}
    for every in (100, 1000):
        for place, backend, records in (("1 ms", 0.001, size.slow), ("at hand", "hashmap", size.slow)):
            words = Words(records, size.keys if place == "1 ms" else size.keys // 10, watermark_every=every)
            for order in (STRICT, RELAXED):
                options = {"event_order_watermark": EventOrder(order)}
                variants[every, place, order] = Framework(words, backend, options, prefetch=place != "1 ms")
    output = turns(TURNS, variants)
    rates = {name: processing(of) for name, of in output.items()}
    for every, place, order in rates:
        if order is RELAXED:
            gain = over(rates[every, place, RELAXED], rates[every, place, STRICT])
            goal = at_least(1.16 if place == "1 ms" else 1.7)
            yield figure(f"state {place}, watermark every {every}: {RELAXED} / {STRICT}", gain, "ratio", **goal)
    for (every, place, order), rate in rates.items():
        yield figure(f"state {place}, watermark every {every}, {order}", rate, "records/s")


def limits(size):
    """Return records per second by the limit of records in flight and the batch size; also as a chart."""
    in_flight = (10, 30, 100, 300, 1000, 3000, 6000, 20_000)
    lines = {}
    for batch in (10, 100, 1000):
        output = turns(
            TURNS,
            {
                limit: Framework(
                    Words(min(size.slow // 2, 100 * min(limit, 4 * batch)), size.keys_of_curve),
                    0.001,
                    {"in_flight_records_limit": limit, "buffer_size": batch},
                    prefetch=False,
                )
                for limit in in_flight
            },
        )
        for limit, of in output.items():
            measured = figure(f"state 1 ms, {limit:,} in flight, batches of {batch:,}", processing(of), "records/s")
            lines.setdefault(f"batches of {batch:,}", []).append((limit, measured["value"]))
            yield measured
    log_log_chart(
        OUT / "async.svg",
        title="State behind 1 ms: what limits the rate",
        x="records in flight, at most",
        y="records/s",
        lines=lines,
    )


PARTS = {"local": local_state, "remote": remote_state, "watermarks": watermarks, "limits": limits}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    figures = [measured for part in options.parts for measured in PARTS[part](QUICK if options.quick else FULL)]
    figures.sort(key=lambda item: item["unit"] != "ratio")
    report("async", figures)


if __name__ == "__main__":
    main()
