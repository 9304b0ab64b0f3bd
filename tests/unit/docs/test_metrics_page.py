"""The page of traces and metrics equals what the register gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.jobs.home import PROJECT


@pytest.mark.slow
def test_page_of_metrics_equals_the_register():
    command = [sys.executable, PROJECT / "setup" / "metrics_page.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run make reference"
