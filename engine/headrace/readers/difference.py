"""Differences between two checkpoints, in state tables and sinks.

Only keys that were written after the last common checkpoint can differ, so only these are compared. After a compaction, or
another rewriting of whole tables, all entries are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from headrace.errors import ConfigError, StorageError
from headrace.log.checkpoint import Kind
from headrace.log.declared import to_schemas
from headrace.readers.changed_intervals import DifferingRows
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.query import ask, connect, copy, reading, unreadable
from headrace.sources.interval import Interval
from headrace.storage.predicate import Conditions, Within
from headrace.storage.refusals import reason_of
from headrace.storage.table import Snapshot, TableMissingError
from headrace.tables.live_rows import last_rows
from headrace.tables.schemas import STATE_TABLES, StateTable
from headrace.tables.view import entries_of

if TYPE_CHECKING:
    import duckdb


def sink_version(job: JobAtCheckpoint, uri: str) -> int | None:
    """Return the last version of a sink before the first publication after the checkpoint; None means the latest version.

    Raises `StorageError` when the sink's log cannot be read.
    """
    last = job.log.last
    if last is None or job.checkpoint.checkpoint_id >= last.checkpoint_id:
        return None
    try:
        commits = job.snapshot(uri, None).history()
    except TableMissingError:
        return None
    except StorageError as error:
        raise unreadable(uri, None, reason_of(error)) from error
    later = [commit.version for commit in commits if (commit.info.checkpoint_id or 0) > job.checkpoint.checkpoint_id]
    return max(min(later) - 1, 0) if later else None


_LAST_ID: Final = 2**63 - 1
_ADDS_ROWS_ONLY: Final = frozenset(
    {
        *(Kind.INITIAL, Kind.BATCH, Kind.FORK, Kind.PROMOTION, Kind.REQUEUE, Kind.RESTORE, Kind.EDIT),
        *(Kind.SAVEPOINT, Kind.SAVEPOINT_DROP, Kind.VACUUM, Kind.ACKNOWLEDGEMENT),
    }
)
"""Kinds of checkpoints that change no existing rows of the state tables; they may add rows."""

_STAMPS: Final = ("last_access", "expires_at", "ttl_ms")
"""Columns of the TTL: an entry that differs only in these was renewed, not changed."""

_NOT_COMPARED: Final = ("checkpoint_id", "deleted")
_KEY: Final = ["operator", "key"]


class Change(StrEnum):
    """Kind of difference between an entry at the second checkpoint and at the first one."""

    ADDED = "added"
    GONE = "gone"
    CHANGED = "changed"
    RENEWED = "renewed"


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """Entry of a state table, or row of a sink, that differs.

    `name` has the columns that identify it; `before` and `after` have the other columns, or None where it does not exist.
    """

    change: Change
    name: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None

    @property
    def fields(self) -> list[str]:
        """Columns that differ; empty unless the row exists at both checkpoints."""
        if self.before is None or self.after is None:
            return []
        return [column for column, value in self.after.items() if self.before[column] != value]


@dataclass(frozen=True, slots=True)
class Counts:
    """Numbers of rows of a group that differ. `group` names operator and state, if the table has them; a sink is one group."""

    group: dict[str, str]
    rows: dict[Change, int]


@dataclass(frozen=True, slots=True)
class TableDifference:
    """Differences in one table: their numbers, and the first ones by name."""

    table: str
    is_sink: bool
    counts: tuple[Counts, ...]
    rows: tuple[ChangedRow, ...]
    intervals: tuple[Interval, ...] = ()
    """Intervals of a sink's rows that differ (`headrace.readers.changed_intervals`), if they were asked for."""


