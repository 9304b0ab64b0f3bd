"""A pyspark that does not fit Delta's jars is refused before Spark starts."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.provision import pyspark_version
from headrace.provision.pyspark_version import check_pyspark
from headrace.spark import RunOptions, run


@pytest.fixture
def installed(tmp_path, monkeypatch):
    def install(version: str) -> None:
        (tmp_path / "version.py").write_text(f"__version__: str = {version!r}\n")
        monkeypatch.setattr(pyspark_version, "pyspark_folder", lambda: tmp_path)

    return install


@pytest.mark.parametrize("version", ["4.2.0", "4.2.11", "4.2.0.dev1"])
def test_every_patch_release_fits(installed, version):
    installed(version)
    assert check_pyspark() == version


@pytest.mark.parametrize("version", ["3.5.1", "4.1.2", "4.20.0", "5.0.0"])
def test_other_minor_releases_are_refused(installed, version):
    installed(version)
    with pytest.raises(ConfigError, match=rf"pyspark {version} .* Spark 4\.2.*pip install 'pyspark==4\.2\.\*'"):
        check_pyspark()


def test_missing_pyspark_is_told_with_the_extra(monkeypatch):
    monkeypatch.setattr(pyspark_version.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ConfigError, match=r"pyspark is not installed.*pip install 'headrace\[spark\]'"):
        check_pyspark()


def test_run_refuses_before_it_imports_spark(installed):
    installed("3.5.1")
    with pytest.raises(ConfigError, match="Spark was not started"):
        run(None, RunOptions(run_id="test"), print)
