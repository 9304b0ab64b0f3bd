"""`headrace setup` in a project with some or all of its requirements."""

from __future__ import annotations

import hashlib

import pytest

from headrace.errors import ServiceError
from headrace.provision import jars as provision
from headrace.provision.class_archive import ClassArchive
from headrace.provision.jars import Jars


@pytest.fixture
def setting(home, monkeypatch):
    """A project, a Java 21, and one pinned jar that `fetch` brings."""
    (home / "java/bin").mkdir(parents=True)
    (home / "java/bin/java").write_text("#!/bin/sh\n")
    (home / "java/release").write_text('JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home / "java"))
    monkeypatch.setattr(Jars, "digests", lambda jars: {f"{jars.name}.jar": hashlib.sha256(b"jar").hexdigest()})
    fetched = []

    def fetch(jars, at, _):
        fetched.append(jars.name)
        (at / "var/jars").mkdir(parents=True, exist_ok=True)
        (at / f"var/jars/{jars.name}.jar").write_bytes(b"jar")

    monkeypatch.setattr(provision, "fetch", fetch)
    archived = home / "archived"
    monkeypatch.setattr(
        ClassArchive, "options", lambda _: "-XX:SharedArchiveFile=classes.jsa" if archived.exists() else ""
    )
    monkeypatch.setattr(ClassArchive, "make", lambda _: archived.touch())
    monkeypatch.setattr(ClassArchive, "size", lambda _: 178_000_000)
    return fetched


def test_setup_fetches_missing_jars(headrace, setting):
    result = headrace("setup")
    assert (result.exit_code, setting) == (0, ["delta"])
    assert "java        21 in java\n" in result.stdout
    assert "delta jars  1 in var/jars, fetched in 0 s, checksums hold\n" in result.stdout


def test_second_setup_has_nothing_to_do(headrace, setting):
    result = headrace("setup")
    assert "classes     178 MB in var/jars, archived in 0 s\n" in result.stdout
    result = headrace("setup")
    assert (result.exit_code, setting) == (0, ["delta"])
    assert "checksums hold: nothing to do" in result.stdout
    assert "classes     178 MB in var/jars: nothing to do" in result.stdout


@pytest.mark.parametrize("error", [ServiceError("Java made no archive"), OSError(28, "No space left on device")])
def test_setup_succeeds_without_an_archive_of_classes(headrace, setting, monkeypatch, error):
    def fail(_):
        raise error

    monkeypatch.setattr(ClassArchive, "make", fail)
    result = headrace("setup")
    assert (result.exit_code, setting) == (0, ["delta"])
    assert "classes     no archive: Spark starts without one\n" in result.stdout
    assert str(error) in result.stderr


def test_s3_jars_are_fetched_when_asked_for(headrace, setting):
    assert headrace("setup --s3").exit_code == 0
    assert setting == ["delta", "s3"]
