"""The job `counting` with tens of millions of keys: fed and checked by columns, since a dict of the keys would need gigabytes."""

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks._costs import measured
from benchmarks._counting_job import Workload
from benchmarks._memory import peak_memory
from headrace import local
from headrace.log.log import CheckpointLog
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE

ROWS_A_FILE = 1_000_000
"""Rows of a micro-batch while the job is loaded."""

_CHECKED_AT_ONCE = 5_000_000


class LargeWorkload(Workload):
    """A `Workload` whose keys and sums are NumPy arrays. It is loaded without Spark, by worker processes."""

    def __init__(self, root, keys):
        super().__init__(None, root, "rocksdb", keys)
        self.expected = np.zeros(keys, np.int64)
        self.draws = np.random.default_rng(keys)

    def load(self):
        for first in range(0, self.keys, ROWS_A_FILE):
            self.feed(np.arange(first, min(first + ROWS_A_FILE, self.keys)))
        local.run(self.config, RunOptions(run_id=f"bench-{self.files}"), self._keep)

    def batch(self, rows, backend="rocksdb"):
        """Take in random rows; return wall and CPU seconds, and the bytes of the largest worker."""
        self.feed(self.draws.integers(0, self.keys, rows))
        options = RunOptions(run_id=f"bench-{self.files}", backend=backend)
        with measured() as cost, peak_memory() as peak:
            run_in(self.spark, self.config, options, self._keep)
        return cost.wall, cost.cpu, peak.worker

    def feed(self, keys):
        values = self.draws.integers(0, 100, len(keys))
        np.add.at(self.expected, keys, values)
        places = np.arange(self.seq, self.seq + len(keys))
        names = pc.utf8_lpad(pa.array(keys).cast(pa.string()), 8, "0")
        table = pa.table(
            {
                "key": pc.binary_join_element_wise("key-", names, ""),
                "value": pa.array(values),
                "seq": pa.array(places),
                "ts": pa.array(places).cast(pa.timestamp("ms", "UTC")),
            }
        )
        self.files += 1
        pq.write_table(table, self.last_file)
        self.seq += len(keys)

    def check(self):
        """Compare the last sum of each key, in the sink and in the table of state, with the expected one."""
        counts = DeltaTable(self.config.sinks["counts"].path).file_uris()
        self._check(counts, "substr(key, 5)", "sum", "seq")
        last = CheckpointLog(JobFolder(self.config.job_folder)).last
        state = Storage(self.config.job_folder).table(KEYED_STATE).at(last.versions[KEYED_STATE]).files()
        paths = [f"{self.config.job_folder}/{KEYED_STATE}/{path}" for path in state]
        self._check(paths, "substr(key, 6, 8)", "(value::JSON->>'sum')", "checkpoint_id")

    def _check(self, files, key, amount, place):
        """Look at a range of keys at a time: DuckDB groups them in memory."""
        query = f"""SELECT CAST({key} AS BIGINT) AS key, CAST(arg_max({amount}, {place}) AS BIGINT) AS sum
                    FROM read_parquet($files) WHERE {key} >= $first AND {key} < $last GROUP BY ALL ORDER BY ALL"""  # noqa: S608 - our own
        for first in range(0, self.keys, _CHECKED_AT_ONCE):
            last = min(first + _CHECKED_AT_ONCE, self.keys)
            parameters = {"files": files, "first": f"{first:08d}", "last": f"{last:08d}"}
            sums = duckdb.execute(query, parameters).fetchnumpy()
            assert np.array_equal(sums["key"], np.arange(first, last)), (
                f"keys from {first:,} on are missing or too many"
            )
            assert np.array_equal(sums["sum"], self.expected[first:last]), f"sums of keys from {first:,} on are wrong"
