"""A home folder with one job and one cluster, which tests make invalid."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

JOB = """\
job: demo
pipeline: demo_pipeline:pipeline
sources:
  events:
    path: data/events
sinks:
  board:
    path: s3://lake/board
    mode: merge
"""
CLUSTER = "master: local[2]\nparallelism: 2\n"


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    for folder, name, text in (("jobs", "demo", JOB), ("clusters", "local", CLUSTER)):
        file = tmp_path / "conf" / folder / f"{name}.yaml"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def job_file(home) -> Callable[..., Path]:
    """Append to the job's file, or replace a piece of it."""

    def change(added: str = "", *, replace: tuple[str, str] = ("", "")) -> Path:
        file = home / "conf" / "jobs" / "demo.yaml"
        file.write_text(JOB.replace(*replace) + added if replace[0] else JOB + added)
        return file

    return change
