"""Three jobs in a chain, each of which reads the sink of the one before it by days: bronze, silver, gold."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

FIRST = round(datetime(2024, 3, 1, tzinfo=UTC).timestamp() * 1000)
DAY = 86_400_000
PIPELINE = """\
import msgspec
from headrace import KeyedProcessFunction, Pipeline, Timestamp, ValueState

class Sale(msgspec.Struct, frozen=True):
    shop: str
    at: Timestamp
    day: str
    cents: int

class Sums(KeyedProcessFunction[Sale, Sale]):
    total = ValueState("total", int)

    async def process(self, sale, ctx, /):
        total = (await self.total.value() or 0) + sale.cents
        await self.total.update(total)
        ctx.collect(Sale(sale.shop, sale.at, sale.day, total))

def copying(name):
    return Pipeline(name).source("sales", Sale, event_time="at").sink("out")

bronze, silver, plain = copying("bronze"), copying("silver"), copying("plain")
gold = Pipeline("gold").source("sales", Sale, event_time="at").key_by("shop").process("sums", Sums()).sink("out")
"""
OF_FOLDER = "{path: sales, interval: '%Y-%m-%d'}"
OF_TABLE = "{{format: delta, path: lake/{}, interval: {{by: partition, column: day}}}}"


def job_file(name, source, more=""):
    return (
        f"job: {name}\npipeline: chain_pipelines:{name}\nmode: interval\nsources: {{sales: {source}}}\n"
        f"sinks: {{out: {{path: lake/{name}, mode: append, partition_by: [day]}}}}\n{more}"
    )


def write_home(folder):
    """Write the project of the jobs into a folder."""
    files = {
        "conf/jobs/bronze.yaml": job_file("bronze", OF_FOLDER),
        "conf/jobs/silver.yaml": job_file("silver", OF_TABLE.format("bronze")),
        "conf/jobs/gold.yaml": job_file("gold", OF_TABLE.format("silver")),
        "conf/clusters/local.yaml": "master: local[2]\nrunner: local\nparallelism: 1\nconnectors: []\n",
        "chain_pipelines.py": PIPELINE,
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "sales").mkdir()


class Chain:
    """The three jobs, and what their sinks have."""

    jobs = ("bronze", "silver", "gold")

    def __init__(self, headrace, home):
        self.headrace, self.home = headrace, home

    def sell(self, number, *cents):
        """Write the file of a day."""
        day = f"2024-03-{number + 1:02d}"
        at = FIRST + number * DAY
        rows = [{"shop": "a", "at": at + place, "day": day, "cents": value} for place, value in enumerate(cents)]
        pq.write_table(pa.Table.from_pylist(rows), self.home / "sales" / f"{day}.parquet")

    def run(self, number, jobs=jobs):
        """Run a day of jobs; return their reports."""
        return [self.call(f"run {job} {self.of_day(number)}") for job in jobs]

    def of_day(self, number):
        return f"--interval-start 2024-03-{number + 1:02d} --interval-end 2024-03-{number + 2:02d}"

    def call(self, words):
        answer = self.headrace(f"{words} --json")
        assert answer.exit_code == 0, answer.output
        return json.loads(answer.stdout)

    def configure(self, job, more):
        file = self.home / "conf" / "jobs" / f"{job}.yaml"
        file.write_text(file.read_text() + more)

    def rows(self, job):
        """Return (day, cents) of a job's sink, as deltalake reads it."""
        rows = pa.table(DeltaTable(str(self.home / "lake" / job)).to_pyarrow_table()).to_pylist()
        return sorted((row["day"][-2:], row["cents"]) for row in rows)

    def correct_second_day(self):
        """Write the second day's file anew, and compute it again in the first job."""
        self.sell(1, 11, 13, 15)
        asked = "--from 2024-03-02 --to 2024-03-03 --promote automatic"
        assert self.call(f"backfill bronze {asked}")["outcome"] == "promoted"
