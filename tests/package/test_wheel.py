"""The wheel as a user installs it: in a new environment, outside this repository, on a machine without Java."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from headrace.provision.java import find_java, java_version
from tests.jobs.home import PROJECT

pytestmark = pytest.mark.slow

OLDEST_SPARK = "pyspark==4.0.1"
NEWEST_JAVA_OF_IT = 21
OURS = ("HEADRACE_", "AIRFLOW", "SPARK_", "PYSPARK_", "PYTHON", "VIRTUAL_ENV", "JAVA_HOME", "PATH")
"""What this repository's own environment says, which a user's does not."""


def has_compiler() -> bool:
    """Return whether the wheel's build can compile the module in C."""
    script = runpy.run_path(str(PROJECT / "setup" / "compile_engine.py"))
    return script["obstacle"]() is None


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and its PATH."""

    folder: Path
    path: str

    def run(self, program: str, *arguments: str, cwd: Path, **variables: str) -> str:
        """Run one of the environment's programs; return what it prints on stdout."""
        foreign = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        here = self.folder / "bin"
        environment = {**foreign, "PATH": f"{here}{os.pathsep}{self.path}", **variables}
        done = subprocess.run(
            [here / program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{program} {' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


def built(folder: Path, **variables: str) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=PROJECT, env={**os.environ, **variables}, check=True)
    return next(folder.glob("headrace-*.whl"))


def contents(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as content:
        return {name for name in content.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel of this working tree."""
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def path_without_java(tmp_path_factory) -> str:
    """Return a PATH with all programs of this machine except Java and this repository's programs."""
    folder = tmp_path_factory.mktemp("bin")
    places = [Path(place) for place in os.environ["PATH"].split(os.pathsep)]
    for place in places:
        if place.is_dir() and not place.is_relative_to(PROJECT) and place != Path(sys.executable).parent:
            for program in place.iterdir():
                if program.name != "java" and not (folder / program.name).is_symlink():
                    (folder / program.name).symlink_to(program)
    return str(folder)


def uv(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "uv", *arguments], capture_output=True, text=True, check=False)


def installed(folder: Path, requirement: str, *others: str) -> Path:
    """Make an environment; skip the test where the package index cannot be reached."""
    assert uv("venv", "--seed", "--python", sys.executable, folder).returncode == 0
    python = ("--python", folder / "bin" / "python")
    probe = uv("pip", "install", *python, "--dry-run", "--no-cache", "iniconfig")
    if probe.returncode != 0:
        pytest.skip(f"the package index cannot be reached: {probe.stderr.strip()}")
    done = uv("pip", "install", *python, requirement, *others)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def full(tmp_path_factory, wheel, path_without_java) -> Environment:
    """An environment with Spark, Airflow and pytest."""
    folder = tmp_path_factory.mktemp("full") / "venv"
    return Environment(installed(folder, f"headrace[spark,airflow] @ {wheel.as_uri()}", "pytest"), path_without_java)


@pytest.fixture(scope="module")
def oldest_spark(tmp_path_factory, wheel, path_without_java) -> Environment:
    """An environment with the oldest Spark that the wheel allows."""
    folder = tmp_path_factory.mktemp("oldest") / "venv"
    return Environment(installed(folder, f"headrace[spark] @ {wheel.as_uri()}", OLDEST_SPARK), path_without_java)


@pytest.fixture(scope="module")
def bare(tmp_path_factory, wheel, path_without_java) -> Environment:
    """Return an environment with only the wheel's required packages."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    return Environment(installed(folder, f"headrace @ {wheel.as_uri()}"), path_without_java)


@pytest.fixture(scope="module")
def airflow_alone(tmp_path_factory, wheel, path_without_java) -> Environment:
    """An environment with Airflow, and without Spark's driver."""
    folder = tmp_path_factory.mktemp("airflow") / "venv"
    return Environment(installed(folder, f"headrace[airflow] @ {wheel.as_uri()}"), path_without_java)


@pytest.fixture(scope="module")
def airflow_home(tmp_path_factory, airflow_alone) -> Path:
    """The folder of an Airflow whose database is made."""
    folder = tmp_path_factory.mktemp("airflow-home")
    airflow_alone.run("airflow", "db", "migrate", cwd=folder, AIRFLOW_HOME=str(folder))
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory, full) -> Path:
    """A new project, set up."""
    folder = tmp_path_factory.mktemp("work")
    full.run("headrace", "new", "shop", cwd=folder)
    full.run("headrace", "setup", cwd=folder / "shop")
    return folder / "shop"


@pytest.fixture(scope="module")
def ran(full, shop) -> Path:
    """Return the project after a run."""
    report = json.loads(full.run("headrace", "run", "shop", "--json", cwd=shop))
    assert (report["rows_in"], report["quarantined"]) == (600, 0)
    return shop


def test_wheel_contains_the_package_alone(wheel):
    names = {name for name in contents(wheel) if not name.endswith(".so")}
    assert {name.partition("/")[0] for name in names} == {"headrace"}
    assert {Path(name).suffix for name in names} <= {".c", ".py", ".pyi", ".txt", ".sha256", ".typed"}
    files = {str(file.relative_to(PROJECT / "engine")) for file in (PROJECT / "engine").rglob("*") if file.is_file()}
    assert names == {file for file in files if "__pycache__" not in file and not file.endswith(".so")}


def test_wheel_with_a_module_names_its_platform(wheel):
    modules = [name for name in contents(wheel) if name.endswith(".so")]
    assert len(modules) == int(has_compiler())
    assert wheel.name.endswith("-py3-none-any.whl") != has_compiler()


def test_wheel_in_python_is_for_all_platforms(tmp_path):
    pure = built(tmp_path, HEADRACE_PURE_PYTHON="1")
    assert pure.name.endswith("-py3-none-any.whl")
    assert not [name for name in contents(pure) if name.endswith(".so")]


def test_pyspark_and_its_client_are_one_version(full, tmp_path):
    code = "from importlib.metadata import version; print({version('pyspark'), version('pyspark-client')})"
    assert full.run("python", "-c", code, cwd=tmp_path) == "{'4.2.0'}\n"


def test_setup_makes_a_java_and_fetches_jars(full, shop):
    assert (shop / "var/jdk/bin/java").exists()
    again = full.run("headrace", "setup", cwd=shop)
    assert "in var/jdk" in again
    assert "nothing to do" in again


def test_new_project_is_checked_and_run(full, ran):
    assert json.loads(full.run("headrace", "check", "--json", cwd=ran))["ok"]
    answer = full.run("headrace", "sql", "shop", "select count(*) as n from vouchers", "--json", cwd=ran)
    assert json.loads(answer)["rows"] == [{"n": 10}]


def test_new_project_runs_on_the_oldest_spark(oldest_spark, tmp_path):
    java = find_java(PROJECT)
    if java is None or java_version(java / "bin" / "java") > NEWEST_JAVA_OF_IT:
        pytest.skip(f"{OLDEST_SPARK} needs a Java from 17 to {NEWEST_JAVA_OF_IT}")
    oldest_spark.run("headrace", "new", "shop", cwd=tmp_path)
    home, machine = tmp_path / "shop", {"JAVA_HOME": str(java)}
    assert "fetched" in oldest_spark.run("headrace", "setup", cwd=home, **machine)
    assert (home / "var" / "jars" / "delta-spark_4.0_2.13-4.4.0.jar").exists()
    report = json.loads(oldest_spark.run("headrace", "run", "shop", "--json", cwd=home, **machine))
    assert (report["rows_in"], report["quarantined"]) == (600, 0)
    answer = oldest_spark.run("headrace", "sql", "shop", "select count(*) as n from vouchers", "--json", cwd=home)
    assert json.loads(answer)["rows"] == [{"n": 10}]


def test_tests_of_the_new_project_pass(full, shop):
    assert "3 passed" in full.run("pytest", "-q", cwd=shop)


def test_dag_of_a_new_project_runs(full, shop, airflow_home, tmp_path):
    full.run("headrace", "new", "kiosk", cwd=tmp_path)
    home = tmp_path / "kiosk"
    (home / "var").mkdir()
    for fetched in ("jars", "jdk"):  # in a folder of its own: tables of two projects must not mix
        (home / "var" / fetched).symlink_to(shop / "var" / fetched)
    airflow = {
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
    }
    full.run("python", "dags/headrace_errors.py", cwd=home, **airflow)
    full.run("airflow", "dags", "test", "kiosk", cwd=tmp_path, **airflow)
    answer = full.run("headrace", "sql", "kiosk", "select count(*) as n from vouchers", "--json", cwd=home)
    assert json.loads(answer)["rows"] == [{"n": 10}]


def test_own_dag_runs_the_job_in_another_environment(full, airflow_alone, shop, airflow_home, tmp_path):
    full.run("headrace", "new", "shop", cwd=tmp_path)
    home = tmp_path / "shop"
    (home / "var").mkdir()
    for fetched in ("jars", "jdk"):
        (home / "var" / fetched).symlink_to(shop / "var" / fetched)
    profile = home / "conf" / "clusters" / "local.yaml"
    profile.write_text(f"{profile.read_text()}\npython: {full.folder}/bin/python\n")
    page = (PROJECT / "docs" / "own-dag.md").read_text()
    (home / "dags" / "morning.py").write_text(page.split("```python\n")[1].split("```")[0])
    airflow = {
        "AIRFLOW_HOME": str(airflow_home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"),
    }
    airflow_alone.run("airflow", "dags", "test", "morning", "2026-01-02", cwd=tmp_path, **airflow)
    status = json.loads(full.run("headrace", "checkpoints", "--json", cwd=home))
    assert [checkpoint["name"] for checkpoint in status["checkpoints"] if checkpoint["name"]] == ["day_20260102"]
    answer = full.run("headrace", "sql", "shop", "select count(*) as n from vouchers", "--json", cwd=home)
    assert json.loads(answer)["rows"] == [{"n": 10}]


def test_bare_wheel_reads_state(bare, ran):
    listed = json.loads(bare.run("headrace", "state", "list", "--json", cwd=ran))
    assert {state["state"] for state in listed["states"]} == {"totals", "event_time"}


def test_installed_wheel_runs_in_c(bare, tmp_path):
    code = "from headrace.native import runs_in; print(runs_in)"
    runs_in = bare.run("python", "-c", code, cwd=tmp_path).strip()
    assert runs_in == ("C" if has_compiler() else "Python (the module in C is not compiled)")


def test_run_on_bare_wheel_names_missing_extra(bare, ran):
    with pytest.raises(AssertionError, match=r"pyspark is not installed\. Run: pip install 'headrace\[spark\]'"):
        bare.run("headrace", "run", "shop", cwd=ran)
