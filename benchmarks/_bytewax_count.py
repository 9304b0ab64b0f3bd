"""A count and a sum per key in bytewax, with recovery: one run over some Parquet files. Runs in the environment of `make peers`.

    python _bytewax_count.py STATE OUTPUT FILE...      the last file is new; the rows of the others are in STATE already

Prints wall and CPU seconds, without those of the imports.
"""

import sys
import time
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
import pyarrow as pa
import pyarrow.parquet as pq
from bytewax._bytewax import cluster_main
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from bytewax.recovery import RecoveryConfig, init_db_dir

ROWS_AT_ONCE = 10_000
PARTITIONS = 2
"""Partitions of the recovery store (SQLite)."""

EPOCH = timedelta(seconds=10)
"""Time between two snapshots."""


class FilePartition(StatefulSourcePartition):
    """Rows of a file; the resume state is the number of rows that were read."""

    def __init__(self, path, row):
        self.row = row or 0
        self.rows = []
        if self.row < pq.read_metadata(path).num_rows:
            table = pq.read_table(path, columns=["key", "seq", "value"])
            columns = [table[name].to_pylist() for name in ("key", "seq", "value")]
            self.rows = [(key, (seq, value)) for key, seq, value in zip(*columns, strict=True)]

    def next_batch(self):
        if self.row >= len(self.rows):
            raise StopIteration
        batch = self.rows[self.row : self.row + ROWS_AT_ONCE]
        self.row += ROWS_AT_ONCE
        return batch

    def snapshot(self):
        return self.row


class Files(FixedPartitionedSource):
    """Files, each a partition."""

    def __init__(self, paths):
        self.paths = {Path(path).name: path for path in paths}

    def list_parts(self):
        return list(self.paths)

    def build_part(self, step_id, for_part, resume_state):
        del step_id
        return FilePartition(self.paths[for_part], resume_state)


class ParquetPartition(StatelessSinkPartition):
    """A Parquet file, written at the end."""

    def __init__(self, path):
        self.path, self.rows = path, []

    def write_batch(self, items):
        self.rows += items

    def close(self):
        names = ("key", "seq", "count", "sum")
        columns = zip(*((key, *result) for key, result in self.rows), strict=True)
        pq.write_table(pa.table(dict(zip(names, map(list, columns), strict=True))), self.path)


class ParquetFile(DynamicSink):
    """Sink of one worker."""

    def __init__(self, path):
        self.path = path

    def build(self, step_id, worker_index, worker_count):
        del step_id, worker_index, worker_count
        return ParquetPartition(self.path)


def count(total, click):
    seq, value = click
    before = total or (0, 0)
    after = before[0] + 1, before[1] + value
    return after, (seq, *after)


def main():
    state, output, *files = sys.argv[1:]
    wall, cpu = time.perf_counter(), time.process_time()
    if not Path(state).exists():
        Path(state).mkdir(parents=True)
        init_db_dir(state, PARTITIONS)
    flow = Dataflow("count_and_sum")
    clicks = op.input("clicks", flow, Files(files))
    op.output("counts", op.stateful_map("count", clicks, count), ParquetFile(output))
    cluster_main(flow, [], 0, worker_count_per_proc=1, epoch_interval=EPOCH, recovery_config=RecoveryConfig(state))
    print(time.perf_counter() - wall, time.process_time() - cpu)


main()
