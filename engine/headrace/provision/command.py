"""Run an external command, with its output in a log file."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.errors import ServiceError

_LAST_LINES = 30


def run_logged(
    command: Sequence[str], *, log: Path, environment: Mapping[str, str] | None = None, folder: Path | None = None
) -> None:
    """Run `command` in `folder`, write its output to `log`; raise `ServiceError` with the log's end when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as out:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            check=False,
        )
    if done.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-_LAST_LINES:])
        raise ServiceError(
            f"this command failed with exit code {done.returncode}:\n    {' '.join(command)}\n"
            f"Its last lines, of {log}:\n\n{tail}\n\n"
            "What was done before it stays. See to what the lines name (the network? the disk?), and start again."
        )
