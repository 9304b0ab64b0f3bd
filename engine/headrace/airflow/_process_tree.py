"""Tree of processes that a task has started."""

from __future__ import annotations

import contextlib
from subprocess import Popen

import psutil


def kill_descendants(process: Popen[str] | None) -> None:
    """Kill every process that `process` has started, directly or not; do not kill `process` itself."""
    if process is None or process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
