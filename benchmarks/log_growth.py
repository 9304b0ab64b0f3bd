"""The cost of a job's logs over a thousand micro-batches: files, and the time of a micro-batch and of an opening.

No JVM: each micro-batch stages a row of state, and is committed. `--every 0` disables maintenance.
"""

import argparse
import shutil
import statistics
import time
from pathlib import Path

import pyarrow as pa
from msgspec.structs import replace

from benchmarks._report import figure, report
from headrace.commit.checkpoint import Kind
from headrace.commit.compaction import compact
from headrace.commit.protocol import open_job
from headrace.commit.vacuum import vacuum
from headrace.config import load_job
from headrace.tables.files import list_files
from headrace.tables.schemas import CHECKPOINTS, KEYED_STATE, STATE_TABLES

COLUMNS = STATE_TABLES[KEYED_STATE].schema


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batches", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=100, help="micro-batches between two compactions and vacuums")
    parser.add_argument("--a-run", type=int, default=10, help="micro-batches of a run")
    options = parser.parse_args()
    config = job()
    figures, batches, openings = [], [], []
    for number in range(options.batches // options.a_run):
        begun = time.perf_counter()
        with open_job(config, f"run {number}", create=True) as opened:
            openings.append(time.perf_counter() - begun)
            batches += [commit(opened, key) for key in range(options.a_run)]
        done = (number + 1) * options.a_run
        if options.every and done % options.every == 0:
            compact(config, "nightly")
            vacuum(config, "nightly", dry_run=False)
        if done % (options.batches // 4) == 0:
            figures += sizes_of(config, done, batches, openings)
            batches, openings = [], []
    report(f"log_growth_every_{options.every}", figures)


def job():
    """A job in an empty folder whose retention is always over."""
    config = load_job("flights")
    root = Path("var/bench/log-growth").absolute()
    shutil.rmtree(root, ignore_errors=True)
    sinks = {name: replace(sink, path=f"{root}/lake/{name}") for name, sink in config.sinks.items()}
    retention = replace(config.retention, hours=0)
    return replace(config, state=replace(config.state, root=str(root)), sinks=sinks, retention=retention)


def commit(opened, key):
    begun = time.perf_counter()
    entry = {"operator": "count", "key_group": key, "key": f'"{key}"', "state": "n", "value": "1"}
    row = {**dict.fromkeys(COLUMNS.names), **entry, "checkpoint_id": opened.next_id, "deleted": False}
    staged = opened.stage(KEYED_STATE, "0", pa.Table.from_pylist([row], COLUMNS))
    opened.commit(Kind.BATCH, files={KEYED_STATE: [staged]})
    return time.perf_counter() - begun


def sizes_of(config, done, batches, openings):
    sizes = [
        figure(f"after {done:,}: files in {table}", [len(list_files(f"{config.job_folder}/{table}"))], "files")
        for table in (CHECKPOINTS, KEYED_STATE)
    ]
    times = [
        figure(f"after {done:,}: {name}, median", [statistics.median(seconds) * 1000], "ms")
        for name, seconds in (("micro-batch", batches), ("opening", openings))
    ]
    return sizes + times


if __name__ == "__main__":
    main()
