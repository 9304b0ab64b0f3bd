"""State of a job at one checkpoint, read without a JVM.

Versions of tables come from `checkpoints`, never from the tables' latest versions: a table may be ahead of the last checkpoint.
Conditions are passed to the scan of a table, which skips files by their statistics; DuckDB then picks the last row of each
entry. pyarrow's datasets and pandas are not imported: their import takes longer than the rest of `headrace state get`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.commit.branch_refusals import refuse_without_state
from headrace.commit.checkpoint import Checkpoint
from headrace.commit.erased_checkpoints import refuse_purged
from headrace.commit.lineage import Lineage
from headrace.commit.log import CheckpointLog
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.readers.job_ttl import AGE_COLUMNS, JobTtl
from headrace.readers.query import Rows, ask_once, reading
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.last_rows import last_rows_sql, last_values_sql
from headrace.tables.predicate import Conditions
from headrace.tables.schemas import ALL_TABLES, KEYED_STATE
from headrace.tables.store import Snapshot
from headrace.tables.stores import table_store
from headrace.tables.view import TableView


class JobAtCheckpoint:
    """State of a job at one checkpoint.

    `at` is a checkpoint id, the name of a savepoint, the time of a commit, or None for the last checkpoint. `as_of`, in place of
    it, is a time by the watermark: the last checkpoint whose watermark is at or before it. Entries that have expired by the TTL
    that the job declares now are hidden, unless `with_expired` (`JobTtl`). Raises `ConfigError` when the job has no checkpoint
    yet, `at` or `as_of` names none, or both are given. All reading methods raise `StorageError` when the files of an old checkpoint are gone.
    """

    def __init__(
        self, config: JobConfig, at: int | str | None = None, *, as_of: str | None = None, with_expired: bool = False
    ) -> None:
        """Read the list of checkpoints and resolve `at` or `as_of`."""
        if at is not None and as_of is not None:
            msg = "give --at (the time of a commit) or --as-of (a time by the watermark), not both"
            raise ConfigError(msg)
        self.config = config
        self.log = CheckpointLog(config.job_folder, config.storage_options)
        self.checkpoint = self.log.resolve(config, at) if as_of is None else self.log.resolve_as_of(config, as_of)
        refuse_purged(self.log.checkpoints, self.checkpoint.checkpoint_id)
        refuse_without_state(config, self.checkpoint)
        self.ttl = JobTtl(config, self.log, self.checkpoint, is_now=at is None and as_of is None)
        self.with_expired = with_expired

    @property
    def lineage(self) -> Lineage:
        """Line of checkpoints that leads to this one, without checkpoints that restores have undone."""
        return self.log.lineage.to(self.checkpoint)

    def snapshot(self, uri: str, version: int | None) -> Snapshot:
        """Open a table at a version; None for the latest one."""
        store = table_store(uri, self.config.storage_options)
        return store.latest() if version is None else store.at(version)

    def changes(
        self,
        name: str,
        conditions: Conditions = (),
        *,
        columns: Sequence[str] | None = None,
        at: Checkpoint | None = None,
    ) -> Any:
        """Return the rows of a state table at this checkpoint, or at checkpoint `at`, as an Arrow stream that can be read once.

        A table that the checkpoint does not record is empty. Raises `StorageError` when its files are gone.
        """
        table = ALL_TABLES[name]
        version = (self.checkpoint if at is None else at).versions.get(name)
        if version is None:
            return table.schema.empty_table().to_reader()
        uri = f"{self.config.job_folder}/{name}"
        with reading(uri, version):
            return TableView(table, self.snapshot(uri, version), conditions).stream(columns)

    def ranges(self, name: str) -> list[Conditions]:
        """Return conditions that divide the rows of a state table by key groups, into parts that fit into memory; one at least."""
        version = self.checkpoint.versions.get(name)
        if version is None:
            return [()]
        uri = f"{self.config.job_folder}/{name}"
        with reading(uri, version):
            view = TableView(ALL_TABLES[name], self.snapshot(uri, version))
            return [part.conditions for part in view.ranges(KeyGroupRange.all_of(self.checkpoint.max_parallelism))] or [
                ()
            ]

    def hidden_sql(self, name: str) -> str:
        """Return an SQL condition for the rows of a state table that readers must not show."""
        return self.ttl.dead_sql() if name == KEYED_STATE and not self.with_expired else "false"

    def live_sql(self, name: str, changes: str = "raw") -> str:
        """Return SQL for the live entries of a state table, over the relation `changes` with all its changes."""
        return last_rows_sql(changes, ALL_TABLES[name], unless=self.hidden_sql(name))

    def count_live(self, name: str, conditions: Conditions = ()) -> int:
        """Return the number of live entries of a state table, without entries that readers must not show."""
        table = ALL_TABLES[name]
        ages = AGE_COLUMNS if name == KEYED_STATE else ()
        entries = last_values_sql("raw", table, {age: age for age in ages}, unless=self.hidden_sql(name))
        columns = sorted({*table.entry, "checkpoint_id", "deleted", *ages} - {"key_group"})
        query = f"SELECT count(*) FROM ({entries})"  # noqa: S608 - our own names of columns, and a number
        return sum(
            int(ask_once(self.changes(name, [*conditions, *part], columns=columns), query, table=name).rows[0][0])
            for part in self.ranges(name)
        )

    def live_rows(
        self, name: str, conditions: Conditions, order: str, parameters: Sequence[Any] = (), *, columns: str = "*"
    ) -> Rows:
        """Return the live entries of a state table. `columns` and `order` (the end of the query) are SQL."""
        query = f"SELECT {columns} FROM ({self.live_sql(name)}) {order}"  # noqa: S608 - our own names
        return ask_once(self.changes(name, conditions), query, parameters, table=name)
