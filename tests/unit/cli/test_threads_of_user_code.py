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


def test_thread_of_user_code_keeps_no_command(tmp_path):
    home = Home(tmp_path)
    (tmp_path / "threaded.py").write_text(PIPELINE)
    home.configure({"pipeline": "threaded:pipeline"})
    line = [sys.executable, "-c", "from headrace.cli.application import main; main()", "explain", "purchases"]
    environment = {**os.environ, "HEADRACE_HOME": str(tmp_path), "PYTHONPATH": PYTHONPATH}
    ended = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0
    assert "lines_by_item" in ended.stdout
    assert "user code has left threads running (metrics)" in ended.stderr
