"""Runs queries of Nexmark in one Spark session, as a job, as a stream and in batch SQL, each time from empty tables, and checks the results."""

import os
import shutil
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from deltalake import DeltaTable

from benchmarks._costs import Cost, measured
from benchmarks._nexmark_sql import SPARK_SQL
from benchmarks._nexmark_streams import STREAMS
from benchmarks._spark_state import use_rocksdb
from headrace.config import load_job
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from pipelines.nexmark.check import compare, compare_sql
from pipelines.nexmark.generator import write_events
from pipelines.nexmark.records import DISORDER
from pipelines.nexmark.runs import BY_WALL_CLOCK

TABLES = ("persons", "auctions", "bids")
WATERMARK = f"{int(DISORDER.total_seconds())} seconds"

PERIOD = 10
"""Seconds of a window of query 12."""

BIDS_OF_BIDDERS = "SELECT bidder, count(*) AS bid_count FROM bids GROUP BY bidder"
CLOSING = {"persons": {"id": -1}, "auctions": {"id": -2, "seller": -3}, "bids": {"auction": -4, "bidder": -5}}
"""Ids of the rows that close all windows: nothing joins with them."""

LATER = timedelta(days=3650)


class WrongPeer(Exception):  # noqa: N818 - it says what was found
    """Spark's table differs from DuckDB's: the query is not compared."""


@dataclass
class Turn:
    """The cost of one run, and its number of micro-batches."""

    cost: Cost = field(default_factory=Cost)
    batches: int = 0


class Turns:
    """Runs queries over the same input; see the module. Each run begins with empty tables, states and checkpoints."""

    def __init__(self, spark, home, shape, *, files, batches, backend):
        self.spark, self.home, self.backend = spark, home, backend
        self.files_per_batch = files // batches
        self.inputs, self.closing = home / "input", home / "closing"
        if not (home / "written").exists():
            shutil.rmtree(home, ignore_errors=True)
            write_events(self.inputs, shape, files=files)
            for table in TABLES:
                write_closing(self.inputs / table, self.closing / table)
            (home / "written").touch()
        shutil.rmtree(home / "conf", ignore_errors=True)
        (home / "conf/jobs").mkdir(parents=True)
        shutil.copytree("conf/clusters", home / "conf/clusters")
        use_rocksdb(spark)
        self.schemas = {table: spark.read.parquet(str(self.inputs / table)).schema for table in TABLES}

    def job(self, query):
        self.clear()
        config = self.config_of(query)
        turn = Turn()
        if query in BY_WALL_CLOCK:
            self.run(config, turn)
            time.sleep(PERIOD + 1)  # its timers are due when the window is over
        self.run(config, turn, end_of_input=True)
        differences = self.differences(query, config.sinks["result"].path)
        assert not differences, f"{query}: {differences}"
        return turn

    def run(self, config, turn, **options):
        with measured(turn.cost):
            report = run_in(self.spark, config, RunOptions(run_id="bench", **options), lambda event: None)
        turn.batches += len(report.checkpoints)

    def config_of(self, query):
        job = yaml.safe_load(Path(f"pipelines/nexmark/jobs/nexmark_{query}.yaml").read_text())
        job["state"] = {"root": "state", "local": "local", "backend": self.backend}
        limits = {"max_files_per_batch": self.files_per_batch}
        job["sources"] = {name: {"path": f"input/{name}", **limits} for name in job["sources"]}
        job["sinks"]["result"]["path"] = "lake/job"
        (self.home / "conf/jobs" / f"nexmark_{query}.yaml").write_text(yaml.safe_dump(job))
        return load_job(f"nexmark_{query}", home=self.home)

    def stream(self, query):
        self.clear()
        stream, turn = STREAMS[query], Turn()
        path = str((self.home / "lake/stream").resolve())
        with measured(turn.cost):
            self.make_streaming_views(closes=stream.closes)
            running = stream.start(self.spark, path, str((self.home / "checkpoints").resolve()))
            running.awaitTermination()
        turn.batches = sum(progress["numInputRows"] > 0 for progress in running.recentProgress)
        self.check_peer(query, path)
        return turn

    def make_streaming_views(self, *, closes):
        for table in TABLES:
            reader = self.spark.readStream.schema(self.schemas[table]).option(
                "maxFilesPerTrigger", self.files_per_batch
            )
            rows = reader.parquet(str((self.closing if closes else self.inputs) / table))
            rows = rows.withWatermark("date_time", WATERMARK) if closes else rows
            rows.createOrReplaceTempView(table)

    def batch(self, query):
        self.clear()
        path, turn = str((self.home / "lake/batch").resolve()), Turn(batches=1)
        with measured(turn.cost):
            for table in TABLES:
                self.spark.read.parquet(str(self.inputs / table)).createOrReplaceTempView(table)
            self.spark.sql(SPARK_SQL[query]).write.format("delta").save(path)
        self.check_peer(query, path)
        return turn

    def check_peer(self, query, path):
        if differences := self.differences(query, path):
            raise WrongPeer(f"Spark's table is wrong: {differences}")

    def differences(self, query, path):
        """Compare a table with DuckDB; columns whose names begin with "_" are the writer's own."""
        rows = pa.RecordBatchReader.from_stream(DeltaTable(path).scan()).read_all()
        rows = rows.drop_columns([name for name in rows.column_names if name.startswith("_")])
        if query in BY_WALL_CLOCK:
            return compare_sql(BIDS_OF_BIDDERS, all_windows(rows), self.inputs)
        return compare(query, rows, self.inputs)

    def clear(self):
        """Remove the results of the last run; the input stays."""
        for folder in ("state", "local", "lake", "checkpoints"):
            shutil.rmtree(self.home / folder, ignore_errors=True)


def all_windows(rows):
    """Add up the counts of a bidder: the wall clock decides into which window a bid falls, but each bid falls into exactly one."""
    length = pc.subtract(rows["window_end"], rows["window_start"])
    assert {*length.cast(pa.duration("us")).to_pylist()} == {timedelta(seconds=PERIOD)}
    summed = rows.group_by("bidder").aggregate([("bid_count", "sum")])
    return summed.rename_columns({"bid_count_sum": "bid_count"})


def write_closing(files, folder):
    """Link `files` into `folder`, and add one row after them, late enough to close all windows.

    A job is told that its input ends; a stream only has its watermark. Times of change order files, as streams read them.
    """
    folder.mkdir(parents=True)
    for number, file in enumerate(sorted(files.iterdir())):
        os.utime(file, (1_700_000_000 + number,) * 2)
        (folder / file.name).hardlink_to(file)
    last = folder / file.name
    rows = pq.read_table(last)
    closing = rows.slice(0, 1).to_pylist()[0] | CLOSING[folder.name]
    closing |= {name: value + LATER for name, value in closing.items() if name in {"date_time", "expires"}}
    last.unlink()
    pq.write_table(pa.concat_tables([rows, pa.Table.from_pylist([closing], rows.schema)]), last, compression="zstd")
    os.utime(last, (1_700_000_000 + number,) * 2)
