"""The weather service of the flights, in a separate process."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from tests.jobs.home import PROJECT

_SAID_FIRST: Final = "weather at "


@contextmanager
def weather_service(*, port: int = 0) -> Iterator[str]:
    """Start the service and return its URL; the service ends with the block. A port of 0 takes a free one."""
    command = [sys.executable, "-m", "pipelines.flights.weather_service", "--port", str(port)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            output = process.stdout.readline()
            assert output.startswith(_SAID_FIRST), f"the weather service ended with {process.wait()}"
            yield output.removeprefix(_SAID_FIRST).strip()
        finally:
            process.terminate()
