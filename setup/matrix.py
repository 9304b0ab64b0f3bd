"""Try an installed wheel with the sets of versions in setup/matrix_cells.py, one after another.

    .venv/bin/python setup/matrix.py [--folder FOLDER] [CELL...]      (`make matrix` calls it)

Each cell has an environment of its own, in which a user's first day is played: a new project, its checks, two runs on Spark, a
comparison with runs in this process, the project's tests and, with Airflow, its DAG. A cell that passed is left out until the
wheel changes, so a command that was stopped goes on where it was. Ends with 1 if a cell failed that is not informative.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import matrix_cells as cells  # type: ignore[import-not-found]  # a script's neighbour
import release  # type: ignore[import-not-found]  # a script's neighbour

from headrace.provision.java import find_java, java_version

HOME = release.HOME
FOLDER = Path(tempfile.gettempdir(), "headrace-matrix")
"""Its cells make projects, which lie in no other one."""

NEWEST_JAVA = {"4.0": 21}
"""The newest Java that a Spark runs on, where that is not any."""

AIRFLOW = {
    "3.3": ("apache-airflow>=3.3,<3.4",),
    # A beta is chosen only for packages that are asked for by name.
    "3.4": ("apache-airflow>=3.4.0b1,<3.5", "apache-airflow-core>=3.4.0b1", "apache-airflow-task-sdk>=1.4.0b1"),
}
PACKAGES = ("pyspark", "pyspark-client", "delta-spark", "deltalake", "pandas", "pyarrow", "apache-airflow")
VERSIONS = f"""
import json, platform
from importlib.metadata import distributions
installed = {{package.name.replace("_", "-"): package.version for package in distributions()}}
print(json.dumps({{"python": platform.python_version()}} | {{name: installed[name] for name in {PACKAGES} if name in installed}}))
"""
OURS = ("HEADRACE_", "AIRFLOW", "SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV", "JAVA_HOME")
"""Variables of this repository's own environment, which a user's does not have."""

TABLES = {
    "customers": "select * from customers",
    "vouchers": "select * from vouchers",
    "state": "select * exclude (checkpoint_id) from keyed_state",
    "timers": "select * exclude (checkpoint_id) from timers",
}
MOST_SECONDS = 900


class NotRun(Exception):  # noqa: N818  no error of a cell: this machine lacks something
    """A cell cannot be tried on this machine; the message says why, and names no path."""


class CellFailed(Exception):  # noqa: N818  the outcome of a cell
    """A step of a cell failed; the message has its output."""


def main() -> int:
    """Try the cells; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("cell", nargs="*", help="only these cells (default: all)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of environments and projects")
    parser.add_argument("--list", action="store_true", help="show the cells, and try none")
    options = parser.parse_args()
    chosen = [cell for cell in cells.CELLS if not options.cell or cell.name in options.cell]
    if unknown := {*options.cell} - {cell.name for cell in chosen}:
        parser.error(f"there is no cell {', '.join(sorted(unknown))}; --list shows all")
    try:
        return try_all(chosen, Wheels(options.folder.resolve() / "wheels"), only_list=options.list)
    except release.ReleaseError as error:
        print(f"make matrix: {error}", file=sys.stderr)
        return 1


def try_all(chosen: Sequence[cells.Cell], wheels: Wheels, *, only_list: bool) -> int:
    """Try cells that have not passed with these wheels, and keep each result at once; return the exit code."""
    codes = [0]
    for cell in chosen:
        result = cells.load()[cell]
        if result.holds_for(wheels.digest):
            print(f"{cell.name}: passed on {result.passed.date} with this wheel", flush=True)
        elif only_list:
            print(f"{cell.name}: to be tried", flush=True)
        else:
            result = result.after(tried(Trial(cell, wheels.folder.parent / cell.name, wheels)))
            cells.save(cells.load() | {cell: result})
            codes.append(int(result.fails_the_matrix))
    return max(codes)


