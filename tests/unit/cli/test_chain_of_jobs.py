"""A day is corrected in a chain of jobs: each reads the sink of the one before it, by days (no JVM)."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from headrace import clock
from tests.unit.support.demo_job import headrace

__all__ = ["headrace"]

FIRST = datetime(2024, 3, 1, tzinfo=UTC)
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


@pytest.fixture
def home(tmp_path, monkeypatch):
    files = {
        "conf/jobs/bronze.yaml": job_file("bronze", OF_FOLDER),
        "conf/jobs/silver.yaml": job_file("silver", OF_TABLE.format("bronze")),
        "conf/jobs/gold.yaml": job_file("gold", OF_TABLE.format("silver")),
        "conf/clusters/local.yaml": "master: local[2]\nrunner: local\nparallelism: 1\nconnectors: []\n",
        "chain_pipelines.py": PIPELINE,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    sys.modules.pop("chain_pipelines", None)


class Chain:
    """The three jobs, and what their sinks have."""

    jobs = ("bronze", "silver", "gold")

    def __init__(self, headrace, home):
        self.headrace, self.home = headrace, home
        (home / "sales").mkdir()
        for number in range(3):
            self.sell(number, 10 * number + 1, 10 * number + 2)
            self.run(number)

    def sell(self, number, *cents):
        """Write the file of a day."""
        day = f"2024-03-{number + 1:02d}"
        at = round(FIRST.timestamp() * 1000) + number * DAY
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


CORRECTED = [("01", 1), ("01", 2), ("02", 11), ("02", 13), ("02", 15), ("03", 21), ("03", 22)]
SUMS = [("01", 1), ("01", 3), ("02", 14), ("02", 27), ("02", 42), ("03", 63), ("03", 85)]


@pytest.fixture
def chain(headrace, home):
    with clock.installed(clock.VirtualClock(round(FIRST.timestamp() * 1000) + 30 * DAY)):
        yield Chain(headrace, home)


def assert_corrected(chain):
    assert [chain.rows(job) for job in chain.jobs] == [CORRECTED, CORRECTED, SUMS]
    assert all(chain.call(f"input {job}")["input"] == [] for job in chain.jobs)


def test_two_commands_correct_the_chain(chain):
    chain.correct_second_day()
    result = chain.call("backfill silver --pending --promote automatic --downstream")
    assert (result["outcome"], result["from"], result["to"]) == (
        "promoted",
        "2024-03-02T00:00:00Z",
        "2024-03-03T00:00:00Z",
    )
    assert [(own["job"], own["outcome"]) for own in result["downstream"]] == [("gold", "promoted")]
    assert_corrected(chain)


def test_one_command_corrects_the_chain(chain):
    chain.sell(1, 11, 13, 15)
    asked = "--from 2024-03-02 --to 2024-03-03 --promote automatic --downstream"
    result = chain.call(f"backfill bronze {asked}")
    assert [(own["job"], own["outcome"]) for own in result["downstream"]] == [
        ("silver", "promoted"),
        ("gold", "promoted"),
    ]
    assert_corrected(chain)


def test_run_passes_over_a_promotion(chain):
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert report["pending"] == {"from": "2024-03-02T00:00:00Z", "to": "2024-03-03T00:00:00Z"}
    (warning,) = report["warnings"]
    assert warning["kind"] == "pending_correction"
    assert (
        "source 'sales': job 'bronze' has corrected what this job has taken in of 2024-03-02 to 2024-03-03"
        in (warning["message"])
    )
    assert ("02", 12) in chain.rows("silver")
    chain.call("backfill silver --pending --promote automatic")
    assert chain.rows("silver") == [*CORRECTED, ("04", 31)]


def test_automatic_job_follows_by_itself(chain):
    chain.configure("silver", "replay: {follow: automatic, promote: automatic}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert (report["rows_in"], report["backfill"]["outcome"]) == (1, "promoted")
    assert chain.rows("silver") == [*CORRECTED, ("04", 31)]


def test_job_that_never_follows_is_silent(chain):
    chain.configure("silver", "replay: {follow: never}\n")
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze",))
    (report,) = chain.run(3, ("silver",))
    assert report["warnings"] == []
    (warning,) = chain.call("status silver")["jobs"][0]["warnings"]
    assert warning["kind"] == "pending_correction"


def test_acknowledged_correction_is_left_out(chain):
    chain.correct_second_day()
    chain.sell(3, 31)
    chain.run(3, ("bronze", "silver"))
    (own,) = chain.call("input silver")["input"]
    chain.call(f"input silver --acknowledge {own['file']} --why no-need")
    assert chain.call("backfill silver --pending")["outcome"] == "nothing_pending"


def test_job_behind_the_promotion_reads_it(chain):
    chain.sell(3, 31, 32)
    chain.run(3, ("bronze",))
    chain.correct_second_day()
    DeltaTable(str(chain.home / "lake" / "bronze")).vacuum(0, dry_run=False, enforce_retention_duration=False)
    chain.run(3, ("silver",))
    assert [row for row in chain.rows("silver") if row[0] == "04"] == [("04", 31), ("04", 32)]


def test_waiting_job_holds_those_behind(chain):
    chain.correct_second_day()
    result = chain.call("backfill silver --pending --downstream")
    assert (result["outcome"], result["downstream"]) == ("needs_approval", [])
    chain.call(f"branch promote silver {result['name']}")
    result = chain.call("backfill gold --pending --promote automatic")
    assert result["outcome"] == "promoted"
    assert_corrected(chain)


@pytest.mark.parametrize(
    ("options", "message"),
    [("", "--from DAY --to DAY, or --pending"), ("--pending --from 2024-03-02", "leave --from and --to out")],
)
def test_days_must_be_said_once(chain, options, message):
    answer = chain.headrace(f"backfill silver {options}".strip())
    assert answer.exit_code == 2
    assert message in " ".join(answer.output.split())


def test_promotion_is_passed_over_without_intervals(chain):
    source = OF_TABLE.format("bronze").replace(", interval: {by: partition, column: day}", "")
    text = job_file("plain", source).replace("mode: interval\n", "")
    (chain.home / "conf" / "jobs" / "plain.yaml").write_text(text)
    assert chain.call("run plain")["rows_in"] == 6
    chain.correct_second_day()
    report = chain.call("run plain")
    (warning,) = report["warnings"]
    assert (report["rows_in"], warning["kind"]) == (0, "passed_corrections")
    assert "passed over version 4 (a promotion of job 'bronze'" in warning["message"]
