"""Intervals of the rows of a sink that differ between a job and its branch: those of the micro-batches that wrote them last.

Each version of the sink since the fork is compared with the one before, on both lineages, in the files that only one of them has:

    merge sinks     the last version that has written, changed or deleted a differing row's key; the two lineages may name two intervals
    append sinks    the intervals in which the two lineages have added another number of a differing row

A row that a promotion or a restore has changed since the fork, and that differs again, stands for all intervals since the fork: nobody knows
which of them it belongs to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from headrace.errors import StorageError
from headrace.log.checkpoint import Kind
from headrace.log.intervals import interval_of
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import ask, copy
from headrace.sources.interval import Interval
from headrace.storage.file_rows import rows_of_files
from headrace.storage.overlay import DELETED, own_rows
from headrace.storage.table import Snapshot
from headrace.tables.folder import JobFolder

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True, slots=True)
class DifferingRows:
    """Differing rows of a sink: the table `differing` of a connection, which has the columns of `key`, or all `columns` if that is empty."""

    connection: duckdb.DuckDBPyConnection
    sink: str
    key: Sequence[str]
    columns: Sequence[str]

    def intervals(self, live: JobAtCheckpoint, branch: JobAtCheckpoint) -> tuple[Interval, ...]:
        """Return the intervals of the rows, in order."""
        fork = branch.lineage.last_of(Kind.FORK)
        since = None if fork is None else fork.restored_from
        if since is None:
            return ()
        sides = [_Side(job, self.sink, since) for job in (live, branch)]
        try:
            written = self._written(sides)
        except StorageError:  # files of a version between were removed: nobody knows
            written = {None}
        every = {interval for side in sides for interval in side.intervals}
        return tuple(sorted(every if None in written else written - {None}, key=lambda own: (own.start, own.end)))  # type: ignore[arg-type]

    def _written(self, sides: Sequence[_Side]) -> set[Interval | None]:
        """Return the intervals of the rows; None for one that is not known."""
        steps = [(number, step) for number, side in enumerate(sides) for step in side.steps([*self.columns])]
        if not steps:
            return set()
        known = list(dict.fromkeys(step.interval for _, step in steps))
        parts = [
            _marked(rows, _side=side, _step=at, _sign=sign, _interval=known.index(step.interval))
            for at, (side, step) in enumerate(steps)
            for rows, sign in ((step.added, 1), (step.removed, -1))
        ]
        rows = pa.concat_tables(parts, promote_options="permissive")
        copy(self.connection, "moved", rows.to_reader(), table=self.sink)
        columns = _list([name for name in rows.schema.names if name != "_sign"])
        # A file that was rewritten has most of its rows in both versions.
        self.connection.execute(
            f"CREATE TABLE written AS SELECT {columns}, sum(_sign) AS _sign FROM moved GROUP BY {columns} HAVING sum(_sign) <> 0"  # noqa: S608 - quoted names
        )
        return {known[number] for (number,) in ask(self.connection, self._sql()).rows}

    @property
    def _named(self) -> Sequence[str]:
        return self.key or self.columns

    def _sql(self) -> str:
        """Return SQL for the numbers of the rows' intervals."""
        named = _list(self._named)
        same = " AND ".join(f"w.{_quoted(name)} IS NOT DISTINCT FROM d.{_quoted(name)}" for name in self._named)
        touched = f"SELECT * FROM written w WHERE EXISTS (SELECT 1 FROM differing d WHERE {same})"  # noqa: S608 - quoted names
        if self.key:
            return f"SELECT DISTINCT arg_max(_interval, _step) FROM ({touched}) GROUP BY _side, {named}"  # noqa: S608 - quoted names
        balance = "sum(if(_side = 0, _sign, -_sign))"
        return f"SELECT DISTINCT _interval FROM (SELECT _interval FROM ({touched}) GROUP BY _interval, {named} HAVING {balance} <> 0)"  # noqa: S608 - quoted names


@dataclass(frozen=True, slots=True)
class _Step:
    """Version of a sink: the interval of the micro-batch that wrote it, and the rows of the files that it has added and removed."""

    interval: Interval | None
    added: pa.Table
    removed: pa.Table


@dataclass(frozen=True, slots=True)
class _Side:
    """Sink of a job or of its branch, and what was written to it behind the checkpoint `since` of the job."""

    job: JobAtCheckpoint
    sink: str
    since: int

    @property
    def intervals(self) -> list[Interval]:
        """Return the intervals of the micro-batches since the fork."""
        later = (checkpoint for checkpoint in self.job.lineage.checkpoints if checkpoint.checkpoint_id > self.since)
        return [own for checkpoint in later if (own := interval_of(checkpoint)) is not None]

    def steps(self, columns: Sequence[str]) -> Iterator[_Step]:
        """Yield the versions that the lineage has written, in order."""
        uri = self.job.config.sinks[self.sink].table_path
        latest = self.job.snapshot(uri, None)
        # With those that a promotion or a restore has left behind: rows that it did not change are theirs.
        known: dict[int | None, Interval | None] = {c.checkpoint_id: interval_of(c) for c in self.job.log.checkpoints}
        commits = [
            (commit.version, known.get(commit.info.checkpoint_id))
            for commit in reversed(latest.history())
            if (commit.info.checkpoint_id or 0) > self.since and not commit.keeps_rows
        ]
        if not commits:
            return
        kept = [name for name in (*columns, DELETED) if name in own_rows(latest).schema.names]
        schema = pa.schema([own_rows(latest).schema.field(name) for name in kept])
        first = own_rows(self.job.snapshot(uri, commits[0][0] - 1)) if commits[0][0] else None
        tables = [first, *(own_rows(self.job.snapshot(uri, version)) for version, _ in commits)]
        for (before, after), (_, interval) in zip(pairwise(tables), commits, strict=True):
            assert after is not None  # noqa: S101 - only the first may be
            yield _Step(interval, self._rows(after, before, schema), self._rows(before, after, schema))

    def _rows(self, table: Snapshot | None, other: Snapshot | None, schema: pa.Schema) -> pa.Table:
        """Return the rows of a table in files that another version of it lacks; all rows if files do not tell."""
        if table is None:
            return schema.empty_table()
        if not table.form.has_plain_files:
            return table.read(schema)
        others = set() if other is None else other.files()
        return rows_of_files(table, table.files() - others, schema, JobFolder.of(self.job.config))


def _marked(rows: pa.Table, **marks: int) -> pa.Table:
    """Return rows with columns of one value."""
    for name, value in marks.items():
        rows = rows.append_column(name, pa.repeat(pa.scalar(value), len(rows)))
    return rows


def _list(columns: Sequence[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'
