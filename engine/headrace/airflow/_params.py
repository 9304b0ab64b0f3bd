"""Params of a job's DAG."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from airflow.sdk import Param

from headrace.config import DURATION_PATTERN, JobConfig
from headrace.names import did_you_mean

if TYPE_CHECKING:
    from airflow.sdk import Context

_MOST_TASKS = 1024


def job_params(job: JobConfig) -> dict[str, Param]:
    """Return the params of a job's DAG, with their schemas, by name."""
    return {
        "mode": Param(
            "auto",
            enum=["auto", "caught-up", "interval"],
            description=f"auto: as the job's file says ({job.mode.replace('_', '-')}); a backfill runs its interval.",
        ),
        "budget": Param(
            None,
            type=["null", "string"],
            pattern=DURATION_PATTERN,
            description=f"After this time, such as 10m, leave the rest to the next run. At most, and if empty, {job.run.budget}.",
        ),
        "max_batches": Param(
            None, type=["null", "integer"], minimum=1, description="End after this many micro-batches; empty: no limit."
        ),
        "finish": Param(
            False,
            type="boolean",
            description="At the end, call services once more for all waiting elements: then nothing waits.",
        ),
        "end_of_input": Param(
            False,
            type="boolean",
            description="At the end, declare that no more input comes: the last windows close, and later runs refuse more input.",
        ),
        "parallelism": Param(
            job.parallelism,
            type=["null", "integer"],
            minimum=1,
            maximum=max(_MOST_TASKS, job.parallelism or 0),
            description="Tasks per operator; empty: as the cluster's profile says. Results don't depend on it.",
        ),
    }


def unknown_params(context: Context, known: Collection[str]) -> str | None:
    """Return a sentence on params of a run that the DAG does not have; None if it has all of them.

    Airflow itself accepts any name, and the run would ignore the param.
    """
    unknown = [name for name in (context["dag_run"].conf or {}) if name not in known]
    if not unknown:
        return None
    named = ", ".join(f"'{name}'" for name in unknown)
    return (
        f"unknown param {named}{did_you_mean(unknown[0], known).rstrip('?')} (known: {', '.join(sorted(known))}). Nothing was "
        "done. Trigger the DAG again with params that it has."
    )
