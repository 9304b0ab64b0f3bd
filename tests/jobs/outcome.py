"""The outcome of a job: the rows of its sinks and its live state, read without the engine's reader."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from headrace import clock
from headrace.config import JobConfig
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import STATE_TABLES

Row = tuple[Any, ...]
LIVE = ("keyed_state", "timers", "materializer_history", "quarantine")
_IDENTITY = ("operator", "key_group", "key")


@dataclass(frozen=True)
class Outcome:
    """The outcome, sorted: equal outcomes mean equal results."""

    sinks: dict[str, list[Row]]
    state: dict[str, list[Row]]
    watermark: int | None


def checkpoints(config: JobConfig) -> list[Checkpoint]:
    """All checkpoints of a job, in the order of their ids."""
    return CheckpointLog(JobFolder.of(config)).checkpoints


def outcome(config: JobConfig, *, with_expired: bool = False) -> Outcome:
    """Return the outcome of a job at its last checkpoint.

    Expired entries are left out: which of them are still stored depends on cleanup, and so on the way of running.
    """
    last = checkpoints(config)[-1]
    state = {table: live_rows(config, last, table, with_expired=with_expired) for table in LIVE}
    return Outcome({name: sink_rows(config, name) for name in config.sinks}, state, last.watermark)


def sink_rows(config: JobConfig, sink: str) -> list[Row]:
    """The rows of a sink, sorted."""
    table = _plain(_read(config, config.sinks[sink].path))
    names = sorted(table.column_names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True), key=repr)


def live_rows(config: JobConfig, at: Checkpoint, table: str, *, with_expired: bool = True) -> list[Row]:
    """Return the last row of each entry that is not removed, at a checkpoint."""
    identity = STATE_TABLES[table].entry
    entries: dict[Row, dict[str, Any]] = {}
    rows = _plain(_read(config, f"{config.job_folder}/{table}", at.versions[table])).to_pylist()
    for row in sorted(rows, key=lambda row: row["checkpoint_id"]):
        entries[tuple(row[name] for name in identity)] = row
    alive = [row for row in entries.values() if not row["deleted"]]
    if not with_expired and at.watermark is not None:
        alive = [row for row in alive if (row.get("expires_at") or at.watermark + 1) > at.watermark]
    names = sorted(set(STATE_TABLES[table].schema.names) - {"checkpoint_id", "deleted"})
    return sorted((tuple(row[name] for name in names) for row in alive), key=repr)


def values_of(config: JobConfig, state: str) -> dict[str, Any]:
    """The live values of a state by key, decoded."""
    names = sorted(set(STATE_TABLES["keyed_state"].schema.names) - {"checkpoint_id", "deleted"})
    rows = [dict(zip(names, row, strict=True)) for row in live_rows(config, checkpoints(config)[-1], "keyed_state")]
    return {json.loads(row["key"]): json.loads(row["value"]) for row in rows if row["state"] == state}


def assert_well_formed(config: JobConfig) -> None:
    """Assert what holds for any job at rest: ids grow, by more than one only for a restore.

    Versions exist and never go back.

    The line of a promotion goes back to its fork, through checkpoints that have no versions.
    """
    line = checkpoints(config)
    assert line[0].kind is Kind.INITIAL
    for before, after in itertools.pairwise(line):
        step = after.checkpoint_id - before.checkpoint_id
        if not after.has_state:
            assert step >= 1
            assert after.parent_id in {
                checkpoint.checkpoint_id for checkpoint in line if checkpoint.checkpoint_id < after.checkpoint_id
            }
            continue
        assert after.parent_id == before.checkpoint_id
        assert step == 1 or (step > 1 and after.kind is Kind.RESTORE)
        assert all(after.versions[name] >= version for name, version in before.versions.items())
        assert after.watermark is not None or before.watermark is None or after.kind is Kind.RESTORE
    for name in STATE_TABLES:
        table = _table(config, f"{config.job_folder}/{name}")
        assert table.version() >= line[-1].versions[name]
        versions = [entry["version"] for entry in table.history()]
        oldest = (
            versions[-1] if any(checkpoint.kind is Kind.VACUUM for checkpoint in line) else 0
        )  # vacuum cuts logs off
        assert versions == list(range(table.version(), oldest - 1, -1)), f"{name} has a gap in its versions"


def _read(config: JobConfig, uri: str, version: int | None = None) -> pa.Table:
    return pa.RecordBatchReader.from_stream(_table(config, uri, version).scan()).read_all()


def _table(config: JobConfig, uri: str, version: int | None = None) -> DeltaTable:
    return DeltaTable(uri, version=version, storage_options=config.credentials)


def _plain(table: pa.Table) -> pa.Table:
    """Return times as milliseconds, and strings as strings."""
    for position, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            milliseconds = table[column.name].cast(pa.timestamp("ms", tz=column.type.tz)).cast(pa.int64())
            table = table.set_column(position, column.name, milliseconds)
    return table


def when_due(config: JobConfig) -> None:
    """Wait until the first waiting element is due: workers use the real clock."""
    due = checkpoints(config)[-1].work.due
    clock.sleep(max(0, (due or 0) - clock.now()) / 1000)
