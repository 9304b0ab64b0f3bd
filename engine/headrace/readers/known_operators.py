"""Operators that `--operator` accepts: those of the pipeline, and those with stored rows."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.config import load_pipeline
from headrace.errors import ConfigError
from headrace.plan.planner import plan_stages
from headrace.plan.stages import waits_of
from headrace.readers.job_at_checkpoint import JobAtCheckpoint
from headrace.readers.query import ask_once
from headrace.tables.schemas import ASYNC_REQUESTS, BUFFERED_REQUESTS, KEYED_STATE, MATERIALIZER_HISTORY, QUARANTINE

WITH_STATE = (KEYED_STATE, MATERIALIZER_HISTORY)
WITH_REQUESTS = (ASYNC_REQUESTS, BUFFERED_REQUESTS)
WITH_QUARANTINE = (QUARANTINE,)


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


def _declared(job: JobAtCheckpoint, tables: Sequence[str]) -> set[str]:
    """Return the pipeline's operators that write these tables; if it cannot be loaded, those that the checkpoint records."""
    try:
        plan = plan_stages(load_pipeline(job.config))
    except (ConfigError, TypeError):
        return {*(job.log.state_schemas(job.checkpoint) or {})} if tables == WITH_STATE else set()
    keyed = {stage.name for stage in plan.keyed}
    waits = {wait.name for wait in waits_of(plan)}
    if tables == WITH_STATE:
        return keyed - waits
    return keyed | waits | {source.name for source in plan.sources if tables == WITH_QUARANTINE}


def _stored(job: JobAtCheckpoint, table: str) -> set[str]:
    rows = ask_once(job.changes(table, columns=["operator"]), "SELECT DISTINCT operator FROM raw").rows
    return {name for (name,) in rows}
