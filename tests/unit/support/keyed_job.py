"""A job of one keyed operator whose code changes between runs, with state stored by hand (in memory)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace import KeyedProcessFunction, Pipeline, Struct, Timestamp, ValueState
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.edits.migrate import settle_schemas
from headrace.execution.drain import PROCESS
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.plan.planner import plan_stages
from headrace.plan.stages import Plan
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, KEYED_STATE, MATERIALIZER_HISTORY
from headrace.testing._memory_disk import forget_disk
from headrace.testing._written_folder import state_rows
from tests.jobs import wake_ups
from tests.jobs.home import Home, merged

KeyOf = str | Callable[[Any], Any]
Row = tuple[str, str, dict[str, Any]]
"""Table, key, and further columns."""

LIVE_COLUMNS: dict[str, dict[str, Any]] = {
    BUFFERED_REQUESTS: {"block_id": PROCESS, "record": "{}"},
    ASYNC_REQUESTS: {"status": "pending", "attempts": 1, "cost_ms": 0, "element": "{}"},
    MATERIALIZER_HISTORY: {"row": "{}", "row_kind": "+I", "inserted_at": 0},
}
"""What each live row of these tables has, if a test does not say otherwise: readers refuse a row without it."""


class Event(Struct, frozen=True):
    """An input record."""

    at: Timestamp
    tail: str
    flight: int
    nickname: str | None = None


class Legs(KeyedProcessFunction[Event, Event]):
    """Stores a number."""

    legs = ValueState("legs", int)

    async def process(self, record: Event, ctx: Any, /) -> None:
        """Do nothing: rows are stored by hand."""


class Snoozes(KeyedProcessFunction[Event, Event]):
    """Declares the state of the job's own operator."""

    snoozes = ValueState("snoozes", int)

    async def process(self, record: Event, ctx: Any, /) -> None:
        """Do nothing: rows are stored by hand."""


def plan_by(*keys: KeyOf, operator: str = "legs", function: Any = None) -> Plan:
    """Return the plan of a pipeline whose operator has this key."""
    events = Pipeline("p").source("events", Event, event_time="at")
    return plan_stages(events.key_by(*keys).process(operator, function or Legs()).sink("calls"))


class KeyedJob:
    """The job, and its stored state."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.home = Home(folder, wake_ups.JOB)
        self._disk = f"memory://{folder.name}"
        forget_disk(folder.name)
        self.configure(**changes)
        self._names = itertools.count()

    def configure(self, **changes: Any) -> None:
        """Write the job's file, with these keys changed."""
        places = {"state": {"root": f"{self._disk}/state"}, "sinks": {"calls": {"path": f"{self._disk}/lake/calls"}}}
        self.home.configure(merged(places, changes))

    @property
    def config(self) -> JobConfig:
        return self.home.config()

    @property
    def log(self) -> CheckpointLog:
        return CheckpointLog(JobFolder(self.config.job_folder))

    @property
    def last(self) -> Checkpoint:
        last = self.log.last
        assert last is not None
        return last

    def run(self, code: Plan, *rows: Row, operator: str = "legs", **fields: Any) -> Checkpoint:
        """Start as a run does, and commit one micro-batch that stores `rows`."""
        with open_job(self.config, "run", create=True) as job:
            settle_schemas(job, code)
            if rows or fields:
                self.commit(job, operator, rows, **fields)
            return job.last

    def commit(self, job: OpenJob, operator: str, rows: tuple[Row, ...], **fields: Any) -> Checkpoint:
        files: dict[str, list[Any]] = {}
        for table, key, columns in rows:
            live = {} if columns.get("deleted") else LIVE_COLUMNS.get(table, {})
            entry = {**live, "operator": operator, "key": key, **columns}
            content = state_rows(table, [entry], job.next_id, job.last.max_parallelism)
            files.setdefault(table, []).append(job.stage(table, str(next(self._names)), content))
        return job.commit(Kind.BATCH, files=files, **fields)

    def live(self, table: str = KEYED_STATE, at: Checkpoint | None = None) -> list[dict[str, Any]]:
        """Return the live rows of a table, by operator and key."""
        version = (at or self.last).versions[table]
        rows = JobFolder(self.config.job_folder).view(table, version).live_rows()
        return sorted(rows, key=lambda row: (row["operator"], row["key"]))

    def kinds(self) -> list[str]:
        return [checkpoint.kind.value for checkpoint in self.log.checkpoints]


def value(key: str, number: int) -> Row:
    """Return a row of the state."""
    return KEYED_STATE, key, {"state": "legs", "value": str(number)}