def differences(
    before: JobAtCheckpoint,
    after: JobAtCheckpoint,
    operator: str | None = None,
    limit: int = 20,
    *,
    names_intervals: bool = False,
) -> Iterator[TableDifference]:
    """Yield the tables that differ between two checkpoints: the state tables, then the sinks.

    The checkpoints are of a job, or of the job and a branch. Each table has at most `limit` rows. With `operator`, only its
    state is compared, and no sink. With `names_intervals`, the differences of sinks between a job and its branch name the intervals. Expired entries count where `before` and `after` have them (`with_expired`). Raises
    `StorageError` when the files of a checkpoint are gone.
    """
    for table in STATE_TABLES.values():
        difference = _state_difference(before, after, table, entries_of(operator), limit)
        if difference.counts:
            yield difference
    for name in () if operator else before.config.sinks:
        difference = _sink_difference(before, after, name, limit, names_intervals=names_intervals)
        if difference.counts:
            yield difference


def default_start(job: JobAtCheckpoint) -> int:
    """Return the id of the checkpoint before a job's checkpoint. Raises `ConfigError` for the first one."""
    earlier = job.lineage.before(job.checkpoint)
    if earlier is None:
        msg = f"checkpoint {job.checkpoint.checkpoint_id} is the first one: there is nothing to compare it with"
        raise ConfigError(msg)
    return earlier.checkpoint_id


def _state_difference(
    before: JobAtCheckpoint, after: JobAtCheckpoint, table: StateTable, conditions: Conditions, limit: int
) -> TableDifference:
    nothing = TableDifference(table.name, False, (), ())
    if _is_same_table(before, after, table.name):
        return nothing
    sides = {"before": before, "after": after}
    rows = _compared_rows(sides, table, conditions, _fork(before, after))
    if not any(map(len, rows.values())):
        return nothing
    connection = connect()
    values = [name for name in table.schema.names if name not in {*table.entry, *_NOT_COMPARED}]
    name = [column for column in table.entry if column != "key_group"]
    for side, job in sides.items():
        connection.register(f"{side}_rows", rows[side])
        live = (
            f"SELECT {_list([*name, *values])} FROM {side}_rows WHERE NOT deleted AND NOT {job.hidden_sql(table.name)}"  # noqa: S608 - our own names
        )
        connection.execute(f"CREATE TEMP VIEW {side} AS {live}")
    return _compare(connection, table.name, name, values, limit)


def _is_same_table(before: JobAtCheckpoint, after: JobAtCheckpoint, table: str) -> bool:
    """Return whether a state table has the same rows at both checkpoints, as far as its versions tell."""
    if _are_on_one_lineage(before, after):
        return before.checkpoint.versions.get(table) == after.checkpoint.versions.get(table)
    live, branch = (before, after) if before.config.branch is None else (after, before)
    fork = branch.lineage.last_of(Kind.FORK)
    if live.config.branch is not None or fork is None:
        return False
    origins = [checkpoint for checkpoint in live.log.checkpoints if checkpoint.checkpoint_id == fork.restored_from]
    begun_with = [origin.versions.get(table) for origin in (*origins, fork)]
    return begun_with == [job.checkpoint.versions.get(table) for job in (live, branch)]


def _are_on_one_lineage(before: JobAtCheckpoint, after: JobAtCheckpoint) -> bool:
    """Return whether both belong to the job itself, or to one branch: then equal versions are equal tables."""
    return before.config.branch == after.config.branch


def _fork(before: JobAtCheckpoint, after: JobAtCheckpoint) -> int | None:
    """Return the last checkpoint that both lineages share; None if one of them has rewritten a table since."""
    lineages = [[*job.lineage.newest_first()] for job in (before, after)]
    common = {checkpoint.checkpoint_id for checkpoint in lineages[0]} & {
        checkpoint.checkpoint_id for checkpoint in lineages[1]
    }
    if not _are_on_one_lineage(before, after):  # after the fork, an id is a different checkpoint on each lineage
        origins = {
            checkpoint.restored_from for lineage in lineages for checkpoint in lineage if checkpoint.kind is Kind.FORK
        }
        common &= {origin for origin in origins if origin is not None}
    fork = max(common, default=None)
    if fork is None:
        return None  # the job was restored to a checkpoint before the fork
    later = [checkpoint for lineage in lineages for checkpoint in lineage if checkpoint.checkpoint_id > fork]
    return fork if all(checkpoint.kind in _ADDS_ROWS_ONLY for checkpoint in later) else None


