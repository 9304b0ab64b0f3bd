"""Stored data of an operator, with helpers to drop it or to move it to another name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.operator_rows import count_rows, live_chunks
from headrace.commit.protocol import OpenJob
from headrace.commit.state_schemas import StateSchemas
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.stages import Plan, waits_of
from headrace.tables.files import StagedFile
from headrace.tables.schemas import QUARANTINE, tables_in
from headrace.tables.state_files import parts
from headrace.tables.stores import ViewOf


@dataclass(frozen=True, slots=True)
class StoredOperator:
    """Stored data of an operator: number of live rows by table, without zeros, and its recorded states."""

    name: str
    rows: dict[str, int]
    states: tuple[str, ...]

    @property
    def set_aside(self) -> int:
        """Return the number of its rows in `quarantine`, which are input and no state."""
        return self.rows.get(QUARANTINE, 0)

    @property
    def state_rows(self) -> dict[str, int]:
        """Return the number of its rows in each of the other tables."""
        return {table: count for table, count in self.rows.items() if table != QUARANTINE}


def stored_operator(
    config: JobConfig, last: Checkpoint, view_of: ViewOf, schemas: StateSchemas | None, operator: str
) -> StoredOperator:
    """Return the stored data of an operator. Raises `ConfigError` when it has none except rows in quarantine."""
    if operator in last.offsets:
        raise ConfigError(f"'{operator}' is a source of job '{config.job}', which has no state: name a keyed operator")
    states = tuple(sorted((schemas or {}).get(operator, {})))
    stored = StoredOperator(
        operator, count_rows(view_of, operator, last.max_parallelism, tables_in(last.versions)), states
    )
    if not stored.state_rows and not states:
        aside = " but what it set aside (headrace quarantine)" if stored.set_aside else ""
        msg = (
            f"nothing is stored of an operator '{operator}'{aside}; 'headrace state list {config.job}' shows what is. "
            "Nothing was changed."
        )
        raise ConfigError(msg)
    return stored


def rewritten(
    job: OpenJob, table: str, operator: str, what: str, rows_of: Callable[[pa.Table], pa.Table]
) -> Iterator[StagedFile]:
    """Apply `rows_of` to the live rows of an operator, and stage the results as files that no commit names yet."""
    chunks = live_chunks(job.view, table, operator, job.last.max_parallelism)
    for number, rows in enumerate(chunks):
        for part in parts(table, rows_of(rows)):
            yield job.stage(table, f"{operator}-{what}-{number}", part)


def changed_schemas(job: OpenJob, change: Callable[[Mapping[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return the recorded schemas and keys after a change; empty if an earlier release has recorded none."""
    if job.state_schemas is None:
        return {}
    return {"state_schemas": change(job.state_schemas), "operator_keys": change(job.operator_keys)}


def declared_operators(plan: Plan) -> set[str]:
    """Return the names of the operators that may have state or elements that wait."""
    return {stage.name for stage in plan.keyed} | {wait.name for wait in waits_of(plan)}
