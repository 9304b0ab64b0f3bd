"""Runs a query in this process, as a separate job, and compares its output with SQL."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import pyarrow.parquet as pq

from headrace import SourceNode
from headrace.testing import PipelineHarness
from pipelines.nexmark.check import Differences, compare
from pipelines.nexmark.generator import START
from pipelines.nexmark.queries import load

SINK: Final = "result"
BY_WALL_CLOCK: Final = frozenset({"q12"})
"""Queries whose results depend on when a file is taken in."""

BETWEEN_BATCHES: Final = 4000
"""How far the clock moves between two micro-batches of such a query (ms)."""

BEGIN: Final = START + 365 * 86_400_000
"""When the first micro-batch begins: after every event, so no event is too far ahead (ms)."""

UNTIL_TIMERS: Final = 10_000
"""How far it moves before the last one (ms)."""


@dataclass(frozen=True)
class Setting:
    """How a query is run: tasks, backend, and rows between two watermarks. Each micro-batch takes a file of each source."""

    parallelism: int = 2
    backend: Literal["hashmap", "rocksdb", "delta"] = "hashmap"
    bucket: int = 50


class QueryRun:
    """A query in a harness, with the files of `inputs` (as `write_events` makes them) as its input."""

    def __init__(self, query: str, inputs: Path, setting: Setting) -> None:
        """Copy the files; do not run yet."""
        self.query = query
        self.harness = PipelineHarness(
            load(query),
            backend=setting.backend,
            parallelism=setting.parallelism,
            bucket=setting.bucket,
            files_per_batch=1,
            now=BEGIN,
        )
        self._taken_in: dict[str, int] = {}
        for name in sources(query):
            shutil.copytree(inputs / name, self._inputs / name, dirs_exist_ok=True)

    def run(self, *, crash_at: str | None = None) -> None:
        """Process all input, and end it. With `crash_at` the first run dies at that place (see `PipelineHarness`)."""
        if crash_at is not None:
            self.harness.run(crash_at=crash_at)
        elif self.query in BY_WALL_CLOCK:
            self.take_in()
        self.end()

    def take_in(self) -> None:
        """Process the input that can be processed while more may follow."""
        if self.query not in BY_WALL_CLOCK:
            self.harness.run()
            return
        for file in sorted((self._inputs / "bids").iterdir()):
            self._taken_in[file.name] = self.harness.clock.now()
            self.harness.run(max_batches=1)
            self.harness.clock.advance(BETWEEN_BATCHES)

    def end(self) -> None:
        """End the input, after all windows of the wall clock have ended.

        Raises `RuntimeError` if the run stops earlier, for example because the process was told to end.
        """
        self.harness.clock.advance(UNTIL_TIMERS)
        report = self.harness.run(end_of_input=True)
        if report is None or report.stopped_because != "ended":
            msg = f"the run of {self.query} stopped before the input had ended: {report}"
            raise RuntimeError(msg)

    def input_rows(self) -> int:
        """Return the number of rows of the sources."""
        return sum(pq.read_metadata(file).num_rows for file in self._inputs.rglob("*.parquet"))

    def differences(self) -> Differences:
        """Compare the sink with SQL over the same files."""
        return compare(self.query, self.harness.sink_table(SINK), self._inputs, self._taken_in)

    @property
    def _inputs(self) -> Path:
        return self.harness.folder / "input"


def sources(query: str) -> list[str]:
    """Return the names of the sources that a query reads."""
    return [operator.name for operator in load(query).operators if isinstance(operator, SourceNode)]
