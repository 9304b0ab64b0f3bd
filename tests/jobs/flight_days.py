"""The flights of the first days of 2013, and the independent check of the job's results."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable

from headrace.config import JobConfig
from pipelines.flights.events import write_events
from pipelines.flights.verify import Differences, verify
from tests.jobs.outcome import checkpoints

FIRST_DAY = date(2013, 1, 1)


def write_flights(folder: Path, days: int) -> None:
    """Write the files of the first `days` days of January; they also contain flights of later days."""
    last = FIRST_DAY + timedelta(days=days - 1)
    write_events(folder, first=FIRST_DAY, last=last + timedelta(days=1), through=last, seed=13)


def compare_with_raw_tables(config: JobConfig, days: int) -> Differences:
    """Compare the job's sinks with a computation from the raw tables."""
    names = ("flight_board", "overdue_alerts", "hourly_departures")
    board, alerts, departures = (_rows(config.sinks[name].path) for name in names)
    last = FIRST_DAY + timedelta(days=days - 1)
    watermark = checkpoints(config)[-1].watermark
    return verify(board, alerts, departures, (FIRST_DAY, last + timedelta(days=1)), watermark, through=last)


def _rows(uri: str) -> pa.Table:
    return pa.RecordBatchReader.from_stream(DeltaTable(uri).scan()).read_all()
