"""Renames and drops of operators: their state moves to the name in the code, or is deleted.

A rename gives an operator's state the name that the code has now. A drop deletes the state of an operator that the code
no longer declares.

Each change is one checkpoint of kind `migration`; a restore undoes it. It appends a row that removes each entry of the
operator, as a task does, so rows of other operators are not rewritten. The next compaction drops the removed rows and
the removals.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from msgspec.structs import replace

from headrace import crash_points
from headrace.commit.branch_code import refuse_with_branches
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.schema_check import changed_keys, check_schemas, declared_schemas
from headrace.config import JobConfig, checked_name
from headrace.edits.rewrite import (
    StoredOperator,
    declared_operators,
    removed,
    rewritten,
    stored_operator,
    under_operator,
)
from headrace.errors import ConfigError, StateSchemaError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of
from headrace.plan.stages import Plan
from headrace.storage.files import StagedFile
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE, tables_in
from headrace.tables.view import STATE_OF_OPERATORS, ViewOf, count_rows, state_views


def renamable(config: JobConfig, old: str, new: str) -> StoredOperator:
    """Return what `rename_operator` would move, as of the last checkpoint. Changes nothing, needs no lease.

    Raises as `rename_operator` does.
    """
    rename = _Rename.by_code(config, old, new)
    _refuse_rename_with_branches(config, old)
    log = CheckpointLog(config.job_folder, config.storage_options)
    last = log.resolve(config)
    return rename.checked(log, state_views(config.job_folder, last.versions, config.storage_options))


def rename_operator(config: JobConfig, old: str, new: str, run_id: str, *, why: str | None = None) -> Checkpoint:
    """Move all rows of the operator `old` to the name `new`, which the code gives it now, as one checkpoint.

    Rows in `quarantine` move as well. Raises `ConfigError` when the code does not declare `new`, or still declares `old`,
    when nothing is stored of `old`, when something is stored of `new`, while the job has branches, or while elements wait or records
    are held;
    `StateSchemaError` when states or keys of `new` do not fit what is stored; `FencedError` while a run holds the job. Then
    nothing has changed.
    """
    rename = _Rename.by_code(config, old, new)
    with open_job(config, run_id) as job:
        _refuse_rename_with_branches(config, old)
        stored = rename.checked(job.log, job.view)
        files = {table: [*_moved(job, table, old, new)] for table in tables_in(job.versions)}
        crash_points.reached("operator_state.staged")
        return job.commit(
            Kind.MIGRATION,
            files=files,
            base=job.last.renamed(old, new),
            metrics={"rows_moved": sum(stored.rows.values())},
            note=f"operator '{old}' is '{new}' now" + ("" if why is None else f": {why}"),
        )


def _refuse_rename_with_branches(config: JobConfig, old: str) -> None:
    """Raise `ConfigError` if the job has branches: they have the old name, and could neither run on nor be promoted."""
    refuse_with_branches(config, f"operator '{old}' cannot be renamed")


@dataclass(frozen=True, slots=True)
class _Rename:
    """Old and new name of an operator, and the code that has the new one."""

    config: JobConfig
    plan: Plan
    old: str
    new: str

    @staticmethod
    def by_code(config: JobConfig, old: str, new: str) -> _Rename:
        """Raise `ConfigError` unless the code has the new name and does not have the old one."""
        checked_name(new, "operator name")
        plan = plan_of(config.code)
        declared = declared_operators(plan)
        if new not in declared:
            msg = (
                f"the code has no operator '{new}' (it has: {', '.join(sorted(declared)) or 'none'}). Nothing was changed. "
                "Rename the operator in the pipeline first, then move its state."
            )
            raise ConfigError(msg)
        if old in declared:
            msg = (
                f"the code still has operator '{old}', so its state cannot become that of '{new}'. Nothing was changed. "
                f"Rename the operator in the pipeline ({config.pipeline}) first."
            )
            raise ConfigError(msg)
        return _Rename(config, plan, old, new)

    def checked(self, log: CheckpointLog, view_of: ViewOf) -> StoredOperator:
        """Return the stored state of the old name. Raises `ConfigError` if it cannot become that of the new name."""
        last, job = log.resolve(self.config), self.config.job
        stored = stored_operator(self.config, last, view_of, last.state_schemas, self.old)
        if count_rows(view_of, self.new, last.max_parallelism, STATE_OF_OPERATORS):
            msg = (
                f"operator '{self.new}' has stored state of its own (headrace state list {job}), and that of '{self.old}' would "
                "mix with it. Nothing was changed. Restore a checkpoint from before the first run with the new name, then rename."
            )
            raise ConfigError(msg)
        if last.holds_records or last.work.pending:
            msg = (
                f"elements wait for services, or records are held (headrace requests {job}), and their order depends on the names "
                "of operators. Nothing was changed. Go back to the code with the old name, let it finish what waits (headrace run "
                f"{job} --finish), then rename."
            )
            raise ConfigError(msg)
        self._check_types(last)
        return stored

    def _check_types(self, last: Checkpoint) -> None:
        schemas, keys, declared = last.state_schemas, last.operator_keys, declared_schemas(self.plan)
        problems: list[str] = []
        if self.old in schemas and self.new in declared:
            states = {self.new: declared[self.new]}
            problems += check_schemas({self.new: schemas[self.old]}, states, self.config.job).problems
        if self.old in keys:
            problems += (change for _, change in changed_keys({self.new: keys[self.old]}, self.plan))
        if problems:
            heading = f"the state of '{self.old}' does not fit '{self.new}', and was not moved:"
            raise StateSchemaError("\n".join([heading, *problems, "Nothing was changed."]))


def _moved(job: OpenJob, table: str, old: str, new: str) -> Iterator[StagedFile]:
    def old_rows(rows: pa.Table) -> pa.Table:
        return removed(table, rows, job.next_id)

    def new_rows(rows: pa.Table) -> pa.Table:
        return under_operator(rows, new, job.next_id)

    yield from rewritten(job, table, old, "removed", old_rows)
    yield from rewritten(job, table, old, "moved", new_rows)


def droppable(config: JobConfig, operator: str) -> StoredOperator:
    """Return what `drop_operator` would delete, as of the last checkpoint. Changes nothing, needs no lease.

    Raises `ConfigError` as `drop_operator` does.
    """
    _check_not_declared(plan_of(config.code), operator)
    _refuse_drop_with_branches(config, operator)
    log = CheckpointLog(config.job_folder, config.storage_options)
    last = log.resolve(config)
    view_of = state_views(config.job_folder, last.versions, config.storage_options)
    return stored_operator(config, last, view_of, last.state_schemas, operator)


def drop_operator(config: JobConfig, operator: str, why: str, run_id: str) -> Checkpoint:
    """Delete the state of an operator that the code no longer declares, as one checkpoint.

    Deletes its rows in all state tables except `quarantine`: also its waiting elements and held records. Raises `ConfigError`
    when the code still declares the operator, when nothing is stored of it, or while the job has branches, and `FencedError` while a
    run holds the job; then nothing has changed.
    """
    _check_not_declared(plan_of(config.code), operator)
    with open_job(config, run_id) as job:
        _refuse_drop_with_branches(config, operator)
        stored = stored_operator(config, job.last, job.view, job.state_schemas, operator)
        files = {table: [*_removals(job, table, operator)] for table in tables_in(job.versions) if table != QUARANTINE}
        crash_points.reached("operator_state.staged")
        return job.commit(
            Kind.MIGRATION,
            files=files,
            base=_without_waiting(job, stored).without(operator),
            metrics={"rows_dropped": sum(stored.state_rows.values())},
            note=f"the state of operator '{operator}' was dropped: {why}",
        )


def _refuse_drop_with_branches(config: JobConfig, operator: str) -> None:
    """Raise `ConfigError` if the job has branches: a promotion would bring the state back, so it is refused after a drop."""
    refuse_with_branches(config, f"the state of operator '{operator}' cannot be dropped")


def _check_not_declared(plan: Plan, operator: str) -> None:
    if operator in declared_operators(plan):
        msg = (
            f"the code still has operator '{operator}': its state is in use. Nothing was changed. Take the operator out of the "
            "pipeline first, then drop its state."
        )
        raise ConfigError(msg)


def _removals(job: OpenJob, table: str, operator: str) -> Iterator[StagedFile]:
    def rows_of(rows: pa.Table) -> pa.Table:
        return removed(table, rows, job.next_id)

    return rewritten(job, table, operator, "removed", rows_of)


def _without_waiting(job: OpenJob, stored: StoredOperator) -> Checkpoint:
    """Return the last checkpoint without the operator's waiting elements and held records.

    `held` stays set: the next run makes a micro-batch that finds no held records, and records that. If nothing waits
    any more, the order of records no longer restricts changes of the graph.
    """
    last, dropped = job.last, stored.rows.get(ASYNC_REQUESTS, 0)
    without = replace(last, work=last.work.with_pending(last.work.pending - dropped, last.work.due))
    others = job.view(BUFFERED_REQUESTS).live(["operator"])["operator"].to_pylist()
    waits = without.work.pending > 0 or any(name != stored.name for name in others)
    return without if waits else without.unordered()
