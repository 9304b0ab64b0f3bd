"""A pyspark that does not fit Delta's jars is refused before Spark starts."""

from __future__ import annotations

import importlib.util
import itertools
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.errors import ConfigError
from headrace.provision.pyspark import check_pyspark
from headrace.run.options import RunOptions
from headrace.spark import run


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Install a fake pyspark; `spark` is the version of its jars, None for pyspark-client."""
    folder = tmp_path / "pyspark"
    (folder / "bin").mkdir(parents=True)
    (folder / "jars").mkdir()
    (folder / "__init__.py").write_text("raise AssertionError('Spark was imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)

    def install(version: str, spark: str | None) -> Path:
        (folder / "version.py").write_text(f"__version__: str = {version!r}\n")
        if spark:
            (folder / "bin" / "spark-submit").touch()
            (folder / "jars" / f"spark-core_2.13-{spark}.jar").touch()
        return folder

    return install


@pytest.mark.parametrize("version", ["4.0.1", "4.1.1", "4.2.0", "4.2.11", "4.2.0.dev1"])
def test_every_patch_release_fits(installed, version):
    installed(version, version)
    assert check_pyspark() == version


@pytest.mark.parametrize("version", ["3.5.1", "4.3.0", "4.20.0", "5.0.0"])
def test_other_minor_releases_are_refused(installed, version):
    installed(version, version)
    with pytest.raises(
        ConfigError, match=rf"pyspark {version} is .* Spark 4\.0, 4\.1 and 4\.2\..*Run: pip install pyspark==4\.2\.0"
    ):
        check_pyspark()


def test_overwritten_python_code_is_refused(installed):
    installed("4.2.0", "4.3.0")
    with pytest.raises(ConfigError, match=r"pyspark 4\.2\.0 finds the jars of Spark 4\.3\.0 in .*--force-reinstall"):
        check_pyspark()


@pytest.mark.parametrize(("client", "spark"), [*itertools.permutations(("4.0.1", "4.1.3", "4.2.0"), 2)])
def test_client_of_another_minor_is_refused(installed, client, spark):
    installed(client, spark)
    with pytest.raises(ConfigError, match=rf"pyspark {client} finds the jars of Spark {spark} in .* Run: pip install"):
        check_pyspark()


def test_pyspark_client_alone_is_refused(installed):
    installed("4.2.0", None)
    with pytest.raises(ConfigError, match=r"has no Spark in it: it comes from pyspark-client.*'headrace\[spark\]'"):
        check_pyspark()


def test_driver_in_a_container_needs_no_spark_folder(installed, monkeypatch):
    """On YARN in cluster mode, pyspark is a zip file that the driver's JVM has brought along."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    installed("4.2.0", None)
    assert check_pyspark() == "4.2.0"
    installed("3.5.1", None)
    with pytest.raises(ConfigError, match=r"pyspark 3\.5\.1 is installed"):
        check_pyspark()


def test_spark_home_is_the_spark_that_counts(installed, tmp_path, monkeypatch):
    installed("4.2.0", "4.2.0")
    other = tmp_path / "opt" / "spark"
    (other / "bin").mkdir(parents=True)
    (other / "jars").mkdir()
    (other / "bin" / "spark-submit").touch()
    (other / "jars" / "spark-core_2.13-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(other))
    with pytest.raises(ConfigError, match=rf"finds the jars of Spark 3\.5\.1 in {other}, .* Unset SPARK_HOME"):
        check_pyspark()


def test_pyspark_in_a_zip_file_is_read(installed, tmp_path, monkeypatch):
    folder = installed("4.2.0", "4.2.0")
    archive = tmp_path / "lib" / "pyspark.zip"
    archive.parent.mkdir()
    with zipfile.ZipFile(archive, "w") as content:
        for name in ("__init__.py", "version.py"):
            content.write(folder / name, f"pyspark/{name}")
    monkeypatch.setenv("SPARK_HOME", str(folder.rename(tmp_path / "spark")))
    monkeypatch.syspath_prepend(archive)
    assert check_pyspark() == "4.2.0"


def test_missing_pyspark_error_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pyspark is not installed.*pip install 'headrace\[spark\]'"):
        check_pyspark()


def test_run_refuses_before_it_imports_spark(installed):
    installed("3.5.1", "3.5.1")
    with pytest.raises(ConfigError, match="Spark was not started"):
        run(SimpleNamespace(profile=SimpleNamespace(is_connect=False)), RunOptions(run_id="test"), print)
