"""The job `purchases` on a disk in memory: its state, its sinks, and the effects of a killed process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.protocol import OpenJob, open_job, sinks_of
from headrace.config import JobConfig, RetentionConfig
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.declared import to_schemas
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of, sink_schemas
from headrace.sinks.sink import OutputFile
from headrace.storage.files import StagedFile
from headrace.storage.storage import Storage
from headrace.storage.table import ROW_KIND, Snapshot
from headrace.tables.changelog import stage_state
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import KEYED_STATE, STATE_TABLES, TIMERS
from headrace.testing._memory_disk import DiskCopy, MemoryDisk, memory_disk
from headrace.testing._memory_table import open_memory
from tests.jobs.home import PROJECT, Home
from tests.unit.support.crashes import Killed

open_memory()
BOARD, REMINDERS = "lines_by_item", "reminders"
RETENTION = 8 * 24 * 3_600_000
"""Longer than the job keeps what it does not need (ms)."""


@cache
def _purchases() -> JobConfig:
    with tempfile.TemporaryDirectory() as folder:
        return replace(Home(Path(folder)).config(), home=PROJECT)


def memory_config(disk: str) -> JobConfig:
    """Return the job with its state and its sinks on a disk of this name."""
    config = _purchases()
    sinks = {name: replace(sink, path=f"memory://{disk}/lake/{name}") for name, sink in config.sinks.items()}
    return replace(config, state=replace(config.state, root=f"memory://{disk}/state"), sinks=sinks)


class MemoryJob:
    """A job in memory, and its data readable without opening the job."""

    def __init__(self, name: str, *, retention_hours: int | None = None, **reminders: Any) -> None:
        """`reminders` is the sink's section of the job file."""
        config = memory_config(name)
        sinks = {**config.sinks, REMINDERS: replace(config.sinks[REMINDERS], **reminders)}
        self.config = replace(config, sinks=sinks)
        if retention_hours is not None:
            self.config = replace(self.config, retention=RetentionConfig(hours=retention_hours))
        self.disk: MemoryDisk = memory_disk(name)
        self._disk_name = name

    @property
    def log(self) -> CheckpointLog:
        return CheckpointLog(JobFolder(self.config.job_folder))

    @property
    def last(self) -> Checkpoint:
        last = self.log.last
        assert last is not None
        return last

    def open(self, run_id: str = "run", **options: Any) -> Any:
        return open_job(self.config, run_id, create=True, **options)

    def run(self, *customers: str) -> None:
        """Commit a micro-batch for each customer in one opening."""
        with self.open() as job:
            for customer in customers:
                commit_batch(job, customer)

    def copy(self) -> DiskCopy:
        """Return a copy of everything that the job has stored."""
        return DiskCopy(f"memory://{self._disk_name}")

    def sink(self, name: str = BOARD) -> Snapshot:
        return Storage(self.config.sinks[name].table_path).table().latest()

    def sink_rows(self, name: str, column: str) -> list[Any]:
        schema = to_schemas(sinks_of(self.config, self.log))[name][0]
        return sorted(self.sink(name).read(schema)[column].to_pylist())

    def published(self, name: str = BOARD) -> int | None:
        return self.sink(name).transaction(f"purchases/{name}")

    def version(self, table: str) -> int:
        return Storage(self.config.job_folder).table(table).latest().version

    def files(self, folder: str) -> set[str]:
        return Storage(self.config.job_folder).files(folder)

    def entries(self, at: Checkpoint | None = None) -> dict[str, list[Any]]:
        """Return the live entries of all state tables at a checkpoint, the last one by default."""
        versions = (at or self.last).versions
        views = {name: JobFolder(self.config.job_folder).view(name, version) for name, version in versions.items()}
        return {name: sorted(map(str, _without_id(view.live_rows()))) for name, view in views.items()}

    def content(self) -> tuple[Any, ...]:
        """Return the live state and the rows of both sinks."""
        return (
            self.entries(),
            self.sink_rows(BOARD, "customer"),
            self.sink_rows(REMINDERS, "customer"),
        )


def commit_batch(job: OpenJob, customer: str, kind: str = "+U", item: str = "apples") -> Checkpoint:
    """Commit a micro-batch: state and a timer of `customer`, who is the last customer of an item and gets a reminder."""
    files = {KEYED_STATE: [state_row(job, customer)], TIMERS: [timer_row(job, customer)]}
    return job.commit(Kind.BATCH, files=files, outputs={**board(job, customer, kind, item), **reminder(job, customer)})


