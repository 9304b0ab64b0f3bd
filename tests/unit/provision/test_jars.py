"""Jars are fetched once, and only pinned jars are stored in the project."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import pytest

from headrace.errors import ConfigError, ServiceError
from headrace.provision import jars as provision
from headrace.provision import pyspark as pyspark_version
from headrace.provision.jars import DELTA, DELTA_VERSION, KAFKA, S3, Jars, absent_jars, fetch, how_to_get, jars_folder
from headrace.provision.java import run_logged
from headrace.provision.pyspark import FITTING_SPARK


@pytest.fixture
def pinned(monkeypatch) -> Jars:
    digests = {"a-1.jar": hashlib.sha256(b"a").hexdigest(), "b-1.jar": hashlib.sha256(b"b").hexdigest()}
    monkeypatch.setattr(Jars, "digests", lambda _: digests)
    return Jars(name="test", artifact="org:a:1", without=("org:c",))


@pytest.fixture
def resolver(monkeypatch):
    """Stand in for spark-submit: deliver `files`, and record the command and its environment."""

    class Resolver:
        def __init__(self):
            self.files = {"org_a-1.jar": b"a", "org_b-1.jar": b"b"}

        def __call__(self, command, *, log, environment):
            self.command, self.environment = command, environment
            folder = next(word for word in command if word.startswith("spark.jars.ivy=")).partition("=")[2]
            (Path(folder) / "jars").mkdir()
            for name, content in self.files.items():
                (Path(folder) / "jars" / name).write_bytes(content)

    resolver = Resolver()
    monkeypatch.setattr(provision, "run_logged", resolver)
    return resolver


def test_fetched_jars_get_their_plain_names(tmp_path, pinned, resolver):
    fetch(pinned, tmp_path, Path("/java"))
    assert {file.name: file.read_bytes() for file in jars_folder(tmp_path).iterdir()} == {
        "a-1.jar": b"a",
        "b-1.jar": b"b",
    }
    assert pinned.missing(jars_folder(tmp_path)) == []


def test_jar_with_another_checksum_is_refused(tmp_path, pinned, resolver):
    resolver.files = {"org_a-1.jar": b"something else", "org_b-1.jar": b"b"}
    with pytest.raises(ServiceError, match=r"a-1\.jar was fetched with the SHA-256 .*/a-1\.jar is as it was"):
        fetch(pinned, tmp_path, Path("/java"))
    assert list(jars_folder(tmp_path).iterdir()) == []


def test_jar_that_was_not_fetched_is_named(tmp_path, pinned, resolver):
    resolver.files = {"org_a-1.jar": b"a"}
    with pytest.raises(ServiceError, match=r"b-1\.jar was not among what the resolver fetched"):
        fetch(pinned, tmp_path, Path("/java"))


def test_damaged_jar_counts_as_missing(tmp_path, pinned):
    (tmp_path / "a-1.jar").write_bytes(b"half")
    (tmp_path / "b-1.jar").write_bytes(b"b")
    assert pinned.missing(tmp_path) == ["a-1.jar"]


def test_resolver_reads_the_ivy_settings(tmp_path, pinned, resolver, monkeypatch):
    monkeypatch.setenv("HEADRACE_IVY_SETTINGS", "/etc/mirror.xml")
    fetch(pinned, tmp_path, Path("/java"))
    assert "spark.jars.ivySettings=/etc/mirror.xml" in resolver.command
    assert resolver.environment["JAVA_HOME"] == "/java"


def test_packaged_java_uses_the_machines_certificates(tmp_path, pinned, resolver, monkeypatch):
    monkeypatch.setattr(provision, "java_options", lambda _: "-Dtrust")
    fetch(pinned, tmp_path, Path("/java"))
    assert "-Dtrust" not in resolver.environment["SPARK_SUBMIT_OPTS"]
    fetch(pinned, tmp_path, tmp_path / "var" / "jdk")
    assert "-Dtrust" in resolver.environment["SPARK_SUBMIT_OPTS"]


@pytest.mark.parametrize("minor", FITTING_SPARK)
def test_delta_jars_derive_from_the_installed_spark(minor, monkeypatch):
    monkeypatch.setattr(pyspark_version, "_python_version", lambda: f"{minor}.1")
    assert DELTA.package == f"io.delta:delta-spark_{minor}_2.13:{DELTA_VERSION}"
    assert [*DELTA.digests()] == [f"delta-spark_{minor}_2.13-{DELTA_VERSION}.jar", f"delta-storage-{DELTA_VERSION}.jar"]


@pytest.mark.slow
def test_delta_version_is_that_of_the_extra():
    assert version("delta-spark") == DELTA_VERSION


def test_connectors_of_another_spark_are_refused(tmp_path, resolver, monkeypatch):
    monkeypatch.setattr(pyspark_version, "_python_version", lambda: "4.0.1")
    with pytest.raises(
        ConfigError, match=r"jars of s3 are pinned for Spark 4\.2, and Spark 4\.0 is installed.*under 'jars'"
    ):
        fetch(S3, tmp_path, Path("/java"))


def test_failed_command_shows_the_end_of_its_log(tmp_path):
    log = tmp_path / "log" / "setup.log"
    with pytest.raises(
        ServiceError, match=r"exit code 3:\n    sh -c .*\nIts last lines.*setup\.log:\n\nno route to host"
    ):
        run_logged(["sh", "-c", "echo no route to host; exit 3"], log=log)


def test_absent_jars_name_the_command_that_fetches_them(tmp_path):
    delta, s3 = [[str(tmp_path / name) for name in jars.digests()] for jars in (DELTA, S3)]
    assert absent_jars([*delta, "s3://bucket/x.jar"]) == delta
    assert how_to_get(delta).startswith("Run: headrace setup (or, where Spark has Delta itself, write connectors: []")
    assert how_to_get([*delta, *s3]).startswith("Run: headrace setup --s3 (")
    kafka = [f"var/jars/{file}" for file in KAFKA.digests()]
    assert how_to_get(kafka) == "Run: headrace setup --kafka"
    assert how_to_get([*s3, *kafka]) == "Run: headrace setup --s3 --kafka"
    assert "mend the profile" in how_to_get([*delta, "/opt/our-own.jar"])
