"""Threads that user code leaves running when a command has ended."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.jobs.home import PYTHONPATH, Home

PIPELINE = """\
import threading

from tests.jobs.purchases import pipeline

threading.Thread(target=threading.Event().wait, name="metrics").start()
"""


SYNCED = """\
from pathlib import Path

from headrace.storage.schemes import _sync_all
from tests.jobs.purchases import pipeline

_sync_all([Path(__file__), Path(__file__).parent])
"""


def explained(tmp_path, code):
    """Return the command that explains a job with this code, when it has ended."""
    home = Home(tmp_path)
    (tmp_path / "threaded.py").write_text(code)
    home.configure({"pipeline": "threaded:pipeline"})
    line = [sys.executable, "-c", "from headrace.cli.application import main; main()", "explain", "purchases"]
    environment = {**os.environ, "HEADRACE_HOME": str(tmp_path), "PYTHONPATH": PYTHONPATH}
    return subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=300)


def test_thread_of_user_code_keeps_no_command(tmp_path):
    ended = explained(tmp_path, PIPELINE)
    assert ended.returncode == 0
    assert "lines_by_item" in ended.stdout
    assert "user code has left threads running (metrics)" in ended.stderr


def test_kept_threads_of_the_engine_are_no_ones(tmp_path):
    ended = explained(tmp_path, SYNCED)
    assert (ended.returncode, ended.stderr) == (0, "")
