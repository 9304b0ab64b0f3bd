"""The flights of 2013 with every clock reading turned into an instant.

The raw table has readings of local clocks (HHMM, at the origin for departures, at the destination for
arrivals) and delays in minutes. Here all of them become whole minutes since the epoch, UTC.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

if TYPE_CHECKING:
    from pathlib import Path

Minutes = npt.NDArray[np.int64]

UNKNOWN: Final = np.iinfo(np.int64).min
"""Stands for an instant that the data doesn't have."""

DAY: Final = 24 * 60
NEW_YORK: Final = -5
ATLANTIC: Final = -4
"""SJU, STT, PSE and BQN, which airports.csv lacks: UTC-4 all the year."""


def _minute(text: str) -> int:
    return int(np.datetime64(text, "m").astype(np.int64))


# Daylight saving time of 2013 on a clock that keeps standard time, so that no hour is doubled or missing.
DST_FROM: Final = _minute("2013-03-10T02:00")
DST_TO: Final = _minute("2013-11-03T01:00")


def load_flights(folder: Path) -> pd.DataFrame:
    """Return one row a flight, in the order of flights.csv.

    `scheduled_departure`, `scheduled_arrival`, `departure` and `arrival` are minutes since the epoch. `departure`
    and `arrival` are `UNKNOWN` where the flight didn't depart, or no arrival is on record. `arrival` is always after `departure`.
    """
    flights = pd.read_csv(folder / "flights.csv.zip")
    flights["date"] = (
        flights["year"].astype("str")
        + "-"
        + flights["month"].astype("str").str.zfill(2)
        + "-"
        + flights["day"].astype("str").str.zfill(2)
    )
    _check_unique(flights)
    _add_names(flights, folder)
    _add_departures(flights)
    _add_arrivals(flights, folder)
    return flights


def next_clock_reading(after: Minutes, clock: Minutes, standard: Minutes, saves: npt.NDArray[np.bool_]) -> Minutes:
    """Return the first instant strictly after `after` at which a local clock shows `clock` (minutes of the day).

    `standard` is the clock's distance from UTC in hours without daylight saving time, `saves` is true if it has any.
    A reading that the change to daylight saving time skips is taken at standard time.
    """
    in_standard = _next_at_offset(after, clock, standard)
    in_saving = _next_at_offset(after, clock, standard + 1)
    standard_holds = ~(saves & _is_saving(in_standard, standard))
    saving_holds = saves & _is_saving(in_saving, standard)
    use_saving = saving_holds & (~standard_holds | (in_saving < in_standard))
    return np.where(use_saving, in_saving, in_standard)


def _check_unique(flights: pd.DataFrame) -> None:
    flights["flight_id"] = (
        flights["date"] + "-" + flights["carrier"] + flights["flight"].astype("str") + "-" + flights["origin"]
    )
    if not flights["flight_id"].is_unique:
        raise ValueError("flights.csv has two flights of one date, carrier, number and origin")


def _add_names(flights: pd.DataFrame, folder: Path) -> None:
    airlines = pd.read_csv(folder / "airlines.csv").set_index("carrier")["name"]
    planes = pd.read_csv(folder / "planes.csv").set_index("tailnum")["seats"]
    flights["airline"] = flights["carrier"].map(airlines)
    flights["seats"] = flights["tailnum"].map(planes).astype("Int32")


def _add_departures(flights: pd.DataFrame) -> None:
    clock = _clock(flights["sched_dep_time"])
    local = flights["date"].to_numpy(dtype="datetime64[m]").astype(np.int64) + clock
    # The wall clock itself decides: it is an hour ahead of standard time when daylight saving time ends.
    saving = (local >= DST_FROM) & (local < DST_TO + 60)
    flights["scheduled_departure"] = local - 60 * (NEW_YORK + saving.astype(np.int64))
    stated = flights["time_hour"].str.slice(0, 16).to_numpy(dtype="datetime64[m]").astype(np.int64)
    if (flights["scheduled_departure"] // 60 != stated // 60).any():
        raise ValueError("scheduled departures disagree with the column time_hour of flights.csv")
    departed = flights["dep_time"].notna().to_numpy()
    delay = flights["dep_delay"].fillna(0).to_numpy(dtype=np.int64)
    flights["departure"] = np.where(departed, flights["scheduled_departure"] + delay, UNKNOWN)


def _add_arrivals(flights: pd.DataFrame, folder: Path) -> None:
    airports = pd.read_csv(folder / "airports.csv").set_index("faa")
    standard = flights["dest"].map(airports["tz"]).fillna(ATLANTIC).to_numpy(dtype=np.int64)
    saves = (flights["dest"].map(airports["dst"]) == "A").to_numpy()
    departure = flights["departure"].to_numpy(dtype=np.int64)
    scheduled = next_clock_reading(
        flights["scheduled_departure"].to_numpy(dtype=np.int64), _clock(flights["sched_arr_time"]), standard, saves
    )
    by_delay = scheduled + flights["arr_delay"].fillna(0).to_numpy(dtype=np.int64)
    by_clock = next_clock_reading(departure, _clock(flights["arr_time"]), standard, saves)
    delay_known, clock_known = (flights[c].notna().to_numpy() for c in ("arr_delay", "arr_time"))
    arrival = np.where(delay_known, by_delay, np.where(clock_known, by_clock, UNKNOWN))
    flights["scheduled_arrival"] = scheduled
    flights["arrival"] = np.where(arrival == UNKNOWN, UNKNOWN, np.maximum(arrival, departure + 1))


def _clock(hhmm: pd.Series[int]) -> Minutes:
    number = hhmm.fillna(0).to_numpy(dtype=np.int64)
    return np.asarray((number // 100 * 60 + number % 100) % DAY)


def _next_at_offset(after: Minutes, clock: Minutes, hours: Minutes) -> Minutes:
    return np.asarray(after + 1 + (clock - (after + 60 * hours) - 1) % DAY)


def _is_saving(instant: Minutes, standard: Minutes) -> npt.NDArray[np.bool_]:
    local = instant + 60 * standard
    return np.asarray((local >= DST_FROM) & (local < DST_TO))
