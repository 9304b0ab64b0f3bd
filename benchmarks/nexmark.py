"""Queries of Nexmark, end to end and committed, beside the same queries in Spark SQL: seconds, and CPU of the whole process tree.

Both read the same Parquet files and write a Delta table in one Spark session, in turns. The job takes its input in
`--files` micro-batches at most 16 files each, and ends the input; Spark SQL reads it at once, and keeps nothing for a next run. What
both have written is compared with DuckDB outside the time taken (q12 is not: it goes by the wall clock). The first query of each
kind, in which workers start, is not told.
"""

import argparse
import os
import shutil
import time
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import yaml
from deltalake import DeltaTable

from benchmarks._counting_job import cpu_seconds
from benchmarks._nexmark_sql import SPARK_SQL
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.spark.options import RunOptions
from headrace.spark.runner import run_in
from headrace.spark.session import session
from pipelines.nexmark.check import compare
from pipelines.nexmark.generator import Shape, write_events
from pipelines.nexmark.runs import BY_WALL_CLOCK

ROOT = Path("var/bench/nexmark")
TABLES = ("persons", "auctions", "bids")


class Turns:
    """Runs a query once as a job, once in Spark SQL, each time from nothing."""

    def __init__(self, spark, home, backend):
        self.spark, self.home, self.backend = spark, home, backend
        self.inputs = home / "input"
        for table in TABLES:
            spark.read.parquet(str(self.inputs / table)).createOrReplaceTempView(table)

    def headrace(self, query):
        job = yaml.safe_load(Path(f"pipelines/nexmark/jobs/nexmark_{query}.yaml").read_text())
        job["state"] = {"root": "state", "local": "local", "backend": self.backend}
        job["sources"] = {name: {"path": f"input/{name}"} for name in job["sources"]}
        job["sinks"]["result"]["path"] = f"lake/{query}"
        for folder in ("state", "local", "lake"):
            shutil.rmtree(self.home / folder, ignore_errors=True)
        (self.home / "conf/jobs" / f"nexmark_{query}.yaml").write_text(yaml.safe_dump(job))
        config = load_job(f"nexmark_{query}", home=self.home)
        with measured() as costs:
            run_in(self.spark, config, RunOptions(run_id="bench", end_of_input=True), lambda event: None)
        if query not in BY_WALL_CLOCK:
            self.check(query, config.sinks["result"].path)
        return costs

    def spark_sql(self, query):
        path = self.home / "lake" / f"{query}-spark"
        shutil.rmtree(path, ignore_errors=True)
        with measured() as costs:
            self.spark.sql(SPARK_SQL[query]).write.format("delta").save(str(path.resolve()))
        if query not in BY_WALL_CLOCK:
            self.check(query, str(path))
        return costs

    def check(self, query, path):
        rows = pa.RecordBatchReader.from_stream(DeltaTable(path).scan()).read_all()
        differences = compare(query, rows, self.inputs)
        assert not differences, f"{query} at {path}: {differences}"


@contextmanager
def measured():
    """Yield a list that has seconds and CPU seconds at the end."""
    costs = []
    wall, cpu = time.perf_counter(), cpu_seconds()
    yield costs
    costs += [time.perf_counter() - wall, cpu_seconds() - cpu]


def new_home(shape, files):
    home = ROOT / f"{shape.events}"
    shutil.rmtree(home, ignore_errors=True)
    (home / "conf/jobs").mkdir(parents=True)
    shutil.copytree("conf/clusters", home / "conf/clusters")
    write_events(home / "input", shape, files=files)
    return home


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=48)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--backend", default="hashmap")
    parser.add_argument("--queries", nargs="*", default=[*SPARK_SQL])
    options = parser.parse_args()
    spark = session(load_job("flights"))
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    turns = Turns(spark, new_home(Shape(options.events), options.files), options.backend)
    turns.headrace("q17")
    turns.spark_sql("q17")
    figures = []
    for query in options.queries:
        both = [(turns.headrace(query), turns.spark_sql(query)) for _ in range(options.turns)]
        for place, unit in enumerate(("seconds", "CPU")):
            figures.append(figure(f"{query}, {unit}, job", [job[place] for job, _ in both], "s"))
            figures.append(figure(f"{query}, {unit}, Spark SQL", [sql[place] for _, sql in both], "s"))
            figures.append(figure(f"{query}, {unit}, ratio", [job[place] / sql[place] for job, sql in both], ""))
    report("nexmark", figures)
    spark.stop()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
