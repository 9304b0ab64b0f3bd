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
from typing import Any, ClassVar

import pyarrow as pa
from msgspec.structs import replace

from headrace.commit.branch_code import refuse_with_branches
from headrace.commit.protocol import OpenJob
from headrace.commit.schema_check import changed_keys, check_schemas, declared_schemas
from headrace.config import JobConfig, checked_name
from headrace.edits.edit import JobView, Rewrite, StateEdit
from headrace.edits.rewrite import StoredOperator, declared_operators, removed, stored_operator, under_operator
from headrace.errors import ConfigError, StateSchemaError
from headrace.log.branches import Branches
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.plan.loader import plan_of
from headrace.plan.stages import Plan
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE, tables_in
from headrace.tables.view import STATE_OF_OPERATORS, count_rows


@dataclass(frozen=True, slots=True)
class RenameOperator(StateEdit[StoredOperator]):
    """Edit that moves all rows of the operator `old` to the name `new`, which the code gives it now; rows in `quarantine` as well.

    Raises `ConfigError` when the code does not declare `new`, or still declares `old`, when nothing is stored of `old`, when something
    is stored of `new`, while the job has branches, or while elements wait or records are held; `StateSchemaError` when states or keys of
    `new` do not fit what is stored.
    """

    old: str
    new: str
    why: str | None = None

    kind: ClassVar[Kind] = Kind.MIGRATION
    crash_point: ClassVar[str] = "operator_state.staged"

    def opened(self, config: JobConfig) -> JobConfig:
        """See `StateEdit.opened`."""
        self._check_code(config)
        return config

    def look(self, job: JobView) -> StoredOperator:
        """See `StateEdit.look`. A branch has the old name, and could neither run on nor be promoted."""
        plan = self._check_code(job.config)
        self._refuse_branches(job)
        stored = stored_operator(job, self.old)
        name = job.config.job
        if count_rows(job.view, self.new, job.last.max_parallelism, STATE_OF_OPERATORS):
            msg = (
                f"operator '{self.new}' has stored state of its own (headrace state list {name}), and that of '{self.old}' would "
                "mix with it. Nothing was changed. Restore a checkpoint from before the first run with the new name, then rename."
            )
            raise ConfigError(msg)
        if job.last.holds_records or job.last.work.pending:
            msg = (
                f"elements wait for services, or records are held (headrace waiting {name} --held), and their order depends on the names "
                "of operators. Nothing was changed. Go back to the code with the old name, let it finish what waits (headrace run "
                f"{name} --finish), then rename."
            )
            raise ConfigError(msg)
        self._check_types(job, plan)
        return stored

    def rewrites(self, job: OpenJob, effect: StoredOperator) -> Iterator[Rewrite]:
        """See `StateEdit.rewrites`: each entry is removed, and is there again under the new name."""
        for table in tables_in(job.versions):
            yield _removal(job, table, effect.name)
            yield Rewrite(
                table,
                f"{self.old}-moved",
                job.view(table).of(self.old),
                lambda rows: under_operator(rows, self.new, job.next_id),
            )

    def facts(self, job: OpenJob, effect: StoredOperator, rows: int) -> dict[str, Any]:  # noqa: ARG002 - each row is staged twice
        """See `StateEdit.facts`."""
        self._refuse_branches(job)
        return {
            "base": job.last.renamed(self.old, self.new),
            "metrics": {"rows_moved": sum(effect.rows.values())},
            "note": f"operator '{self.old}' is '{self.new}' now" + ("" if self.why is None else f": {self.why}"),
        }

    def committed(self, job: OpenJob, checkpoint: Checkpoint) -> None:
        """Raise `ConfigError` if somebody has made a branch meanwhile."""
        _name_branches(job, checkpoint, f"operator '{self.old}' is '{self.new}' now")

    def _refuse_branches(self, job: JobView) -> None:
        refuse_with_branches(job.config, f"operator '{self.old}' cannot be renamed")

    def _check_code(self, config: JobConfig) -> Plan:
        """Return the job's plan. Raises `ConfigError` unless the code has the new name and does not have the old one."""
        checked_name(self.new, "operator name")
        plan = plan_of(config.code)
        declared = declared_operators(plan)
        if self.new not in declared:
            msg = (
                f"the code has no operator '{self.new}' (it has: {', '.join(sorted(declared)) or 'none'}). Nothing was changed. "
                "Rename the operator in the pipeline first, then move its state."
            )
            raise ConfigError(msg)
        if self.old in declared:
            msg = (
                f"the code still has operator '{self.old}', so its state cannot become that of '{self.new}'. Nothing was changed. "
                f"Rename the operator in the pipeline ({config.pipeline}) first."
            )
            raise ConfigError(msg)
        return plan

    def _check_types(self, job: JobView, plan: Plan) -> None:
        schemas, keys, declared = job.last.state_schemas, job.last.operator_keys, declared_schemas(plan)
        problems: list[str] = []
        if self.old in schemas and self.new in declared:
            states = {self.new: declared[self.new]}
            problems += check_schemas({self.new: schemas[self.old]}, states, job.config.job).problems
        if self.old in keys:
            problems += (change for _, change in changed_keys({self.new: keys[self.old]}, plan))
        if problems:
            heading = f"the state of '{self.old}' does not fit '{self.new}', and was not moved:"
            raise StateSchemaError("\n".join([heading, *problems, "Nothing was changed."]))


