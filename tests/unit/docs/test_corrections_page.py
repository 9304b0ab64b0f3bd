"""All commands of docs/corrections.md, in the order of the page and without Spark, print what the page shows."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from tests.jobs.home import PROJECT, PYTHONPATH
from tests.unit.support.doc_pages import blocks_of, shows

pytestmark = pytest.mark.long  # it plays a whole day of corrections, a minute

PROGRAMS = {
    "headrace": [sys.executable, "-c", "from headrace.cli import main; main()"],
    "python": [sys.executable],
}


@pytest.fixture
def project(tmp_path):
    """A project with the job `logbook`, and without data."""
    (tmp_path / "conf/jobs").mkdir(parents=True)
    shutil.copy(PROJECT / "conf/jobs/logbook.yaml", tmp_path / "conf/jobs")
    shutil.copytree(PROJECT / "conf/clusters", tmp_path / "conf/clusters")
    return tmp_path


def test_corrections_page_shows_real_outputs(project):
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH, "HEADRACE_HOME": str(project), "COLUMNS": "100"}
    for command, shown in (call for block in blocks_of("corrections") for call in block.calls):
        program, *words = shlex.split(command)
        if program == "export":
            environment |= dict(word.split("=", 1) for word in words)
            continue
        runner = ["--runner", "local"] if words[0] == "run" else []
        done = subprocess.run(
            [*PROGRAMS[program], *words, *runner],
            cwd=project,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert not done.stderr or program == "headrace", done.stderr
        assert not shown.strip() or shows(shown, done.stderr + done.stdout), f"$ {command}\n{done.stdout}"
