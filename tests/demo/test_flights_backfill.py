"""A half-delivered day of flights is recomputed on a branch, compared and promoted."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.jobs.home import PROJECT, PYTHONPATH
from tests.jobs.weather import weather_service

pytestmark = pytest.mark.slow

FIRST, DAYS, HALF = date(2013, 1, 9), 3, date(2013, 1, 10)
HEADRACE, MAIN = "headrace", "from headrace.cli import main; main()"
BACKFILL = ("backfill", "flights", "--from", "2013-01-10", "--to", "2013-01-11")
PROMOTION = ("branch", "promote", "flights", "backfill_20130110_20130111", "--why", "late")


@dataclass
class Flights:
    """A project of its own, and what runs a command in it. `last` is the last day that its job has taken in."""

    home: Path
    events: Path
    last: date
    environment: dict[str, str]

    @property
    def table(self) -> str:
        return str(self.events.with_name("table"))

    def __call__(self, *words: str) -> str:
        command = [sys.executable, "-m", *words] if words[0] != HEADRACE else [sys.executable, "-c", MAIN, *words[1:]]
        done = subprocess.run(command, env=self.environment, cwd=self.home, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def flights(tmp_path_factory):
    """Return a project whose job has taken in three days; one of them was delivered half."""
    with delivered_half(tmp_path_factory.mktemp("flights")) as run:
        take_in_days(run)
        yield run


@pytest.fixture
def flights_of_table(tmp_path):
    """Return such a project whose job reads the events from a Delta table, with a partition for each day."""
    with delivered_half(tmp_path) as run:
        job = run.home / "conf" / "jobs" / "flights.yaml"
        text = job.read_text().replace("format: parquet", "format: delta").replace("/flights/events", "/flights/table")
        table = "interval: {by: partition, column: day}\n    on_change: skip"
        job.write_text(re.sub(r'interval: "%Y-%m-%d".*', table, text))
        for file in sorted(run.events.iterdir()):
            write_deltalake(run.table, of_day(file), mode="append", partition_by=["day"])
        take_in_days(run)
        yield run


def of_day(file):
    """Return the rows of a file, with the day of its name."""
    rows = pq.read_table(file)
    return rows.append_column("day", pa.repeat(pa.scalar(file.stem), len(rows)))


def take_in_days(run):
    for day in (FIRST + timedelta(days=number) for number in range(DAYS)):
        interval = (f"--interval-start={day}", f"--interval-end={day + timedelta(days=1)}")
        run(HEADRACE, "run", "flights", "--runner=local", "--mode=interval", *interval)


@contextmanager
def delivered_half(home):
    """Make a project in a folder, with the events of three days. One of them was delivered half; the whole file is in `whole`."""
    shutil.copytree(PROJECT / "conf", home / "conf")
    events = home / "var" / "data" / "flights" / "events"
    for folder in (events, home / "var" / "log", home / "whole"):
        folder.mkdir(parents=True)
    with weather_service() as url:
        environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "HEADRACE_HOME": str(home), "WEATHER_URL": url}
        run = Flights(home, events, FIRST + timedelta(days=DAYS - 1), environment)
        run("pipelines.flights.events", "--out", str(events), "--from", str(FIRST), "--to", str(run.last))
        half_file = events / f"{HALF}.parquet"
        shutil.copy(half_file, home / "whole")
        rows = pq.read_table(half_file)
        noon = pa.scalar(datetime(2013, 1, 10, 12, tzinfo=UTC), rows["emitted_at"].type)
        is_late = pc.and_(pc.equal(rows["carrier"], "B6"), pc.greater_equal(rows["emitted_at"], noon))
        pq.write_table(rows.filter(pc.invert(is_late)), half_file)
        yield run


def differences(flights):
    """Return the differences between the live sinks and a plain computation of the same flights, as numbers of rows by sink."""
    done = json.loads(flights(HEADRACE, "checkpoints", "flights", "--json"))["checkpoints"][0]
    watermark = round(datetime.fromisoformat(done["watermark"]).timestamp() * 1000)
    lake = flights.home / "var" / "lake"
    sinks = {"--board": "flight_board", "--alerts": "overdue_alerts", "--departures": "hourly_departures"}
    tables = [word for option, name in sinks.items() for word in (option, str(lake / name))]
    days = ("--from", str(FIRST), "--to", str(flights.last), "--through", str(flights.last))
    command = [sys.executable, "-m", "pipelines.flights.verify", *tables, *days, "--watermark", str(watermark)]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_backfill_repairs_an_incomplete_day(flights):
    code, message = differences(flights)
    assert code != 0
    assert "departures must be" in message
    shutil.copy(flights.home / "whole" / f"{HALF}.parquet", flights.events)
    plan = flights(HEADRACE, *BACKFILL, "--dry-run")
    comparison = flights(HEADRACE, *BACKFILL, "--runner", "local", "-n", "1")
    promotion = flights(HEADRACE, *PROMOTION)
    assert "2013-01-10.parquet of source 'flight_events' has changed since" in " ".join(plan.split())
    assert "overdue_alerts" in comparison
    assert "waits for approval" in comparison
    assert "promotes branch 'backfill_20130110_20130111'" in " ".join(promotion.split())
    code, message = differences(flights)
    assert code == 0, message


def test_overwritten_partition_repairs_a_day(flights_of_table):
    run = flights_of_table
    whole = of_day(run.home / "whole" / f"{HALF}.parquet")
    write_deltalake(run.table, whole, mode="overwrite", predicate=f"day = '{HALF}'")
    (change,) = json.loads(run(HEADRACE, "backfill", "flights", "--pending", "--dry-run", "--json"))["changes"]
    assert change["file"].startswith(f"{HALF}T000000.000Z/")
    assert change["file"].endswith("/rewrite/WRITE")
    promote = ("--promote", "automatic", "--runner", "local", "--json")
    result = json.loads(run(HEADRACE, "backfill", "flights", "--pending", *promote))
    assert (result["outcome"], result["from"]) == ("promoted", f"{HALF}T00:00:00Z")
    code, message = differences(run)
    assert code == 0, message


def test_earlier_alerts_are_compared_on_a_branch(flights):
    create = ("branch", "create", "flights", "strict", "--at=0", "--pipeline=pipelines.flights:strict")
    flights(HEADRACE, *create)
    flights(HEADRACE, "run", "flights", "--branch=strict", "--runner=local", f"--max-batches={DAYS}")
    count = ("sql", "flights", "select count(*) as alerts from overdue_alerts", "--json")
    live, strict = (
        json.loads(flights(HEADRACE, *count, *branch))["rows"][0]["alerts"] for branch in ((), ("--branch=strict",))
    )
    assert strict > live > 0
    tables = json.loads(flights(HEADRACE, "branch", "diff", "flights", "strict", "--json"))["tables"]
    assert {table["table"] for table in tables} == {"keyed_state", "timers", "overdue_alerts"}
