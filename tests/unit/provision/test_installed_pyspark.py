"""pyspark from the installed package, not from the zip file that Spark puts in front of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from headrace.provision.installed_pyspark import without_zip_files

LIBRARIES = Path(pyspark.__file__).parent / "python" / "lib"
PROGRAM = """
from headrace.provision.installed_pyspark import prefer_installed_pyspark
prefer_installed_pyspark()
import pyspark, py4j
print(pyspark.__file__, py4j.__file__)
"""


def package(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()


@pytest.fixture
def installed(tmp_path) -> Path:
    """Return a folder of packages with pyspark and py4j."""
    folder = tmp_path / "site-packages"
    package(folder, "pyspark")
    package(folder, "py4j")
    return folder


def zip_files(folder: Path) -> list[str]:
    return [str(folder / "pyspark/python/lib" / name) for name in ("pyspark.zip", "py4j-0.10-src.zip")]


def test_zip_files_of_installed_pyspark_are_dropped(installed):
    paths = ["", *zip_files(installed), "/elsewhere", str(installed)]
    assert [*without_zip_files(paths)] == ["", "/elsewhere", str(installed)]


def test_zip_files_of_another_spark_stay(installed, tmp_path):
    paths = [*zip_files(tmp_path / "spark"), str(installed)]
    assert [*without_zip_files(paths)] == paths


def test_zip_files_behind_another_pyspark_stay(installed, tmp_path):
    package(tmp_path / "nearer", "pyspark")
    paths = [*zip_files(installed), str(tmp_path / "nearer"), str(installed)]
    assert [*without_zip_files(paths)] == paths


def test_zip_files_stay_without_an_installed_pyspark(installed):
    paths = [*zip_files(installed), "/elsewhere"]
    assert [*without_zip_files(paths)] == paths


def test_py4j_stays_unless_it_is_installed(installed):
    (installed / "py4j/__init__.py").unlink()
    paths = [*zip_files(installed), str(installed)]
    assert [*without_zip_files(paths)] == paths[1:]


def test_python_imports_the_installed_pyspark():
    zipped = [str(file) for file in LIBRARIES.glob("*.zip")]
    assert len(zipped) == 2
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*zipped, os.environ.get("PYTHONPATH", "")])}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    assert ".zip" not in ran.stdout
    assert ran.stdout.split()[0] == pyspark.__file__


def test_workers_are_forked_from_one_thread():
    """A fork copies one thread: locks that others hold would never be freed in the worker."""
    program = "import os, sys, pyspark.worker, pyspark.daemon; print(len(os.listdir('/proc/self/task')), {'numpy', 'pyarrow'} & {*sys.modules})"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "1 set()\n"
