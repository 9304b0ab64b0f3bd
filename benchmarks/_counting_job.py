"""The job `counting` in a separate folder, fed file by file: the cost of a run, and a check of its sums."""

import random
from collections import Counter
from datetime import date

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from benchmarks._costs import measured
from benchmarks._home import new_home
from headrace.log.log import CheckpointLog
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from headrace.tables.folder import JobFolder

JOB = """
job: counting
pipeline: benchmarks.counting:%(pipeline)s
state: {root: state, local: local, backend: %(backend)s}
sources: {clicks: {path: events, max_files_per_batch: 1}}
sinks: {counts: {path: lake/counts, mode: append}}
"""


class Workload:
    """A job in a separate folder, fed file by file. `parallelism` is its tasks per operator, by default the cluster's."""

    def __init__(self, spark, root, backend, keys, pipeline="pipeline", *, parallelism=None):
        self.config = new_home(root, "counting", JOB % {"backend": backend, "pipeline": pipeline})
        (root / "events").mkdir()
        self.spark, self.root, self.keys, self.parallelism = spark, root, keys, parallelism
        self.expected = Counter()
        self.random = random.Random(keys)
        self.files = self.seq = 0
        self.committed = 0.0

    def feed(self, keys):
        count = len(keys)
        values = [self.random.randrange(100) for _ in keys]
        for key, value in zip(keys, values, strict=True):
            self.expected[key] += value
        table = pa.table(
            {
                "key": [f"key-{key:08d}" for key in keys],
                "value": pa.array(values, pa.int64()),
                "seq": pa.array(range(self.seq, self.seq + count), pa.int64()),
                "ts": pa.array(range(self.seq, self.seq + count), pa.timestamp("ms", "UTC")),
                "price": pa.array(values, pa.int64()).cast(pa.decimal128(21, 2)).cast(pa.decimal128(18, 2)),
                "day": pa.repeat(pa.scalar(date(2026, 3, 1)), count),
            }
        )
        self.files += 1
        pq.write_table(table, self.last_file)
        self.seq += count

    @property
    def last_file(self):
        return self.root / f"events/{self.files:06d}.parquet"

    def load(self):
        for first in range(0, self.keys, 250_000):
            self.feed(list(range(first, min(first + 250_000, self.keys))))
        self.run()

    def batch(self, rows):
        """Take in random rows; return wall and CPU seconds."""
        self.feed([self.random.randrange(self.keys) for _ in range(rows)])
        with measured() as cost:
            self.run()
        return cost.wall, cost.cpu

    def run(self):
        options = RunOptions(run_id=f"bench-{self.files}", parallelism=self.parallelism)
        return run_in(self.spark, self.config, options, self._keep)

    def _keep(self, event):
        """Keep the seconds of the last micro-batch, commit included."""
        if event.kind == "committed":
            self.committed = event.fields["seconds"]

    def phases(self):
        last = CheckpointLog(JobFolder(self.config.job_folder)).last
        return last.seconds

    def breakdown(self, wall):
        """Return the seconds of the phases of the last run, which had one micro-batch and took `wall` seconds."""
        stages = {phase: seconds for phase, seconds in self.phases().items() if phase != "run"}
        return {
            "open the job, plan, close": wall - self.committed,
            **stages,
            "commit": self.committed - sum(stages.values()),
        }

    def check(self):
        """Compare the last sum of each key in the sink with the expected one."""
        table = DeltaTable(self.config.sinks["counts"].path, storage_options=self.config.credentials)
        counts = pa.table(table.scan(columns=["key", "seq", "sum"]))
        last = duckdb.from_arrow(counts).query("counts", "SELECT key, arg_max(sum, seq) FROM counts GROUP BY key")
        assert {int(key[4:]): total for key, total in last.fetchall()} == self.expected, "the sink's sums are wrong"
