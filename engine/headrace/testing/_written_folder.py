"""Job folder with rows and checkpoints that a test writes by itself, without a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.clock import Clock, now, unique_id
from headrace.commit.job_tables import JobTables
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.state.key_groups import key_group
from headrace.tables.changelog import stage_state
from headrace.tables.folder import JobFolder
from headrace.tables.schemas import STATE_TABLES

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by state table; each has some of the table's columns."""


class WrittenFolder:
    """Tables and checkpoints of a job as readers, checks and edits find them.

    folder = world.folder(rows={"keyed_state": [{"operator": "totals", "key": '"a"', "state": "sum", "value": "7"}]})
    folder.commit(rows={"keyed_state": [{"operator": "totals", "key": '"a"', "state": "sum", "deleted": True}]})
    assert folder.live("keyed_state") == []
    """

    def __init__(self, place: JobFolder, max_parallelism: int = 128, clock: Clock | None = None) -> None:
        """Create the tables, and the initial checkpoint. `clock` gives the times of checkpoints, by default the process's clock."""
        self.place = place
        """Where tables and checkpoints are."""
        self.max_parallelism = max_parallelism
        self._now = now if clock is None else clock.now
        self.log = CheckpointLog(place)
        """Log of the checkpoints."""
        self._tables = JobTables(place, "test", "test")
        self.versions = self._tables.create()
        """Versions of the state tables, which the next checkpoint names."""
        self.log.create()
        self.commit("initial")

    @property
    def last(self) -> Checkpoint:
        """Return the last checkpoint."""
        return self.log.checkpoints[-1]

    def commit(self, kind: Kind | str = "batch", *, rows: Rows | None = None, **facts: Any) -> Checkpoint:
        """Add rows to their tables, and a checkpoint with these facts to the log; return it.

        A row without them gets its checkpoint, the group of its key, and `deleted` false; its other columns are null. A number in a
        column of times is milliseconds. Facts are fields of a checkpoint, such as `watermark`, `metrics` and `note`: others are
        those of a checkpoint that continues the last one, made now. Raises `ValueError` for an unknown kind.
        """
        self.write(rows or {})
        last = self.log.last
        defaults = {
            "checkpoint_id": self._next_id,
            "run_id": f"run-{self._next_id}",
            "attempt_id": "test",
            "max_parallelism": self.max_parallelism,
            "versions": dict(self.versions),
            "committed_at": self._now(),
            "incarnation": 1,
            "parent_id": None if last is None else last.checkpoint_id,
            "watermark": None if last is None else last.watermark,
        }
        checkpoint = Checkpoint(kind=Kind(kind), **{**defaults, **facts})
        self.log.append(checkpoint, None)
        return checkpoint

    def write(self, rows: Rows, *, whole: bool = False) -> None:
        """Write rows that the next checkpoint names: besides those of the tables, or as their `whole` content, as a compaction does."""
        for name, new in rows.items():
            label = f"{self._next_id:010d}-{unique_id()}.parquet"
            content = state_rows(name, new, self._next_id, self.max_parallelism)
            staged = [stage_state(self.place, name, label, content)] if new else []
            if whole:
                self.versions[name] = self._tables.replace(name, staged, self.versions[name])
            else:
                self.versions = self._tables.prepare({name: staged}, self.versions)

    def live(self, table: str) -> list[dict[str, Any]]:
        """Return the live rows of a state table at the last checkpoint."""
        rows: list[dict[str, Any]] = self.place.view(table, self.last.versions[table]).live_rows()
        return rows

    @property
    def _next_id(self) -> int:
        return 0 if self.log.last is None else self.log.last.checkpoint_id + 1


def state_rows(table: str, rows: Sequence[Mapping[str, Any]], checkpoint_id: int, max_parallelism: int) -> pa.Table:
    """Return rows in the types of a state table, with defaults for what they lack; see `WrittenFolder.commit`."""
    schema = STATE_TABLES[table].schema
    empty = {**dict.fromkeys(schema.names), "checkpoint_id": checkpoint_id, "deleted": False}

    def filled(row: Mapping[str, Any]) -> dict[str, Any]:
        group = key_group(str(row.get("key", "null")).encode(), max_parallelism)
        values = {**empty, "key_group": group, **row}
        return {name: _as_time(value, schema.field(name).type) for name, value in values.items()}

    return pa.Table.from_pylist([filled(row) for row in rows], schema)


def _as_time(value: Any, kind: pa.DataType) -> Any:
    """Return milliseconds in a column of times as a time, and other values as they are."""
    if pa.types.is_timestamp(kind) and isinstance(value, int):
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=value)
    return value
