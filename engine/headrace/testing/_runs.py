"""Runs of a job, or of a branch of it, on a virtual clock and without Spark; and what they have stored."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from headrace import clock, crash_points
from headrace.names import did_you_mean
from headrace.stream.stream import Pipeline
from headrace.testing._clocks import JobClock
from headrace.testing._memory_topic import MemoryTopic

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.config import JobConfig
    from headrace.log.checkpoint import Checkpoint
    from headrace.run.options import Event, RunReport


class JobRuns(ABC):
    """Runs of one job or branch, and its sinks, state tables and checkpoints."""

    pipeline: Pipeline
    clock: JobClock
    events: list[Event]
    topics: dict[str, MemoryTopic]

    @property
    @abstractmethod
    def config(self) -> JobConfig:
        """Return the configuration, for `headrace.commit` and the readers."""

    # ----------------------------------------------------------------------------------------------------------- runs

    def run(
        self, *, crash_at: str | None = None, budget_ends_at: str | None = None, **options: Any
    ) -> RunReport | None:
        """Run it once, as `headrace run` does, and return the report.

        `options` are those of the command: `max_batches`, `finish`, `end_of_input`, `mode`, `interval_start` (ms), ...

        With `crash_at` the process dies when the run reaches that place: everything written by then stays, and None is
        returned. The next run continues. Places are "ingest.after" (sources are read), "task.half" (a keyed task is
        done), "run.after", "commit.before", "commit.after", "publish.half", "publish.after" and the others of
        `headrace.crash_points.PLACES`; "task.half:2" is the second time. With `budget_ends_at` the run's time is over when it
        reaches that place: a keyed task stops within 256 records, and holds the rest for the next run. A run that does
        not reach the place runs to its end.

        Raises the error of `headrace.errors` that `headrace run` would end with, and `ValueError` for an unknown place.
        """
        for place in (crash_at, budget_ends_at):
            if place is not None:
                known("place", place.partition(":")[0], sorted(crash_points.PLACES))
        from headrace.local.tasks import LocalTasks
        from headrace.run.job_run import run_on
        from headrace.run.options import RunOptions

        asked = RunOptions(run_id=self._next_run(), **options)
        with self.on_its_clock(), self.crashing_at(crash_at), self._budget_ending_at(budget_ends_at):
            return run_on(LocalTasks(), self.config, asked, self.events.append, topics=self.topics)

    @abstractmethod
    def crashing_at(self, place: str | None) -> AbstractContextManager[None]:
        """Let the process die when the block reaches a place, as in `run`: what it wrote by then stays, and the block ends."""

    def on_its_clock(self) -> AbstractContextManager[None]:
        """Use the harness's clock for the length of a block, as runs do: for commands that a test calls by itself."""
        return clock.installed(self.clock)

    # ------------------------------------------------------------------------------------------------- what comes out

    def sink(self, name: str) -> list[Any]:
        """Return the records in a sink, in no particular order; none before the first run."""
        from headrace.plan.planner import plan_stages
        from headrace.testing._sink_records import records_of

        names = tuple(self.config.sinks[known("sink", name, self.config.sinks)].rename.items())
        return records_of(self.sink_table(name), plan_stages(self.pipeline).sinks[name].record, names)

    def sink_table(self, name: str) -> pa.Table:
        """Return the rows of a sink as they are stored; without columns before the first run."""
        from headrace.testing._sink_records import stored_rows

        sinks = self.config.sinks
        return stored_rows(sinks[known("sink", name, sinks)].table_path)

    def table(self, name: str) -> pa.Table:
        """Return the rows of a state table, such as "quarantine", "timers" or "keyed_state"."""
        from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS
        from headrace.testing._sink_records import stored_rows

        return stored_rows(f"{self.config.job_folder}/{known('table', name, [*ALL_TABLES, CHECKPOINTS])}")

    def live(self, name: str) -> list[dict[str, Any]]:
        """Return the live rows of a state table at the last checkpoint: those that no later row has replaced or removed."""
        from headrace.tables.folder import JobFolder

        version = self.facts[-1].versions[name]
        rows: list[dict[str, Any]] = JobFolder.of(self.config).view(name, version).live_rows()
        return rows

    @property
    def facts(self) -> Sequence[Checkpoint]:
        """Return the facts of all checkpoints, oldest first: `kind`, `watermark`, `sources`, `operators`, `metrics`, `note`, ..."""
        from headrace.log.log import CheckpointLog
        from headrace.tables.folder import JobFolder

        return CheckpointLog(JobFolder.of(self.config)).checkpoints

    # ---------------------------------------------------------------------------------------------------- private

    @abstractmethod
    def _next_run(self) -> str:
        """Return the id of the next run, and advance a clock that follows the input."""

    @contextmanager
    def _budget_ending_at(self, place: str | None) -> Iterator[None]:
        def end_budget() -> None:
            self.clock.advance(round(self.config.run.budget.total_seconds() * 1000) + 1)

        with crash_points.observed(at(place, end_budget)):
            yield


class PipelineBranch(JobRuns):
    """A branch of a harness's job: `run` runs the branch alone, and `sink`, `table` and `facts` are its own."""

    def __init__(self, job: JobRuns, name: str, settings: Mapping[str, str] | None = None) -> None:
        """Look at a branch that there is. `settings` replace values of its own in its runs."""
        self.pipeline, self.clock, self.events, self.topics = job.pipeline, job.clock, job.events, job.topics
        self.name = name
        self._job = job
        self._settings = dict(settings or {})

    @property
    def config(self) -> JobConfig:
        """Return the branch's configuration, with its own settings.

        Raises `ConfigError` when the branch was promoted or dropped.
        """
        from headrace.commit.branch_code import on_branch
        from headrace.config import with_settings

        config = on_branch(self._job.config, self.name)
        return with_settings(config, config.settings | self._settings) if self._settings else config

    def promote(self, *, allow_other_code: bool = False) -> Checkpoint:
        """Make the branch's state and results those of the job, as `headrace branch promote` does; the branch ends.

        Raises the errors of the command.
        """
        from headrace.edits.promote import promoting

        with self.on_its_clock(), promoting(self._job.config, self.name, "promotion") as promotion:
            return promotion.promote(allow_other_code=allow_other_code)

    def crashing_at(self, place: str | None) -> AbstractContextManager[None]:
        """Let the process die when the block reaches a place: what it wrote by then stays, of the branch and of the job."""
        return self._job.crashing_at(place)

    def _next_run(self) -> str:
        return f"{self.name}-{self._job._next_run()}"  # noqa: SLF001 - runs of a branch and of its job have one count


def at(place_and_visit: str | None, act: Callable[[], None]) -> Callable[[str], None]:
    """Return an observer that acts when a place is reached for the given time."""
    wanted, _, visit = (place_and_visit or "").partition(":")
    left = itertools.count(int(visit or 1), -1)

    def reached(place: str) -> None:
        if place == wanted and next(left) == 1:
            act()

    return reached


def known(what: str, name: str, names: Collection[str]) -> str:
    """Return the name. Raises `ValueError` when it is none of the names, and proposes a similar one."""
    if name in names:
        return name
    msg = f"there is no {what} '{name}'{did_you_mean(name, names)} (there are: {', '.join(names)})"
    raise ValueError(msg)
