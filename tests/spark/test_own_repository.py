"""Jobs whose code is found through the job's home and the profile's `py_files`, from any current folder."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from headrace.commit.verify import verify
from headrace.edits.compact import compact
from headrace.edits.restore import restore, savepoint
from tests.jobs.home import LOCAL, PROJECT
from tests.jobs.outcome import sink_rows
from tests.jobs.own_repository import BILLS, own_home


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Change to a folder that has nothing to do with the project."""
    monkeypatch.setattr(sys, "path", sys.path[:])
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_every_command_finds_code_in_home(run, tmp_path, elsewhere):
    home = own_home(tmp_path / "project", "corner_shop")
    run(home)
    config = home.config()
    assert sink_rows(config, "bills") == BILLS
    savepoint(config, "kept", "why", "run")
    assert compact(config, "run") is not None
    restore(config, "kept", "why", "run")
    run(home)
    assert all(finding.ok for finding in verify(config))
    assert sink_rows(config, "bills") == BILLS


@pytest.mark.slow
def test_run_ships_py_files(tmp_path, elsewhere):
    home = own_home(tmp_path / "project", "packed_shop", LOCAL, packed=True)
    environment = {**os.environ, "HEADRACE_HOME": str(home.folder), "PYTHONPATH": str(PROJECT / "engine")}
    line = [sys.executable, "-c", "from headrace.cli import main; main()", "run", "packed_shop"]
    ran = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr
    assert sink_rows(home.config(), "bills") == BILLS