def _compared_rows(
    sides: Mapping[str, JobAtCheckpoint], table: StateTable, conditions: Conditions, fork: int | None
) -> dict[str, pa.Table]:
    """Return the last row of each entry by side, of deleted ones too: of all keys, or of those that were written after a fork.

    What was written before the fork is the same on both sides: it is read once.
    """
    if fork is None:
        return {side: job.last_changes(table.name, conditions) for side, job in sides.items()}
    since = [*conditions, Within("checkpoint_id", fork + 1, _LAST_ID)]
    written = {side: job.last_changes(table.name, since) for side, job in sides.items()}
    touched = pa.concat_tables([rows.select(_KEY) for rows in written.values()]).group_by(_KEY).aggregate([])
    if not len(touched):
        return {}
    until = [*conditions, Within("checkpoint_id", 0, fork)]
    former = sides["before"].last_changes(table.name, until, keys=touched["key"])
    former = former.join(touched, keys=_KEY, join_type="left semi").cast(table.schema)
    return {
        side: last_rows(pa.concat_tables([former, rows]), table, keeps_deleted=True) for side, rows in written.items()
    }


def _sink_difference(
    before: JobAtCheckpoint, after: JobAtCheckpoint, name: str, limit: int, *, names_intervals: bool
) -> TableDifference:
    snapshots = [_sink_at(job, job.config.sinks[name].table_path) for job in (before, after)]
    if _are_on_one_lineage(before, after) and snapshots[0].version == snapshots[1].version:
        return TableDifference(name, True, (), ())
    connection = connect()
    names = dict.fromkeys(column for snapshot in snapshots for column in snapshot.schema.names)
    written = _written_columns(before, name) | _written_columns(after, name) or {*names}
    columns = [column for column in names if column in written]  # others are not the job's
    for side, snapshot in zip(("before", "after"), snapshots, strict=True):
        with reading(snapshot.uri, snapshot.version, after.config.job):
            copy(connection, f"{side}_rows", snapshot.stream(), table=name)
        missing = "".join(f", NULL AS {_quoted(column)}" for column in columns if column not in snapshot.schema.names)
        connection.execute(f"CREATE VIEW {side} AS SELECT *{missing} FROM {side}_rows")  # noqa: S608 - quoted names
    key = _primary_key(after, name)
    values = [column for column in columns if column not in key]
    difference = _compare(connection, name, key, values, limit, is_sink=True)
    if not names_intervals or not difference.counts:
        return difference
    rows = DifferingRows(connection, name, key, columns)
    return replace(difference, intervals=rows.intervals(before, after))


def _sink_at(job: JobAtCheckpoint, uri: str) -> Snapshot:
    version = sink_version(job, uri)
    with reading(uri, version, job.config.job):
        return job.snapshot(uri, version)


def _primary_key(job: JobAtCheckpoint, sink: str) -> list[str]:
    """Return the primary key of a sink; empty for a sink in append mode, and for one that the job has not recorded."""
    recorded = job.checkpoint.sink_tables
    return [*recorded[sink].key] if sink in recorded else []


def _written_columns(job: JobAtCheckpoint, sink: str) -> set[str]:
    """Return the columns that a job writes to a sink; none for a sink that the job has not recorded."""
    recorded = job.checkpoint.sink_tables
    return {*to_schemas({sink: recorded[sink]})[sink][0].names} if sink in recorded else set()