def state_row(job: OpenJob, customer: str, *, deleted: bool = False) -> StagedFile:
    """Stage the state of a customer: the number of its checkpoint."""
    row = _entry(job, customer, deleted=deleted) | {"state": "spent", "value": None if deleted else str(job.next_id)}
    return _stage_state(job, KEYED_STATE, customer, [row])


def timer_row(job: OpenJob, customer: str) -> StagedFile:
    """Stage a timer of a customer."""
    row = _entry(job, customer) | {"domain": "event_time", "timestamp": 7_000_000}
    return _stage_state(job, TIMERS, customer, [row])


def board(
    job: OpenJob, customer: str, kind: str = "+U", item: str = "apples", sink: str = BOARD
) -> dict[str, list[OutputFile]]:
    """Stage a change of the merged sink."""
    line = {"item": item, "customer": customer, "bought": 1, "cents": 1, "in_basket": 1, "idle": False}
    rows = sink_rows_of(job, sink, [line]).append_column(ROW_KIND, pa.array([kind]))
    return _staged(sink, Storage(job.config.job_folder).stage(f"outputs/{sink}/{_name(job, customer)}", rows))


def reminder(job: OpenJob, customer: str) -> dict[str, list[OutputFile]]:
    """Stage a row of the append sink."""
    rows = sink_rows_of(job, REMINDERS, [{"customer": customer, "due": 1, "purchases": 1, "cents": 1}])
    return _staged(REMINDERS, Storage(job.config.sinks[REMINDERS].table_path).stage(_name(job, customer), rows))


def sink_rows_of(job: OpenJob, sink: str, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return rows in the types of a sink."""
    schema = sink_schemas(plan_of(job.config.code), job.config.appended)[sink][0]
    return pa.Table.from_pylist(list(rows), schema)


@contextmanager
def killed_at(disk: MemoryDisk, place: str, visit: int = 1) -> Iterator[None]:
    """Kill the process of a block at a place: it never accesses its disk again, not even to release the job.

    A place is one of `faults.PLACES`, or a step and a path of the disk.
    """
    visits, is_dead = 0, False

    def arrive(reached: str) -> None:
        nonlocal visits, is_dead
        if reached == place:
            visits += 1
            is_dead = is_dead or visits == visit
        if is_dead:
            raise Killed

    with disk.failing(lambda step, path: arrive(f"{step} {path}")), crash_points.observed(arrive):
        try:
            yield
        except Killed:
            return


@contextmanager
def unsynced(disk: MemoryDisk) -> Iterator[None]:
    """Lose all writes of a block at a power failure."""
    files, versions = dict(disk._synced_files), {path: dict(content) for path, content in disk._synced_versions.items()}
    yield
    disk._synced_files, disk._synced_versions = files, versions


@contextmanager
def places_of(disk: MemoryDisk, places: list[tuple[str, int]]) -> Iterator[None]:
    """Record where a block may be killed: each place, the first and all later times."""

    def arrive(reached: str) -> None:
        places.append((reached, 1 + sum(place == reached for place, _ in places)))

    def step(name: str, path: str) -> None:
        is_staged = name == "sync" and path.endswith(".parquet")  # under a name that no other attempt has
        if name in {"commit", "delete", "sync"} and not is_staged:
            arrive(f"{name} {path}")

    with disk.failing(step), crash_points.observed(arrive):
        yield


def _entry(job: OpenJob, customer: str, *, deleted: bool = False) -> dict[str, Any]:
    key = {"operator": "customers", "key_group": 1, "key": f'"{customer}"'}
    return {**key, "checkpoint_id": job.next_id, "deleted": deleted}


def _stage_state(job: OpenJob, table: str, customer: str, rows: Sequence[dict[str, Any]]) -> StagedFile:
    schema = STATE_TABLES[table].schema
    filled = pa.Table.from_pylist([{**dict.fromkeys(schema.names), **row} for row in rows], schema)
    return stage_state(JobFolder(job.config.job_folder), table, _name(job, customer), filled)


def _staged(sink: str, file: StagedFile) -> dict[str, list[OutputFile]]:
    return {sink: [OutputFile(file.path, file.rows, file.size)]}


def _name(job: OpenJob, customer: str) -> str:
    return f"{job.next_id}-{customer}-{job.attempt_id[-6:]}.parquet"


def _without_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name != "checkpoint_id"} for row in rows]
