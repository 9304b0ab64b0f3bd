"""pyspark from the installed package, not from the zip file that Spark puts in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pyspark
import pytest

from headrace.provision.pyspark import SUBMIT_OPTIONS, without_zip_files

LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"
PROGRAM = """
from headrace.provision.pyspark import prefer_installed_pyspark
prefer_installed_pyspark()
import pyspark, py4j
print(pyspark.__file__, py4j.__file__)
"""
DRIVER = """
import runpy, sys
from pathlib import Path
import headrace.cli
headrace.cli.main = lambda: print([path for path in sys.path if "pyspark" in path])
runpy.run_path(str(Path(headrace.cli.__file__).parent / "submit" / "driver.py"), run_name="__main__")
"""
OPTIONS = """
import os
from headrace.provision.pyspark import SUBMIT_OPTIONS, submit_options
print([submit_options(), submit_options(), os.environ.get(SUBMIT_OPTIONS)])
"""
DAEMON = """
import os, sys, headrace.spark.worker_daemon, pyspark.worker, pyspark.daemon
print(len(os.listdir("/proc/self/task")), {"numpy", "pyarrow"} & {*sys.modules})
"""


def package(folder: Path, name: str, version: str = "1") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    (folder / name / "version.py").write_text(version)


def zip_files(folder: Path) -> list[str]:
    """Make the zip files of the pyspark in a folder."""
    library = folder / "pyspark/python/lib"
    library.mkdir(parents=True)
    for name, module in {"pyspark.zip": "pyspark", "py4j-0.10-src.zip": "py4j"}.items():
        with zipfile.ZipFile(library / name, "w") as file:
            file.writestr(f"{module}/version.py", "1")
    return [str(library / "pyspark.zip"), str(library / "py4j-0.10-src.zip")]


@pytest.fixture
def installed(tmp_path) -> Path:
    """Return a folder of packages with pyspark and py4j."""
    folder = tmp_path / "site-packages"
    package(folder, "pyspark")
    package(folder, "py4j")
    return folder


def test_zip_files_of_installed_pyspark_are_dropped(installed):
    paths = ["", *zip_files(installed), "/elsewhere", str(installed)]
    assert [*without_zip_files(paths)] == ["", "/elsewhere", str(installed)]


def test_zip_files_of_another_spark_stay(installed, tmp_path):
    paths = [*zip_files(tmp_path / "spark"), str(installed)]
    assert [*without_zip_files(paths)] == paths


def test_zip_files_behind_another_pyspark_stay(installed, tmp_path):
    package(tmp_path / "nearer", "pyspark")
    paths = [*zip_files(installed), str(tmp_path / "nearer"), str(installed)]
    assert [*without_zip_files(paths)][:1] == paths[:1]


def test_zip_files_stay_without_an_installed_pyspark(installed):
    paths = [*zip_files(installed), "/elsewhere"]
    assert [*without_zip_files(paths)] == paths


@pytest.mark.parametrize("name", ["pyspark", "py4j"])
def test_zip_file_of_another_version_stays(installed, name):
    """pyspark-client may have written over the package."""
    (installed / name / "version.py").write_text("2")
    spark, py4j = zip_files(installed)
    kept = {"pyspark": spark, "py4j": py4j}[name]
    assert [*without_zip_files([spark, py4j, str(installed)])] == [kept, str(installed)]


@pytest.mark.parametrize("content", [b"", b"no zip file"])
def test_damaged_zip_file_stays(installed, content):
    spark, _ = zip_files(installed)
    Path(spark).write_bytes(content)
    assert [*without_zip_files([spark, str(installed)])] == [spark, str(installed)]


def ran(program: str, *, zipped: bool) -> str:
    files = [str(file) for file in LIBRARIES.glob("*.zip")] if zipped else []
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*files, os.environ.get("PYTHONPATH", "")])}
    words = [sys.executable, "-c", program]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout


def test_python_imports_the_installed_pyspark():
    assert ran(PROGRAM, zipped=True).split()[0] == pyspark.__file__
    assert ".zip" not in ran(PROGRAM, zipped=True)


def test_submitted_driver_has_no_zip_file():
    assert ran(DRIVER, zipped=True) == "[]\n"


def test_workers_are_forked_from_one_thread():
    """A fork copies one thread: locks that others hold would never be freed in the worker."""
    assert ran(DAEMON, zipped=False) == "1 set()\n"


@pytest.mark.parametrize("options", ["--conf a=secret pyspark-shell", None])
def test_child_processes_get_no_submit_options(options):
    environment = {name: value for name, value in os.environ.items() if name != SUBMIT_OPTIONS}
    environment |= {} if options is None else {SUBMIT_OPTIONS: options}
    line = [sys.executable, "-c", OPTIONS]
    shown = subprocess.run(line, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == str([options, options, None])
