"""`headrace setup` in a project with some or all of its requirements."""

from __future__ import annotations

import hashlib

import pytest

from headrace.provision import jars as provision
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
    return fetched


def test_setup_fetches_missing_jars(headrace, setting):
    result = headrace("setup")
    assert (result.exit_code, setting) == (0, ["delta"])
    assert "java        21 in java\n" in result.stdout
    assert "delta jars  1 in var/jars, fetched in 0 s, checksums hold\n" in result.stdout


def test_second_setup_has_nothing_to_do(headrace, setting):
    headrace("setup")
    result = headrace("setup")
    assert (result.exit_code, setting) == (0, ["delta"])
    assert "checksums hold: nothing to do" in result.stdout


def test_s3_jars_are_fetched_when_asked_for(headrace, setting):
    assert headrace("setup --s3").exit_code == 0
    assert setting == ["delta", "s3"]
