"""Fake Java folders, and an environment without Java."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def java(tmp_path) -> Callable[[str, int], Path]:
    """Make a fake Java home of some version below `tmp_path`; its `java` prints its arguments."""

    def make(name: str, version: int) -> Path:
        folder = tmp_path / name
        (folder / "bin").mkdir(parents=True)
        (folder / "bin" / "java").write_text('#!/bin/sh\necho "$@"\n')
        (folder / "bin" / "java").chmod(0o755)
        (folder / "release").write_text(f'JAVA_VERSION="{version}.0.1"\n')
        return folder

    return make


@pytest.fixture
def no_java(monkeypatch) -> None:
    """Remove every Java from the environment."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "")
