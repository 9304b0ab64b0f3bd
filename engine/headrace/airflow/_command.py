"""Run the command `headrace` for a task, and read the JSON that it prints."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace import errors
from headrace.airflow._environment import task_environment
from headrace.airflow._failures import failure

_NAMES = [
    name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, errors.HeadraceError)
]
_ERROR = re.compile(rf"^({'|'.join(_NAMES)}): (.*)", re.MULTILINE | re.DOTALL)


class HeadraceCommand:
    """One `headrace` command, as a process that a task can end."""

    def __init__(self, words: Sequence[str], home: Path, python: str | None = None) -> None:
        """Store the command. `words` are its arguments; `home` is the folder that holds `conf/`.

        Uses the command of the environment of `python`, by default the Python that runs the task.
        """
        self._words = ["headrace", *words]
        self._environment = {**os.environ, **task_environment(home, python)}
        self._process: subprocess.Popen[str] | None = None

    def answer(self, log: Any) -> dict[str, Any]:
        """Run the command with `--json`, pass its messages to `log`, and return its output.

        Raises the exception of `failure` unless the exit code is 0.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            with self._started("--json", stdout=printed, stderr=subprocess.PIPE) as process:
                for line in process.stderr or ():
                    log.info(line.rstrip())
            printed.seek(0)
            return answer_of(printed.read(), process.returncode)

    def shown(self, log: Any) -> tuple[int, dict[str, Any] | None]:
        """Run the command, pass its output to `log`, and return its exit code, with `error` and `message` if it printed them."""
        with self._started(stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            lines = []
            for line in process.stdout or ():
                log.info(line.rstrip())
                lines.append(line)
        return process.returncode, error_of("".join(lines)) if process.returncode else None

    def _started(self, *options: str, stdout: Any, stderr: int) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [*self._words, *options], env=self._environment, stdout=stdout, stderr=stderr, text=True, encoding="utf-8"
        )
        return self._process

    def end(self) -> None:
        """End the process if it runs. Its commits stay, and it leaves nothing half done."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def answer_of(printed: str, exit_code: int) -> dict[str, Any]:
    """Return the JSON object that a command printed. Raises the exception of `failure` unless the exit code is 0."""
    content: Any = None
    with contextlib.suppress(ValueError):
        content = json.loads(printed)
    if exit_code or not isinstance(content, dict):
        has_error = isinstance(content, dict) and {"error", "message"} <= content.keys()
        raise failure(exit_code, content if has_error else None)
    return content


def error_of(printed: str) -> dict[str, Any] | None:
    """Return `error` and `message` of the error that a command printed; None if it printed none."""
    error = _ERROR.search(printed)
    return None if error is None else {"error": error[1], "message": error[2].strip()}
