"""A changelog with late retractions into a table, end to end (workload W2), beside `row_number` and MERGE.

    make bench-late-retractions

Rows move between 50,000 keys, and a retraction may arrive up to 50 changes late, so it often retracts a row that is no longer
the last one of its key. Both sides take the same files in turns, in one Spark session, everything committed; the first turn is
not reported. The table of the job must equal that of a plain loop. MERGE knows no earlier rows of a key: the benchmark counts
its wrong rows.
"""

import argparse
import os
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks._costs import measured
from benchmarks._home import new_home
from benchmarks._report import figure, report
from headrace import Pipeline, Struct, Timestamp
from headrace.config import load_job
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from headrace.spark.session import session

KEYS, LATEST = 50_000, 50
JOB = """
job: board
pipeline: benchmarks.late_retractions:pipeline
state: {root: state, local: local, backend: rocksdb}
sources: {changes: {path: input, max_files_per_batch: 1}}
sinks: {board: {path: lake/board, mode: merge}}
"""
LAST_OF_KEYS = """
SELECT key, row, value, kind
FROM (SELECT *, row_number() OVER (PARTITION BY key ORDER BY seq DESC) AS place FROM parquet.`{file}`)
WHERE place = 1
"""
MERGE = """
MERGE INTO delta.`{table}` AS board USING last_of_keys AS last ON board.key = last.key
WHEN MATCHED AND last.kind IN ('-U', '-D') THEN DELETE
WHEN MATCHED THEN UPDATE SET row = last.row, value = last.value
WHEN NOT MATCHED AND last.kind IN ('+I', '+U') THEN INSERT (key, row, value) VALUES (last.key, last.row, last.value)
"""


class Change(Struct, frozen=True):
    seq: int
    at: Timestamp
    key: str
    row: int
    value: int


class BoardRow(Struct, frozen=True):
    key: str
    row: int
    value: int


def row_of(change: Change) -> BoardRow:
    return BoardRow(change.key, change.row, change.value)


pipeline = (
    Pipeline("board")
    .source("changes", Change, event_time="at", order_by=("seq",), row_kind="kind")
    .map(row_of)
    .upsert_materialize("latest", primary_key=("key",))
    .sink("board")
)


def changes(count):
    """Return `count` changes (kind, key, row, value) in the order of their arrival."""
    chance, live, changelog = random.Random(43), [], []
    while len(changelog) < count:
        choice = chance.random()
        if not live or choice < 0.3:
            live.append((f"key-{chance.randrange(KEYS):06d}", len(changelog), chance.randrange(1_000_000)))
            changelog.append(("+I", *live[-1]))
            continue
        place = chance.randrange(len(live))
        key, row, _ = before = live[place]
        if choice < 0.85:
            key = f"key-{chance.randrange(KEYS):06d}" if chance.random() < 0.3 else key
            live[place] = (key, row, chance.randrange(1_000_000))
            changelog += [("-U", *before), ("+U", *live[place])]
        else:
            live[place] = live[-1]
            live.pop()
            changelog.append(("-D", *before))
    places = [
        number + (chance.randrange(LATEST) + 0.5) * changelog[number][0].startswith("-") for number in range(count)
    ]
    return [changelog[number] for number in sorted(range(count), key=places.__getitem__)]


def write(arriving, first, file):
    kinds, keys, rows, values = zip(*arriving, strict=True)
    numbers = range(first, first + len(arriving))
    times = pa.array(numbers, pa.timestamp("ms", "UTC"))
    pq.write_table(
        pa.table({"seq": numbers, "at": times, "kind": kinds, "key": keys, "row": rows, "value": values}), file
    )


def table_by_hand(arriving):
    """Return the last live row of each key."""
    rows = {}
    for kind, key, *row in arriving:
        if kind.startswith("+"):
            rows.setdefault(key, []).append(row)
        else:
            rows[key].remove(row)
    return {key: tuple(own[-1]) for key, own in rows.items() if own}


def table_at(path):
    columns = pa.table(DeltaTable(str(path)).scan(columns=["key", "row", "value"])).to_pydict()
    return {key: (row, value) for key, row, value in zip(*columns.values(), strict=True)}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=250_000)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    root = Path("var/bench/late-retractions")
    job, merged = new_home(root, "board", JOB), root / "lake/merged"
    (root / "input").mkdir()
    spark = session(load_job("flights"))
    empty = spark.createDataFrame([], "key string, row bigint, value bigint").write.format("delta")
    empty.save(str(merged.resolve()))
    arriving = changes(options.rows * (1 + options.turns))
    costs = {"Headrace": [], "row_number + MERGE": []}
    for turn in range(1 + options.turns):
        first = turn * options.rows
        file = root / f"input/{turn:03d}.parquet"
        write(arriving[first : first + options.rows], first, file)
        with measured() as cost:
            run_in(spark, job, RunOptions(run_id=f"bench-{turn}"), lambda event: None)
        costs["Headrace"].append(cost)
        with measured() as cost:
            spark.sql(LAST_OF_KEYS.format(file=file.resolve())).createOrReplaceTempView("last_of_keys")
            spark.sql(MERGE.format(table=merged.resolve())).collect()
        costs["row_number + MERGE"].append(cost)
    expected = table_by_hand(arriving)
    assert table_at(root / "lake/board") == expected, "the job's table is wrong"
    wrong = expected.items() ^ table_at(merged).items()
    report("late_retractions", figures(costs, options.rows, len({key for key, _ in wrong}), len(expected)))
    spark.stop()


def figures(costs, rows, wrong, right):
    """Return the figures of all turns but the first; a ratio is that of a turn."""
    own, merge = (turns[1:] for turns in costs.values())
    result = [
        figure(
            "Headrace / row_number + MERGE, wall",
            [a.wall / b.wall for a, b in zip(own, merge, strict=True)],
            "ratio",
            goal="<= 1",
            met=lambda ratio: ratio <= 1,
        ),
        figure(f"row_number + MERGE: wrong keys, of {right:,}", [wrong], "keys"),
    ]
    for name, turns in costs.items():
        result.append(figure(f"{name}, CPU a row ({rows:,} rows)", [turn.cpu / rows * 1e6 for turn in turns[1:]], "us"))
        result.append(figure(f"{name}, wall", [turn.wall for turn in turns[1:]], "s"))
    return result


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
