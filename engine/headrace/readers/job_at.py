"""State of a job at one checkpoint, and the operators that it knows.

Versions of tables come from `checkpoints`, never from the tables' latest versions: a table may be ahead of the last checkpoint.
Conditions are passed to the scan of a table, which skips files by their statistics; DuckDB then picks the last row of each
entry. pyarrow's datasets and pandas are not imported: their import takes longer than the rest of `headrace state get`.

Operators that `--operator` accepts: those of the pipeline, and those with stored rows.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.commit.branch_code import refuse_without_state
from headrace.commit.schema_check import declared_schemas
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint
from headrace.log.declared import HISTORY_STATE
from headrace.log.lineage import Lineage
from headrace.log.log import CheckpointLog
from headrace.log.marks import refuse_purged
from headrace.names import did_you_mean
from headrace.plan.bindings import load_pipeline
from headrace.plan.planner import plan_stages
from headrace.plan.stages import waits_of
from headrace.readers.query import Rows, ask_once, reading
from headrace.readers.ttl import AGE_COLUMNS, JobTtl
from headrace.state.codec import written_keys
from headrace.state.key_groups import KeyGroupRange, key_group
from headrace.storage.predicate import Condition, Conditions, OneOf
from headrace.storage.table import Snapshot
from headrace.tables.folder import JobFolder
from headrace.tables.live_rows import last_rows_sql, last_values_sql
from headrace.tables.schemas import (
    ALL_TABLES,
    ASYNC_REQUESTS,
    BUFFERED_REQUESTS,
    KEYED_STATE,
    MATERIALIZER_HISTORY,
    QUARANTINE,
)
from headrace.tables.view import TableView, entries_of


class JobAtCheckpoint:
    """State of a job at one checkpoint.

    `at` is a checkpoint id, the name of a savepoint, the time of a commit, or None for the last checkpoint. `as_of`, in place of
    it, is a time by the watermark: the last checkpoint whose watermark is at or before it. Entries that have expired by the TTL
    that the job declares now are hidden, unless `with_expired` (`JobTtl`). Raises `ConfigError` when the job has no checkpoint
    yet, `at` or `as_of` names none, or both are given. All reading methods raise `StorageError` when the files of an old checkpoint are gone.
    """

    def __init__(
        self,
        config: JobConfig,
        at: int | str | None = None,
        *,
        as_of: str | None = None,
        with_expired: bool = False,
        log: CheckpointLog | None = None,
    ) -> None:
        """Read the list of checkpoints, unless a caller that has read it gives it, and resolve `at` or `as_of`."""
        if at is not None and as_of is not None:
            msg = "give --at (the time of a commit) or --as-of (a time by the watermark), not both"
            raise ConfigError(msg)
        self.config = config
        self.log = CheckpointLog(JobFolder.of(config)) if log is None else log
        self.checkpoint = self.log.resolve(config, at) if as_of is None else self.log.resolve_as_of(config, as_of)
        refuse_purged(config.job, self.log.checkpoints, self.checkpoint.checkpoint_id)
        refuse_without_state(config, self.checkpoint)
        self.ttl = JobTtl(config, self.log, self.checkpoint, is_now=at is None and as_of is None)
        self.with_expired = with_expired

    def moved_to(self, checkpoint: Checkpoint) -> JobAtCheckpoint:
        """Return the job at another checkpoint of its log, as of when it was read. Raises the errors of the constructor."""
        refuse_purged(self.config.job, self.log.checkpoints, checkpoint.checkpoint_id)
        refuse_without_state(self.config, checkpoint)
        other = copy.copy(self)
        other.checkpoint, other.ttl = checkpoint, JobTtl(self.config, self.log, checkpoint, is_now=False)
        return other

    @property
    def lineage(self) -> Lineage:
        """Lineage that leads to this one, without checkpoints that restores have undone."""
        return self.log.lineage.to(self.checkpoint)

    def snapshot(self, uri: str, version: int | None) -> Snapshot:
        """Open a table at a version; None for the latest one."""
        store = JobFolder.of(self.config).at(uri).table()
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
        with reading(uri, version, self.config.job):
            return TableView(table, self.snapshot(uri, version), conditions).stream(columns)

    def last_changes(self, name: str, conditions: Conditions = (), *, keys: pa.Array | None = None) -> pa.Table:
        """Return the last row of each entry of a state table among rows that meet the conditions, of deleted entries too.

        With `keys` (JSON texts), only of these keys. Reads the table in parts that fit into memory. A table that the checkpoint does not
        record is empty. Raises `StorageError` when its files are gone.
        """
        table, version = ALL_TABLES[name], self.checkpoint.versions.get(name)
        if version is None:
            return table.schema.empty_table()
        uri = f"{self.config.job_folder}/{name}"
        with reading(uri, version, self.config.job):
            view = TableView(table, self.snapshot(uri, version), conditions)
            parts = view.ranges(KeyGroupRange.all_of(self.checkpoint.max_parallelism))
            return pa.concat_tables([table.schema.empty_table(), *(part.last_changes(keys) for part in parts)])

    def ranges(self, name: str) -> list[Conditions]:
        """Return conditions that divide the rows of a state table by key groups, into parts that fit into memory; one at least."""
        version = self.checkpoint.versions.get(name)
        if version is None:
            return [()]
        uri = f"{self.config.job_folder}/{name}"
        with reading(uri, version, self.config.job):
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


WITH_STATE = (KEYED_STATE, MATERIALIZER_HISTORY)
WITH_REQUESTS = (ASYNC_REQUESTS, BUFFERED_REQUESTS)
WITH_QUARANTINE = (QUARANTINE,)


def key_conditions(key: str, max_parallelism: int) -> list[Condition]:
    """Return the conditions for rows of one key. `key` is JSON, or a text key without quotes."""
    candidates = written_keys(key)
    groups = {key_group(text.encode(), max_parallelism) for text in candidates}
    return [OneOf("key_group", tuple(sorted(groups))), OneOf("key", tuple(candidates))]


def check_operator(job: JobAtCheckpoint, operator: str | None, tables: Sequence[str]) -> None:
    """Raise `ConfigError` unless the pipeline has the operator, or one of the state tables has rows of it.

    So an operator that was removed from the pipeline is accepted as long as it has stored rows. None is always accepted.
    """
    if operator is None:
        return
    declared = _declared(job, tables)
    if operator in declared:
        return
    known = declared | {name for table in tables for name in _stored(job, table)}
    if operator not in known:
        listed = ", ".join(sorted(known)) or "none"
        msg = f"job '{job.config.job}' has no operator '{operator}' (it has: {listed})"
        raise ConfigError(msg)


def check_state(job: JobAtCheckpoint, operator: str | None, state: str | None) -> None:
    """Raise `ConfigError` unless the operator, or one of all for None, has a state of this name. None is always accepted.

    A state that was removed from the pipeline is accepted as long as the checkpoint records it, or has rows of it.
    """
    if state in {None, HISTORY_STATE}:
        return
    names = [{*states} for name, states in job.checkpoint.state_schemas.items() if operator in {None, name}]
    recorded = set().union(*names)
    if state in recorded:
        return
    known = recorded | _declared_states(job, operator) | _stored(job, KEYED_STATE, "state", entries_of(operator))
    if state not in known:
        owner = f"job '{job.config.job}'" if operator is None else f"operator '{operator}' of job '{job.config.job}'"
        listed = ", ".join(sorted(known)) or "none"
        msg = f"{owner} has no state '{state}'{did_you_mean(str(state), known)} (it has: {listed})"
        raise ConfigError(msg)


def _declared_states(job: JobAtCheckpoint, operator: str | None) -> set[str]:
    """Return the states that the pipeline declares; none if it cannot be loaded."""
    try:
        declared = declared_schemas(plan_stages(load_pipeline(job.config)))
    except (ConfigError, TypeError):
        return set()
    return {state for name, states in declared.items() if operator in {None, name} for state in states}


def _declared(job: JobAtCheckpoint, tables: Sequence[str]) -> set[str]:
    """Return the pipeline's operators that write these tables; if it cannot be loaded, those that the checkpoint records."""
    try:
        plan = plan_stages(load_pipeline(job.config))
    except (ConfigError, TypeError):
        return {*job.checkpoint.state_schemas} if tables == WITH_STATE else set()
    keyed = {stage.name for stage in plan.keyed}
    waits = {wait.name for wait in waits_of(plan)}
    if tables == WITH_STATE:
        return keyed - waits
    return keyed | waits | {source.name for source in plan.sources if tables == WITH_QUARANTINE}


def _stored(job: JobAtCheckpoint, table: str, column: str = "operator", conditions: Conditions = ()) -> set[str]:
    """Return the different values of a column of names."""
    query = f"SELECT DISTINCT {column} FROM raw"  # noqa: S608 - our own name
    rows = ask_once(job.changes(table, conditions, columns=[column]), query).rows
    return {name for (name,) in rows}
