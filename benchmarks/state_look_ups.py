"""Backend delta: look-ups of random keys in a compacted state table, against loading the table and against other readers.

    make bench-state-look-ups

The compacted table has 1,000,000 keys in 8 files. The cache starts empty and never helps: each look-up uses new keys.
Every answer is checked.
"""

import argparse
import gc
import random
import shutil
import time
from itertools import product
from pathlib import Path

import duckdb
import pyarrow as pa

from benchmarks._report import figure, report
from headrace.state.backend import EntryChange, stored_value, value_entry
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.state.rocksdb import RocksDbBackend, StateCache
from headrace.storage.storage import Storage
from headrace.tables.changelog import Changelog, stage_state
from headrace.tables.delta_backend import DeltaBackend
from headrace.tables.entries import rebuild
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES
from headrace.tables.view import entries_of

FOLDER = Path("var/bench/state_look_ups")
GROUPS, FILES, OPERATOR, STATE = 128, 8, "counts", "count"
EVERYTHING = KeyGroupRange(0, GROUPS - 1)
SCHEMA = STATE_TABLES[KEYED_STATE].schema
COLUMNS = ["key", "state", "value", "last_access", "checkpoint_id", "deleted"]


class Named:
    name = STATE

    def expires_at(self, _stamp, _own_ttl=0, /):
        return None


def key(number):
    return b'"customer-%07d"' % number


def value(number):
    return b'{"count":%d,"sum":%d}' % (number % 1000, number * 7919 % 9_999_991)


def changes(keys):
    parts = [[] for _ in range(FILES)]
    for number in range(keys):
        name = key(number)
        parts[key_group(name, GROUPS) * FILES // GROUPS].append(EntryChange(name, value(number), number))
    log = Changelog(OPERATOR, 1, GROUPS)
    return [log.values(Named(), part) for part in parts]


def write(name, parts, staged):
    folder = FOLDER / name
    for table, state in STATE_TABLES.items():
        Storage(str(folder / table)).table().create(state.schema)
    started = time.perf_counter()
    files = [staged(str(folder), f"{number}.parquet", part) for number, part in enumerate(parts)]
    seconds = time.perf_counter() - started
    Storage(str(folder / KEYED_STATE)).table().append(0, SCHEMA, files)
    return str(folder), seconds, sum(file.size for file in files)


def as_state(folder, name, rows):
    return stage_state(JobFolder(str(folder)), KEYED_STATE, name, rows)


def as_default(folder, name, rows):
    return Storage(f"{folder}/{KEYED_STATE}").stage(name, rows)


def new_backend(folder):
    cache = FOLDER / "cache"
    shutil.rmtree(cache, ignore_errors=True)
    versions = {table: int(table == KEYED_STATE) for table in STATE_TABLES}
    bounded = StateCache(RocksDbBackend(cache), 256 << 20)
    return DeltaBackend(JobFolder(folder), versions, OPERATOR, EVERYTHING, bounded, max_parallelism=GROUPS)


def by_scan(folder, names):
    table = Storage(f"{folder}/{KEYED_STATE}").table().latest()
    return table.read(SCHEMA, columns=COLUMNS, conditions=entries_of(keys=names)).num_rows


def by_duckdb(folder, names):
    with duckdb.connect(":memory:", config={"threads": 2}) as connection:
        connection.register("wanted", pa.table({"wanted": names}))
        files = f"read_parquet('{folder}/{KEYED_STATE}/*.parquet')"
        query = f"SELECT {', '.join(COLUMNS)} FROM {files} WHERE key IN (SELECT wanted FROM wanted)"  # noqa: S608
        return connection.sql(query).to_arrow_table().num_rows


def timed(work):
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    result = work()
    return result, (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=9)
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    parts, chance = changes(options.keys), random.Random(1)
    figures, walls, cpus = [], {}, {}
    layouts = {"state files": as_state, "Parquet as it comes": as_default}
    folders = {}
    for name, staged in layouts.items():
        folders[name], seconds, size = write(name.replace(" ", "_"), parts, staged)
        figures.append(figure(f"write {name}", [seconds], "s"))
        figures.append(figure(f"size of {name}", [size / 1e6], "MB"))
    for layout, count in product(layouts, (1, 10, 100, 1000)):
        backend = new_backend(folders[layout])
        for run in range(options.runs + 1):
            numbers = chance.sample(range(options.keys), count)
            entries = [value_entry(STATE, key(number)) for number in numbers]
            result, wall, cpu = timed(lambda backend=backend, entries=entries: backend.get_many(entries))
            assert result == [stored_value(number, value(number)) for number in numbers], "a wrong value"
            if run:  # the first one opens the table and its files
                walls.setdefault((layout, count), []).append(wall)
                cpus.setdefault((layout, count), []).append(cpu)
        backend.close()
    for (name, reader), count in product({"DeltaTable.scan": by_scan, "DuckDB": by_duckdb}.items(), (1, 1000)):
        for _ in range(options.runs):
            names = [key(number).decode() for number in chance.sample(range(options.keys), count)]
            result, wall, cpu = timed(lambda reader=reader, names=names: reader(folders["state files"], names))
            assert result == count, "rows are missing"
            walls.setdefault((name, count), []).append(wall)
            cpus.setdefault((name, count), []).append(cpu)
    for (name, count), values in walls.items():
        figures.append(figure(f"{count:,} of {options.keys:,} keys, {name}, wall", values, "ms"))
        figures.append(figure(f"{count:,} of {options.keys:,} keys, {name}, CPU", cpus[name, count], "ms"))
    versions = {table: int(table == KEYED_STATE) for table in STATE_TABLES}
    copy = RocksDbBackend(FOLDER / "copy")
    _, wall, _ = timed(
        lambda: rebuild(copy, JobFolder(str(folders["state files"])).views(versions), OPERATOR, EVERYTHING)
    )
    copy.close()
    figures.append(figure(f"load all {options.keys:,} keys into rocksdb, wall", [wall], "ms"))
    report("state_look_ups", figures)
    shutil.rmtree(FOLDER)


if __name__ == "__main__":
    main()
