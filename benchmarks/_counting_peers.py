"""A count and a sum per key (workload W1), as a Spark expert writes it without Headrace. Each peer takes in one file after the other.

Both write a row for each record into a Delta table, and continue from the state of the files before.
"""

import shutil
import subprocess
from pathlib import Path

import duckdb
from pyspark.sql import Row, Window
from pyspark.sql import functions as sql
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from benchmarks._costs import measured
from benchmarks._spark_state import use_rocksdb

COLUMNS = "key string, seq bigint, count bigint, sum bigint"
MERGE = """
MERGE INTO delta.`{state}` AS state USING added ON state.key = added.key
WHEN MATCHED THEN UPDATE SET count = state.count + added.count, sum = state.sum + added.sum
WHEN NOT MATCHED THEN INSERT *
"""


class Peer:
    """A peer in a folder of its own."""

    def __init__(self, spark, root):
        shutil.rmtree(root, ignore_errors=True)
        self.spark, self.root = spark, root
        self.state, self.counts = str((root / "state").resolve()), str((root / "counts").resolve())

    def batch(self, file):
        """Take in a file; return wall and CPU seconds."""
        with measured() as cost:
            self.take_in(file)
        return cost.wall, cost.cpu

    def take_in(self, file):
        raise NotImplementedError

    def check(self, expected):
        """Compare the last sum of each key with `expected`, by number of the key."""
        last = sql.max_by("sum", "count")
        rows = self.spark.read.format("delta").load(self.counts).groupBy("key").agg(last.alias("sum")).collect()
        assert {int(row.key[4:]): row.sum for row in rows} == expected, f"the sums of {self.root} are wrong"


class WindowAndMerge(Peer):
    """Window functions over a micro-batch, joined with a Delta table of sums, into which the micro-batch is merged."""

    def __init__(self, spark, root):
        super().__init__(spark, root)
        empty = spark.createDataFrame([], "key string, count bigint, sum bigint")
        empty.write.format("delta").save(self.state)

    def take_in(self, file):
        clicks = self.spark.read.parquet(str(file.resolve()))
        earlier = Window.partitionBy("key").orderBy("seq").rowsBetween(Window.unboundedPreceding, 0)
        counted = clicks.select(
            "key", "seq", sql.count("*").over(earlier).alias("count"), sql.sum("value").over(earlier).alias("sum")
        )
        before = self.spark.read.format("delta").load(self.state)
        before = before.select("key", sql.col("count").alias("count_before"), sql.col("sum").alias("sum_before"))
        total, amount = (sql.expr(f"{name} + coalesce({name}_before, 0) AS {name}") for name in ("count", "sum"))
        result = counted.join(before, "key", "left").select("key", "seq", total, amount)
        result.write.format("delta").mode("append").save(self.counts)
        added = clicks.groupBy("key").agg(sql.count("*").alias("count"), sql.sum("value").alias("sum"))
        added.createOrReplaceTempView("added")
        self.spark.sql(MERGE.format(state=self.state)).collect()


class Count(StatefulProcessor):
    """Counts and adds up the values of a key."""

    def init(self, handle):
        self.total = handle.getValueState("total", "count bigint, sum bigint")

    def handleInputRows(self, key, rows, timers):  # noqa: N802, ARG002 - Spark's
        count, amount = self.total.get() or (0, 0)
        for row in rows:
            count, amount = count + 1, amount + row.value
            yield Row(key=key[0], seq=row.seq, count=count, sum=amount)
        self.total.update((count, amount))

    def close(self):
        pass


class TransformWithState(Peer):
    """`transformWithState` on rows, with Spark's RocksDB state store: the API for user code in Python.

    Spark gives a key's rows in any order, so the row of a record may have the sums of another one; the last sums are right.
    """

    def __init__(self, spark, root):
        super().__init__(spark, root)
        self.input = root / "input"
        self.input.mkdir(parents=True)
        use_rocksdb(spark)

    def take_in(self, file):
        (self.input / Path(file).name).hardlink_to(file)
        schema = self.spark.read.parquet(str(file.resolve())).schema
        clicks = self.spark.readStream.schema(schema).parquet(str(self.input.resolve()))
        counted = clicks.groupBy("key").transformWithState(Count(), COLUMNS, "Append", "None")
        writer = counted.writeStream.format("delta").option("checkpointLocation", f"{self.state}/checkpoints")
        writer.trigger(availableNow=True).start(self.counts).awaitTermination()


class Bytewax(Peer):
    """`stateful_map` with recovery, in a process and an environment of its own. Its start and imports are not counted.

    It writes Parquet files, not a Delta table.
    """

    PYTHON = Path("var/peers/bin/python")

    def __init__(self, spark, root):
        super().__init__(spark, root)
        Path(self.counts).mkdir(parents=True)
        self.files = []

    def batch(self, file):
        self.files.append(file)
        output = Path(self.counts) / f"{len(self.files):06d}.parquet"
        program = [self.PYTHON, Path(__file__).with_name("_bytewax_count.py")]
        done = subprocess.run([*program, self.state, output, *self.files], capture_output=True, check=True, text=True)
        wall, cpu = map(float, done.stdout.split())
        return wall, cpu

    def check(self, expected):
        """Compare the last sum of each key with `expected`, by number of the key."""
        counts = duckdb.read_parquet(f"{self.counts}/*.parquet")
        rows = counts.query("counts", "SELECT key, arg_max(sum, count) FROM counts GROUP BY key").fetchall()
        assert {int(key[4:]): total for key, total in rows} == expected, f"the sums of {self.root} are wrong"


PEERS = {"window + MERGE": WindowAndMerge, "transformWithState": TransformWithState, "bytewax": Bytewax}
