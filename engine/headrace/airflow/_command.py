"""Run the command `headrace` for a task, and read the JSON that it prints."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.airflow._environment import task_environment
from headrace.airflow._failures import failure


class HeadraceCommand:
    """One `headrace` command with `--json`, as a process that can be ended."""

    def __init__(self, words: Sequence[str], home: Path, python: str | None = None) -> None:
        """`words` are the command's arguments without `--json`; `home` is the folder that holds `conf/`.

        The command is that of the environment of `python`, or of the Python that runs the task.
        """
        self._words = ["headrace", *words, "--json"]
        self._environment = {**os.environ, **task_environment(home, python)}
        self._process: subprocess.Popen[str] | None = None

    def answer(self, log: Any) -> dict[str, Any]:
        """Run it, pass its messages on to `log`, and return what it prints.

        Raises what `failure` returns when it ends with another exit code than 0.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            self._process = subprocess.Popen(
                self._words, env=self._environment, stdout=printed, stderr=subprocess.PIPE, text=True, encoding="utf-8"
            )
            with self._process as process:
                for line in process.stderr or ():
                    log.info(line.rstrip())
            printed.seek(0)
            return answer_of(printed.read(), self._process.returncode)

    def end(self) -> None:
        """End the process, if it runs. What it has committed stays, and nothing half done is left."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def answer_of(printed: str, exit_code: int) -> dict[str, Any]:
    """Return the JSON object that a command printed. Raises what `failure` returns unless the exit code is 0."""
    content: Any = None
    with contextlib.suppress(ValueError):
        content = json.loads(printed)
    if exit_code or not isinstance(content, dict):
        told = isinstance(content, dict) and {"error", "message"} <= content.keys()
        raise failure(exit_code, content if told else None)
    return content
