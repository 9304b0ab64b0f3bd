"""The cells of `make matrix`: sets of versions that an installed wheel is tried with, and what became of them, as a table.

setup/matrix.json keeps the results, and docs/compatibility.md shows them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal

import msgspec

HOME = Path(__file__).resolve().parent.parent
RESULTS = HOME / "setup" / "matrix.json"
PAGE = HOME / "docs" / "compatibility.md"
BEGIN, END = "<!-- made by make matrix: do not edit -->\n", "<!-- end of what make matrix made -->\n"
NO_AIRFLOW = "none"


class Cell(msgspec.Struct, frozen=True):
    """A set of versions, and what the engine runs in."""

    python: str
    spark: str
    airflow: str
    pandas: str
    engine: Literal["C", "Python"]

    @property
    def name(self) -> str:
        """Name of its folder."""
        airflow = "" if self.airflow == NO_AIRFLOW else f"-airflow{self.airflow}"
        pandas = "" if self.pandas == "2" else f"-pandas{self.pandas}"
        return f"python{self.python}-spark{self.spark}{airflow}{pandas}-{self.engine.lower()}"

    @property
    def constraints(self) -> Path:
        """File with the versions of pyspark and pyspark-client."""
        return HOME / "constraints" / f"spark-{self.spark}.txt"

    @property
    def informative(self) -> bool:
        """Return whether it has a beta, or what the wheel does not admit: `make matrix` does not fail where it does."""
        return self.airflow == "3.4" or self.pandas == "3"


# All pairs of a Python, a Spark, an Airflow and an engine but a few: four Pythons by three Sparks would need twelve cells. `make test-all`
# tries Python 3.11 in full with Spark 4.2 and Airflow 3.3, and its engine also in Python, so the pair's cell is the one that has a beta.
CELLS = (
    Cell("3.11", "4.0", NO_AIRFLOW, "2", "C"),
    Cell("3.11", "4.2", "3.4", "3", "C"),
    Cell("3.12", "4.0", "3.3", "2", "Python"),
    Cell("3.12", "4.2", NO_AIRFLOW, "2", "C"),
    Cell("3.13", "4.1", "3.3", "2", "C"),
    Cell("3.13", "4.2", NO_AIRFLOW, "2", "Python"),
    Cell("3.14", "4.1", NO_AIRFLOW, "2", "Python"),
    Cell("3.14", "4.2", "3.3", "2", "C"),
)
LEFT_OUT = {("3.11", "4.1"), ("3.12", "4.1"), ("3.13", "4.0"), ("3.14", "4.0")}
"""Each Python and Spark that no cell tries together."""

IN_FULL = {("3.11", "3.3"), ("3.11", "Python")}
"""Pairs that `make test-all` alone tries: a Python with an Airflow, and with an engine."""


class Passed(msgspec.Struct, frozen=True):
    """The last time that a cell passed: the day, the digest of the wheel's files, and the versions as installed."""

    date: str
    wheel: str
    seconds: int
    versions: dict[str, str]


class Mishap(msgspec.Struct, frozen=True):
    """A cell failed or was not run after it last passed."""

    date: str
    outcome: Literal["failed", "not run"]
    reason: str


class Result(msgspec.Struct, frozen=True):
    """What became of a cell."""

    cell: Cell
    passed: Passed | None = None
    mishap: Mishap | None = None

    def holds_for(self, wheel: str) -> bool:
        """Return whether the cell passed with this wheel, and nothing came after that."""
        return self.passed is not None and self.passed.wheel == wheel and self.mishap is None

    @property
    def fails_the_matrix(self) -> bool:
        """Return whether `make matrix` has to end with an error: a cell that was not run has not failed."""
        return self.mishap is not None and self.mishap.outcome == "failed" and not self.cell.informative

    def after(self, outcome: Passed | Mishap) -> Result:
        """Return the result after another try. A mishap does not take away when the cell last passed."""
        return Result(self.cell, outcome) if isinstance(outcome, Passed) else Result(self.cell, self.passed, outcome)


def load(file: Path = RESULTS) -> dict[Cell, Result]:
    """Return the result of each cell; those of cells that are no longer declared are left out."""
    stored = msgspec.json.decode(file.read_bytes(), type=list[Result]) if file.exists() else []
    by_cell = {result.cell: result for result in stored}
    return {cell: by_cell.get(cell, Result(cell)) for cell in CELLS}


def save(results: Mapping[Cell, Result]) -> None:
    """Write the results, and the page's table."""
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode([*results.values()]), indent=2) + b"\n")
    PAGE.write_text(page(PAGE.read_text(), results.values()))


def page(text: str, results: Iterable[Result]) -> str:
    """Return the text of the page with a new table."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{PAGE.name} has no place for the table: {BEGIN.strip()} and {END.strip()}")
    return f"{before}{begin}\n{table(results)}\n{end}{after}"


def table(results: Iterable[Result]) -> str:
    """Return the results as a table."""
    head = (
        "| Python | Spark | Airflow | pandas | engine in | last passed | since then |\n|---|---|---|---|---|---|---|\n"
    )
    return head + "".join(f"{_row(result)}\n" for result in results)


def _row(result: Result) -> str:
    cell, passed, mishap = result.cell, result.passed, result.mishap
    names = {"python": cell.python, "pyspark": cell.spark, "apache-airflow": cell.airflow, "pandas": cell.pandas}
    versions = names | ({} if passed is None else {name: passed.versions.get(name, names[name]) for name in names})
    last = "never" if passed is None else f"{passed.date}, {passed.seconds} s"
    since = "" if mishap is None else f"{mishap.outcome} on {mishap.date}: {mishap.reason}"
    return f"| {' | '.join([*versions.values(), cell.engine, last, since])} |".replace("|  |", "| |")


def pinned(constraints: Path) -> dict[str, str]:
    """Return the version of each package in a file of constraints."""
    return dict(re.findall(r"^([\w-]+)==([\w.]+)$", constraints.read_text(), re.MULTILINE))