class Wheels:
    """Wheels of this working tree: one in Python for all, and one with the module in C for each Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def digest(self) -> str:
        """The digest of the one in Python, which has all sources, also that in C."""
        return hashlib.sha256(
            self._built(Path(sys.executable), "pure", HEADRACE_PURE_PYTHON="1").read_bytes()
        ).hexdigest()

    def fitting(self, cell: cells.Cell, interpreter: Path) -> Path:
        """Return the wheel of a cell."""
        if cell.engine == "Python":
            return self._built(Path(sys.executable), "pure", HEADRACE_PURE_PYTHON="1")
        return self._built(interpreter, f"c-{cell.python}")

    def _built(self, interpreter: Path, name: str, **variables: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        uv = (sys.executable, "-m", "uv", "build", "--quiet", "--wheel")
        release.run(*uv, "--python", interpreter, "--out-dir", folder, HOME, **variables)
        (wheel,) = folder.glob("*.whl")
        return wheel


@dataclass
class Trial:
    """A try of a cell: its steps, each a method that fails with an exception."""

    cell: cells.Cell
    folder: Path
    wheels: Wheels
    versions: dict[str, str] = field(default_factory=dict)

    def steps(self) -> Mapping[str, Callable[[], object]]:
        """Return the steps, in their order."""
        always = {
            "install": self.install,
            "setup": self.set_up,
            "doctor": self.ask_doctor,
            "check": lambda: self.headrace("spark", "check", "--json"),
            "runs on Spark": lambda: self.run_twice("spark", "spark"),
            "runs in this process": lambda: self.run_twice("local", "local"),
            "comparison": self.compare,
            "verify": lambda: self.headrace("spark", "verify", "shop", "--full"),
            "tests of the project": lambda: self.program("pytest", "-q", place="spark/shop"),
        }
        return always if self.cell.airflow == cells.NO_AIRFLOW else always | {"DAG": self.run_dag}

    @cached_property
    def interpreter(self) -> Path:
        """The cell's Python."""
        try:
            return Path(release.python_of(self.cell.python)[0])
        except release.ReleaseError:
            raise NotRun(f"no Python {self.cell.python} with header files on this machine") from None

    @cached_property
    def java(self) -> Path:
        """A Java that the cell's Spark runs on."""
        java = find_java(HOME)
        newest = NEWEST_JAVA.get(self.cell.spark)
        if java is None or (newest and java_version(java / "bin" / "java") > newest):
            raise NotRun(f"no Java from 17 to {newest} on this machine" if newest else "no Java on this machine")
        return java

    def install(self) -> None:
        """Make the environment, and compare its versions with those of the cell."""
        interpreter, extras = self.interpreter, "spark" if self.cell.airflow == cells.NO_AIRFLOW else "spark,airflow"
        self.versions["java"] = str(java_version(self.java / "bin" / "java"))
        uv = (sys.executable, "-m", "uv")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.call(*uv, "venv", "--quiet", "--python", interpreter, "venv")
        python = ("--python", self.folder / "venv" / "bin" / "python")
        reach = (*uv, "pip", "install", *python, "--dry-run", "--no-cache", "iniconfig")
        if subprocess.run(reach, capture_output=True, check=False).returncode != 0:
            raise NotRun("the package index could not be reached")
        wheel = self.wheels.fitting(self.cell, interpreter).resolve()
        wanted = (f"headrace[{extras}] @ {wheel.as_uri()}", "pytest", *AIRFLOW.get(self.cell.airflow, ()))
        self.call(
            *uv, "pip", "install", "--quiet", *python, "--constraint", self.cell.constraints, *self.beyond(), *wanted
        )
        self.versions |= json.loads(self.program("python", "-c", VERSIONS))
        self.hold_versions()

    def beyond(self) -> tuple[str | Path, ...]:
        """Return uv's options for a pandas that the wheel does not admit."""
        if self.cell.pandas == "2":
            return ()
        file = self.folder / "overrides.txt"
        file.write_text(f"pandas=={self.cell.pandas}.*\n")
        return ("--override", file)

    def hold_versions(self) -> None:
        """Refuse an environment with other versions than those of the cell."""
        wanted = {"python": self.cell.python, "pandas": self.cell.pandas} | cells.pinned(self.cell.constraints)
        if self.cell.airflow == cells.NO_AIRFLOW:
            del wanted["pyspark-client"]
        else:
            wanted["apache-airflow"] = self.cell.airflow
        for name, version in wanted.items():
            installed = self.versions.get(name, "none")
            if not f"{installed}.".startswith(f"{version}."):
                raise CellFailed(f"{name} {installed} is installed, not {version}")

    def set_up(self) -> None:
        """Make three projects, one for each way to run, and provide Spark's jars for one of them; the DAG uses the same."""
        for project in ("spark", "local", "airflow"):
            (self.folder / project).mkdir()
            self.program("headrace", "new", "shop", place=project)
        self.headrace("spark", "setup")
        (self.home("airflow") / "var").mkdir()
        (self.home("airflow") / "var" / "jars").symlink_to(self.home("spark") / "var" / "jars")

    def ask_doctor(self) -> None:
        """Hold that `headrace doctor` finds nothing, and the engine that the cell names."""
        answer = json.loads(self.headrace("spark", "doctor", "--json"))
        (engine,) = (finding["detail"] for finding in answer["findings"] if finding["check"] == "engine")
        if engine.partition(" ")[0] != self.cell.engine:
            raise CellFailed(f"the engine runs in {engine}")

    def run_twice(self, project: str, runner: str) -> None:
        """Run the job on the first day's orders, and on those of the second."""
        *_, second = sorted((self.home(project) / "input" / "orders").iterdir())
        aside = second.rename(self.folder / second.name)
        self.run_once(project, runner)
        aside.rename(second)
        self.run_once(project, runner)

    def run_once(self, project: str, runner: str) -> None:
        """Run the job; all rows must be good."""
        report = json.loads(self.headrace(project, "run", "shop", "--runner", runner, "--json"))
        if not report["rows_in"] or report["quarantined"]:
            raise CellFailed(f"{report['rows_in']} rows in, {report['quarantined']} bad ones")

    def compare(self, project: str = "spark") -> None:
        """Hold that sinks, state and timers are those of the runs in this process."""
        for table, query in TABLES.items():
            rows, expected = (self.rows(place, query) for place in (project, "local"))
            if not expected or rows != expected:
                raise CellFailed(f"{table} has other rows: {rows}\nexpected: {expected}")

    def rows(self, project: str, query: str) -> list[str]:
        """Return the rows of a query, sorted."""
        answer = json.loads(self.headrace(project, "sql", "shop", query, "--json"))
        return sorted(json.dumps(row) for row in answer["rows"])

    def run_dag(self) -> None:
        """Run the job's DAG; it takes in both days at once, and leaves what two runs do."""
        home = self.home("airflow")
        airflow = {
            "AIRFLOW_HOME": str(self.folder / "airflow-home"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
        }
        self.program("airflow", "db", "migrate", variables=airflow)
        self.program("python", "dags/headrace_errors.py", place="airflow/shop", variables=airflow)
        self.program("airflow", "dags", "test", "shop", variables=airflow)
        self.compare("airflow")

    def home(self, project: str) -> Path:
        """Return the folder of a project."""
        return self.folder / project / "shop"

    def headrace(self, project: str, *arguments: str) -> str:
        """Run headrace's command in a project; return what it prints."""
        return self.program("headrace", *arguments, place=f"{project}/shop")

    def program(self, name: str, *arguments: str, place: str = "", variables: Mapping[str, str] | None = None) -> str:
        """Run one of the environment's programs in a folder of the cell; return what it prints."""
        program = self.folder / "venv" / "bin" / name
        return self.call(program, *arguments, place=place, variables=variables)

    def call(self, *command: str | Path, place: str = "", variables: Mapping[str, str] | None = None) -> str:
        """Run a command as a user would; return what it prints. Raises `CellFailed` with its messages if it fails."""
        others = {name: value for name, value in os.environ.items() if not name.startswith((*OURS, "PATH"))}
        places = [part for part in os.environ["PATH"].split(os.pathsep) if not Path(part).is_relative_to(HOME)]
        path = os.pathsep.join([str(self.folder / "venv" / "bin"), *places])
        done = subprocess.run(
            command,
            cwd=self.folder / place,
            env={**others, "PATH": path, "JAVA_HOME": str(self.java), **(variables or {})},
            capture_output=True,
            text=True,
            timeout=MOST_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise CellFailed(f"{' '.join(map(str, command))}:\n{done.stdout}\n{done.stderr}")
        return done.stdout


def tried(trial: Trial) -> cells.Passed | cells.Mishap:
    """Try a cell; return the outcome. What a failure printed is in a file beside the cell's folder, which stays."""
    started, today, step = time.monotonic(), datetime.now(UTC).date().isoformat(), ""
    try:
        for step, act in trial.steps().items():
            act()
            print(f"{trial.cell.name}: {step} at {time.monotonic() - started:.0f} s", flush=True)
    except NotRun as reason:
        print(f"{trial.cell.name}: not run: {reason}", flush=True)
        return cells.Mishap(today, "not run", str(reason))
    except Exception as error:  # noqa: BLE001  a cell that fails must not keep others from being tried
        log = trial.folder.parent / f"{trial.cell.name}.log"
        log.write_text(f"{step}: {type(error).__name__}: {error}\n")
        print(f"{trial.cell.name}: failed at {step}: {log}", flush=True)
        return cells.Mishap(today, "failed", f"at the step {step}")
    shutil.rmtree(trial.folder)
    return cells.Passed(today, trial.wheels.digest, round(time.monotonic() - started), trial.versions)


if __name__ == "__main__":
    sys.exit(main())