@dataclass(frozen=True, slots=True)
class DropOperator(StateEdit[StoredOperator]):
    """Edit that deletes the state of an operator which the code no longer declares.

    Deletes its rows in all state tables except `quarantine`: also its waiting elements and held records. Raises `ConfigError` when the
    code still declares the operator, when nothing is stored of it, or while the job has branches.
    """

    operator: str
    why: str = ""

    kind: ClassVar[Kind] = Kind.MIGRATION
    crash_point: ClassVar[str] = "operator_state.staged"

    def opened(self, config: JobConfig) -> JobConfig:
        """See `StateEdit.opened`."""
        self._check_code(config)
        return config

    def look(self, job: JobView) -> StoredOperator:
        """See `StateEdit.look`. A promotion would bring the state back, so it is refused after a drop."""
        self._check_code(job.config)
        self._refuse_branches(job)
        return stored_operator(job, self.operator)

    def rewrites(self, job: OpenJob, effect: StoredOperator) -> Iterator[Rewrite]:
        """See `StateEdit.rewrites`: each entry is removed."""
        return (_removal(job, table, effect.name) for table in tables_in(job.versions) if table != QUARANTINE)

    def facts(self, job: OpenJob, effect: StoredOperator, rows: int) -> dict[str, Any]:  # noqa: ARG002 - they are removals
        """See `StateEdit.facts`."""
        self._refuse_branches(job)
        return {
            "base": _without_waiting(job, effect).without(self.operator),
            "metrics": {"rows_dropped": sum(effect.state_rows.values())},
            "note": f"the state of operator '{self.operator}' was dropped: {self.why}",
        }

    def committed(self, job: OpenJob, checkpoint: Checkpoint) -> None:
        """Raise `ConfigError` if somebody has made a branch meanwhile."""
        _name_branches(job, checkpoint, f"the state of operator '{self.operator}' is dropped")

    def _refuse_branches(self, job: JobView) -> None:
        refuse_with_branches(job.config, f"the state of operator '{self.operator}' cannot be dropped")

    def _check_code(self, config: JobConfig) -> None:
        if self.operator in declared_operators(plan_of(config.code)):
            msg = (
                f"the code still has operator '{self.operator}': its state is in use. Nothing was changed. Take the operator out of the "
                "pipeline first, then drop its state."
            )
            raise ConfigError(msg)


def _name_branches(job: OpenJob, checkpoint: Checkpoint, change: str) -> None:
    """Raise `ConfigError` if somebody made a branch while this change, a clause, was committed: the branch has seen nothing of it.

    A fork is listed without a lease, so a look before the commit can miss it.
    """
    name = job.config.job
    for branch in Branches(job.config).open:
        msg = (
            f"{change}, as checkpoint {checkpoint.checkpoint_id}. Meanwhile somebody has made branch '{branch.name}' of job '{name}', which "
            "begins before that: it can neither run with the code of today nor be promoted. Drop it, and fork it anew where you need it: "
            f"headrace branch drop {name} {branch.name}"
        )
        raise ConfigError(msg)


def _removal(job: OpenJob, table: str, operator: str) -> Rewrite:
    """Return rows that remove each entry of an operator."""

    def change(rows: pa.Table) -> pa.Table:
        return removed(table, rows, job.next_id)

    return Rewrite(table, f"{operator}-removed", job.view(table).of(operator), change)


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
