"""Runs of a job without Spark: in this process, in worker processes, or as a driver that can be killed.

    python -m tests.jobs.local_runs HOME OPTIONS

OPTIONS are those of `RunOptions`, as JSON.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec

from headrace.config import load_job
from headrace.errors import HeadraceError
from headrace.local.runner import run
from headrace.run.options import Event, RunOptions, RunReport
from tests.jobs.home import Home

IN_WORKERS = 0
HERE = sys.maxsize
"""Rows of a slice from which on tasks run in worker processes."""


class LocalRuns:
    """Runs jobs without Spark and remembers their events."""

    def __init__(self, rows_worth_workers: int = HERE) -> None:
        self.events: list[Event] = []
        self._rows_worth_workers = rows_worth_workers

    def __call__(self, home: Home, **options: Any) -> RunReport:
        """Run the home's job once; `options` are those of `RunOptions`."""
        self.events.clear()
        asked = RunOptions(**{"run_id": "test", **options})
        return run(home.config(), asked, self.events.append, rows_worth_workers=self._rows_worth_workers)


def main(home: str, options: str) -> int:
    config = load_job("purchases", Path(home))
    try:
        run(config, msgspec.json.decode(options, type=RunOptions), lambda _: None)
    except HeadraceError as error:
        print(error, file=sys.stderr, flush=True)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
