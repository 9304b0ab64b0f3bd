"""The output of every benchmark: machine, versions, load, and a list of figures."""

import json
import os
import platform
import statistics
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.table import Table

from headrace.native import runs_in

OUT = Path("benchmarks/out")
PACKAGES = ("headrace", "pyspark", "deltalake", "pyarrow", "rocksdict", "msgspec", "duckdb")


def figure(name, values, unit, *, goal=None, met=None):
    """Return one figure: the median of its values, and their spread."""
    ordered = sorted(values)
    middle = statistics.median(ordered)
    return {
        "name": name,
        "value": round(middle, 6),
        "unit": unit,
        "spread": [round(ordered[0], 6), round(middle, 6), round(ordered[-1], 6)],
        "n": len(ordered),
        "goal": goal,
        "met": None if met is None else bool(met(middle)),
    }


def written(name, figures):
    """Write `benchmarks/out/NAME.json`, and return its section on the machine."""
    OUT.mkdir(parents=True, exist_ok=True)
    machine = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "engine": runs_in,
        "load": [round(load, 2) for load in os.getloadavg()],
        "packages": {package: version(package) for package in PACKAGES},
    }
    (OUT / f"{name}.json").write_text(json.dumps({"machine": machine, "figures": figures}, indent=2) + "\n")
    return machine


def report(name, figures):
    """Write `benchmarks/out/NAME.json` and print the same as a table."""
    machine = written(name, figures)
    table = Table(
        title=f"{name} (engine in {machine['engine']}, load {machine['load'][0]} on {machine['cores']} cores)"
    )
    for column in ("figure", "median", "min", "max", "n", "unit", "goal", "met"):
        table.add_column(column, justify="left" if column in {"figure", "unit", "goal"} else "right")
    for row in figures:
        low, middle, high = row["spread"]
        met = "" if row["met"] is None else "yes" if row["met"] else "NO"
        table.add_row(
            row["name"],
            f"{middle:,.3g}",
            f"{low:,.3g}",
            f"{high:,.3g}",
            str(row["n"]),
            row["unit"],
            row["goal"] or "",
            met,
        )
    Console(width=140).print(table)
