"""The materializer's history in the main job, over the whole year: rows, bytes per key, and rows removed by a TTL's sweep.

    make bench-history             two years of 1,674,371 events, some three minutes on a quiet machine
    ... --quick                    the first days of January

Each year is one run of the job `flights` in a separate folder, with weather service and sinks. The second run has a
TTL of 30 days on the board.
"""

import argparse
import os
import shutil
import time
from datetime import date
from pathlib import Path

from benchmarks._brief_board import DAYS
from benchmarks._report import figure, report
from headrace.config import load_job
from headrace.log.log import CheckpointLog
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.sql import ask_sql
from headrace.readers.state import largest_histories
from headrace.run.options import RunOptions
from headrace.spark.runner import run_in
from headrace.spark.session import session
from headrace.tables.folder import JobFolder
from pipelines.flights.events import write_events
from tests.jobs.weather import weather_service

ROOT = Path("var/bench/history")
PIPELINES = {"no TTL": "pipelines.flights:pipeline", f"TTL {DAYS} days": "benchmarks._brief_board:pipeline"}
FIRST, LAST = date(2013, 1, 1), date(2013, 12, 31)


def home_of(pipeline, events):
    """Return a home with a job `flights` and this pipeline, in a separate folder."""
    home = ROOT / pipeline.partition(":")[0]
    shutil.copytree("conf", home / "conf")
    file = home / "conf/jobs/flights.yaml"
    text = file.read_text().replace("pipelines.flights:pipeline", pipeline)
    file.write_text(text.replace("var/data/flights/events", str(events.resolve())))
    return load_job("flights", home=home.resolve())


def year(spark, name, pipeline, events):
    """Run once, and return the sizes of the tables."""
    config = home_of(pipeline, events)
    began = time.perf_counter()
    output = run_in(spark, config, RunOptions(run_id="bench"), lambda event: None)
    seconds = time.perf_counter() - began
    job = JobAtCheckpoint(config)
    rows, size, keys = one(
        job,
        "SELECT count(*), sum(length(\"row\")), count(DISTINCT key) FROM materializer_history WHERE operator = 'board'",
    )
    (board,) = one(job, "SELECT count(*) FROM flight_board")
    largest = largest_histories(job, "board", limit=1).dicts()
    expired = sum(of.metrics.get("expired", 0) for of in CheckpointLog(JobFolder(config.job_folder)).checkpoints)
    yield figure(f"{name}: events", [output.rows_in], "rows")
    yield figure(f"{name}: run", [seconds], "s")
    yield figure(f"{name}: rows of the board's history", [rows], "rows")
    yield figure(f"{name}: bytes a key", [size / keys], "bytes")
    yield figure(f"{name}: rows of the longest history", [int(largest[0]["rows"]) if largest else 0], "rows")
    yield figure(f"{name}: rows of the board itself", [board], "rows")
    yield figure(f"{name}: removed by TTL, legs of aircraft included", [expired], "entries")


def one(job, query):
    (row,) = ask_sql(job, query).rows
    return [int(value) for value in row]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="little data: for trying it, not for figures")
    options = parser.parse_args()
    events = ROOT / "events"
    shutil.rmtree(ROOT, ignore_errors=True)
    write_events(events, first=FIRST, last=date(2013, 1, 3) if options.quick else LAST, seed=13)
    figures = []
    with weather_service() as url:
        os.environ["WEATHER_URL"] = url
        spark = session(load_job("flights"))
        for name, pipeline in PIPELINES.items():
            figures += year(spark, name, pipeline, events)
        spark.stop()
    report("history", figures)
    shutil.rmtree(ROOT)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path.cwd()))
    main()
