"""The page of the types of fields equals what the code decides."""

from __future__ import annotations

import subprocess
import sys

from tests.jobs.home import PROJECT


def test_page_of_types_equals_the_code():
    command = [sys.executable, PROJECT / "setup" / "types_page.py", "--check"]
    assert subprocess.run(command, check=False).returncode == 0, "run make reference"
