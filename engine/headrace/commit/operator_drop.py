"""Dropping an operator: delete its state once the code no longer declares it.

The deletion is one checkpoint of kind `migration`; a restore undoes it. It appends a row that removes each entry, as a task does, so
rows of other operators are not rewritten. The next compaction drops the removed rows and the removals.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from headrace import faults
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.log import CheckpointLog
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.rewritten_rows import removed
from headrace.commit.stored_operator import (
    StoredOperator,
    changed_schemas,
    declared_operators,
    rewritten,
    stored_operator,
)
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.pipelines import plan_of
from headrace.plan.stages import Plan
from headrace.sources.offset import SourceOffset
from headrace.state.ttl_history import TtlHistory
from headrace.tables.files import StagedFile
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, QUARANTINE, tables_in
from headrace.tables.stores import state_views

T = TypeVar("T")


def droppable(config: JobConfig, operator: str) -> StoredOperator:
    """Return what `drop_operator` would delete, as of the last checkpoint. Changes nothing, needs no lease.

    Raises `ConfigError` as `drop_operator` does.
    """
    _check_not_declared(plan_of(config.code), operator)
    log = CheckpointLog(config.job_folder, config.storage_options)
    last = log.resolve(config)
    view_of = state_views(config.job_folder, last.versions, config.storage_options)
    return stored_operator(config, last, view_of, log.state_schemas(last), operator)


def drop_operator(config: JobConfig, operator: str, why: str, run_id: str) -> Checkpoint:
    """Delete the state of an operator that the code no longer declares, as one checkpoint.

    Deletes its rows in all state tables except `quarantine`: also its waiting elements and held records. Raises `ConfigError`
    when the code still declares the operator, or when nothing is stored of it, and `FencedError` while a run holds the job; then
    nothing has changed.
    """
    _check_not_declared(plan_of(config.code), operator)
    with open_job(config, run_id) as job:
        stored = stored_operator(config, job.last, job.view, job.state_schemas, operator)
        files = {table: [*_removals(job, table, operator)] for table in tables_in(job.versions) if table != QUARANTINE}
        faults.reached("operator_state.staged")
        return job.commit(
            Kind.MIGRATION,
            files=files,
            **changed_schemas(job, lambda by_operator: _without(by_operator, operator)),
            **_without_operator(job, operator),
            **_without_waiting(job, stored),
            metrics={"rows_dropped": sum(stored.state_rows.values())},
            note=f"the state of operator '{operator}' was dropped: {why}",
        )


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


def _without_operator(job: OpenJob, operator: str) -> dict[str, Any]:
    last, beginning = job.last, f"{operator}."
    ttl = last.state_ttl
    kept = TtlHistory(
        ttl.gaps,
        {name: text for name, text in ttl.declared.items() if not name.startswith(beginning)},
        {name: at for name, at in ttl.since.items() if not name.startswith(beginning)},
    )
    return {
        "state_ttl": kept,
        "local_copies": _without(last.local_copies, operator),
        "timers_fired": _without(last.timers_fired, operator),
        "lines": _without(last.lines, operator),
    }


def _without_waiting(job: OpenJob, stored: StoredOperator) -> dict[str, Any]:
    """Return fields of the checkpoint on waiting elements and held records, without those of the operator.

    `held` stays set: the next run makes a micro-batch that finds no held records, and records that. If nothing waits
    any more, the order of records no longer restricts changes of the graph.
    """
    dropped = stored.rows.get(ASYNC_REQUESTS, 0)
    offsets = {name: _fewer_pending(offset, dropped) for name, offset in job.last.offsets.items()}
    others = job.view(BUFFERED_REQUESTS).live(["operator"])["operator"].to_pylist()
    waits = any(offset.pending for offset in offsets.values()) or any(name != stored.name for name in others)
    numbers = {name: n for name, n in job.last.numbers.items() if name != f"operator:{stored.name}"} if waits else {}
    return {"offsets": offsets, "numbers": numbers}


def _fewer_pending(offset: SourceOffset, dropped: int) -> SourceOffset:
    pending = max(0, offset.pending - dropped)
    return msgspec.structs.replace(offset, pending=pending, due=offset.due if pending else None)


def _without(by_operator: Mapping[str, T], operator: str) -> dict[str, T]:
    return {name: value for name, value in by_operator.items() if name != operator}
