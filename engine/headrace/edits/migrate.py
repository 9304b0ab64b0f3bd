"""Migration of state: rewrite a state with a changed type at once, in a separate checkpoint.

Conversion at reading would leave old values in the tables until somebody reads them: every later change of the code would have to
know all former types, and `headrace sql` would show several types at once. After a migration all stored values have one type. Tasks
rebuild local copies of the operator from the tables.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from headrace.commit.branch_code import fork_anew
from headrace.commit.former_keys import former_key_problems
from headrace.commit.schema_check import (
    PendingMigration,
    check_schemas,
    declared_schemas,
    operator_key_problems,
)
from headrace.edits.edit import BlindEdit, Rewrite, carry_out
from headrace.errors import HeadraceError, UserFunctionError
from headrace.interrupts import is_interrupt
from headrace.log.checkpoint import Kind
from headrace.log.declared import HISTORY_STATE, declared_keys
from headrace.materializer.identities import canonical
from headrace.state.codec import Codec
from headrace.tables.schemas import KEYED_STATE, MATERIALIZER_HISTORY
from headrace.tables.view import has_keyed_rows, live_keys

if TYPE_CHECKING:
    from headrace.commit.protocol import OpenJob
    from headrace.log.declared import StateSchemas
    from headrace.plan.stages import Plan


def settle_schemas(job: OpenJob, plan: Plan) -> None:
    """Check that the code can find and read all stored state; migrate states where needed.

    A run calls it before its first task, and again after a restore within it. The next micro-batch records the declared schemas.
    Raises `StateSchemaError` with operator, state, field and both types if stored state does not fit, or with both keys
    if the key of an operator has changed, and `UserFunctionError` when the function of a migration fails; then nothing
    has changed.
    """
    declared = declared_schemas(plan)
    stored = job.state_schemas
    check = check_schemas(stored, declared, job.config.job)
    groups = job.last.max_parallelism
    check.problems += operator_key_problems(
        job.config.job, job.operator_keys, plan, lambda name: has_keyed_rows(job.view, name, groups)
    )
    check.problems += former_key_problems(job.operator_keys, plan, lambda name: live_keys(job.view, name, groups))
    if check.problems and job.config.branch is not None:
        check.problems.append(
            f"This is branch '{job.config.branch}', which headrace state rename and drop do not reach. If the job's state was renamed or "
            f"dropped since the branch began, the branch cannot follow. {fork_anew(job.config)}"
        )
    check.raise_problems()
    schemas = stored
    for pending in check.migrations:
        states = {**schemas[pending.operator], pending.state: pending.declared.stored()}
        schemas = {**schemas, pending.operator: states}
        carry_out(job, MigrateState(pending, schemas))
    job.declared_schemas, job.declared_keys = check.schemas, declared_keys(plan)


@dataclass(frozen=True, slots=True)
class MigrateState(BlindEdit):
    """Edit that adds a new row for each live entry of a state whose text changes. A state without such entries gets no checkpoint."""

    pending: PendingMigration
    schemas: StateSchemas
    """Types of all states behind it."""

    kind: ClassVar[Kind] = Kind.MIGRATION
    crash_point: ClassVar[str] = "state_migration.staged"

    def rewrites(self, job: OpenJob, effect: None) -> Iterator[Rewrite]:  # noqa: ARG002 - it looks for nothing
        """See `StateEdit.rewrites`."""
        pending, table = self.pending, self._table
        converter = _Converter(pending)
        yield Rewrite(
            table,
            f"{pending.operator}-migration",
            job.view(table).of(pending.operator, states=pending.state if table == KEYED_STATE else None),
            lambda rows: converter.rows(rows, job.next_id),
        )

    def facts(self, job: OpenJob, effect: None, rows: int) -> dict[str, Any] | None:  # noqa: ARG002 - it looks for nothing
        """See `StateEdit.facts`. Tasks rebuild local copies of the operator."""
        if not rows:
            return None
        pending = self.pending
        return {
            "base": job.last.without_copies({pending.operator}),
            "declared": job.last.declared.with_states(self.schemas),
            "metrics": {"rows_migrated": rows},
            "note": f"state '{pending.state}' of operator '{pending.operator}': {_what(pending)}",
        }

    @property
    def _table(self) -> str:
        return MATERIALIZER_HISTORY if self.pending.declared.kind == HISTORY_STATE else KEYED_STATE


def _what(pending: PendingMigration) -> str:
    if not pending.steps:
        return f"its rows are {pending.declared.schema} now"
    return f"migration {', '.join(str(step.number) for step in pending.steps)}"


class _Converter:
    """Converter from values of the old type to values of the declared one."""

    def __init__(self, pending: PendingMigration) -> None:
        self._pending = pending
        what = f"state '{pending.state}' of operator '{pending.operator}'"
        self._codecs = [Codec(step.old, f"{what}, in migration {step.number},") for step in pending.steps]
        self._new = Codec(pending.declared.type, f"{what}, by its migration," if pending.steps else what)
        self._column = "row" if pending.declared.kind == HISTORY_STATE else "value"

    def rows(self, rows: pa.Table, checkpoint_id: int) -> pa.Table:
        """Return rows with converted values, as changes of a checkpoint; remove entries that a function drops.

        Of a history, return only rows whose text has changed.
        """
        keys, values = rows["key"].to_pylist(), rows[self._column].to_pylist()
        converted = [self._value(key, value) for key, value in zip(keys, values, strict=True)]
        if not self._pending.steps:
            changed = [new != old for new, old in zip(converted, values, strict=True)]
            rows, converted = rows.filter(pa.array(changed, pa.bool_())), list(compress(converted, changed))
        columns = {
            self._column: converted,
            "checkpoint_id": [checkpoint_id] * rows.num_rows,
            "deleted": [value is None for value in converted],
        }
        for name, column in columns.items():
            place = rows.schema.get_field_index(name)
            rows = rows.set_column(place, rows.schema.field(name), pa.array(column, rows.schema.field(name).type))
        return rows

    def _value(self, key: str, stored: str) -> str | None:
        raw = stored.encode()
        if not self._pending.steps:
            return canonical(self._new.decode(raw)).decode()
        for step, codec in zip(self._pending.steps, self._codecs, strict=True):
            old = codec.decode(raw)
            try:
                new = step.function(old)
            except BaseException as error:
                if isinstance(error, HeadraceError) or is_interrupt(error):
                    raise
                where = f"of state '{self._pending.state}' in migration {step.number}: {stored[:500]}"
                why = "".join(traceback.format_exception(error))
                raise UserFunctionError(self._pending.operator, key, where, why) from error
            if new is None:
                return None
            raw = self._after(step.number).encode(new)
        return raw.decode()

    def _after(self, number: int) -> Codec[object]:
        """Return the codec for the result of a step: of the old type of the next step, or of the declared type."""
        following = number - self._pending.steps[0].number + 1
        return self._codecs[following] if following < len(self._codecs) else self._new