def _compare(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    key: list[str],
    values: list[str],
    limit: int,
    *,
    is_sink: bool = False,
) -> TableDifference:
    """Compare the views `before` and `after`. Without a key, compare whole rows and their numbers of copies."""
    import duckdb

    name = key or values
    compared = values if key else []
    grouped = [] if is_sink else ["operator", *(["state"] if "state" in name else [])]
    try:
        connection.execute(f"CREATE TABLE differing AS {_differing_sql(name, compared, by_count=not key)}")
        groups = ", ".join(["_change", *map(_quoted, grouped)])
        counted = ask(connection, f"SELECT {groups}, sum(_times) FROM differing GROUP BY ALL ORDER BY ALL")  # noqa: S608
        rows = ask(connection, f"SELECT * EXCLUDE (_times) FROM differing ORDER BY {_list(name)} LIMIT ?", [limit])  # noqa: S608
    except duckdb.Error as error:
        raise unreadable(table, None, error) from error
    counts: dict[tuple[Any, ...], dict[Change, int]] = {}
    for change, *group, number in counted.rows:
        counts.setdefault(tuple(group), {})[Change(change)] = int(number)
    return TableDifference(
        table,
        is_sink,
        tuple(Counts(dict(zip(grouped, group, strict=True)), rows) for group, rows in sorted(counts.items())),
        tuple(_changed_row(row, name, compared) for row in rows.dicts()),
    )


def _differing_sql(name: list[str], compared: list[str], *, by_count: bool) -> str:
    """Return SQL for the rows that differ: `_change`, `_times`, the columns of `name`; `before.X` and `after.X` of other columns."""
    sides = " UNION ALL ".join(
        f"SELECT {_list(name)}, {number} AS _side, {_row(compared)} AS _row FROM {side}"  # noqa: S608 - quoted names
        for number, side in enumerate(("before", "after"))
    )
    lasting = [column for column in compared if column not in _STAMPS]
    same = " AND ".join(f"_old.{_quoted(c)} IS NOT DISTINCT FROM _new.{_quoted(c)}" for c in lasting) or "true"
    fields = "".join(
        f", _{age}.{_quoted(column)} AS {_quoted(f'{side}.{column}')}"
        for side, age in (("before", "old"), ("after", "new"))
        for column in compared
    )
    if by_count:
        change, times, differs = "if(_before < _after, 'added', 'gone')", "abs(_after - _before)", "_before <> _after"
    else:
        kept = f"if({same}, 'renewed', 'changed')"
        change = f"CASE WHEN _old IS NULL THEN 'added' WHEN _new IS NULL THEN 'gone' ELSE {kept} END"
        times, differs = "1", "_old IS DISTINCT FROM _new"
    return f"""
        SELECT {change} AS _change, {times} AS _times, {_list(name)}{fields}
        FROM (SELECT {_list(name)}, count(*) FILTER (_side = 0) AS _before, count(*) FILTER (_side = 1) AS _after,
                     any_value(_row) FILTER (_side = 0) AS _old, any_value(_row) FILTER (_side = 1) AS _new
              FROM ({sides}) GROUP BY {_list(name)})
        WHERE {differs}"""  # noqa: S608 - quoted names


def _changed_row(row: dict[str, Any], name: list[str], compared: list[str]) -> ChangedRow:
    change = Change(row["_change"])
    before, after = ({column: row[f"{side}.{column}"] for column in compared} for side in ("before", "after"))
    return ChangedRow(
        change,
        {column: row[column] for column in name},
        None if change is Change.ADDED else before,
        None if change is Change.GONE else after,
    )


def _row(columns: list[str]) -> str:
    """Return SQL that combines several columns to one value, which is never null."""
    return "{'_there': true" + "".join(f", {_text(column)}: {_quoted(column)}" for column in columns) + "}"


def _list(columns: list[str]) -> str:
    return ", ".join(map(_quoted, columns))


def _quoted(column: str) -> str:
    return '"' + column.replace('"', '""') + '"'


def _text(column: str) -> str:
    return "'" + column.replace("'", "''") + "'"
