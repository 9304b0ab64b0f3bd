"""Params and callbacks of a job's DAG.

Settings of tasks from the section `airflow` of a job's file: pools, queues, callbacks, deadlines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import Param
from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

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


_log = logging.getLogger(__name__)


class NamedCallback:
    """Callback that imports its function when it is called, so that parsing a DAG file imports no code of a job."""

    def __init__(self, reference: str, home: Path) -> None:
        """Store the reference package.module:function, which must be importable by Airflow or from `home`."""
        self._reference = reference
        self._home = str(home)

    def __call__(self, context: Any) -> None:
        """Call the function with Airflow's context."""
        module, _, function = self._reference.partition(":")
        if self._home not in sys.path:
            sys.path.append(self._home)
        getattr(import_module(module), function)(context)


def task_settings(job: JobConfig) -> dict[str, Any]:
    """Return the settings that all tasks of a job's DAG share."""
    airflow = job.airflow
    settings: dict[str, Any] = {
        "owner": job.owner,
        "retries": 1,
        "retry_delay": job.run.retry_delay,
        "priority_weight": airflow.priority,
    }
    if airflow.pool is not None:
        settings["pool"] = airflow.pool
    if airflow.queue is not None:
        settings["queue"] = airflow.queue
    if airflow.on_failure is not None:
        settings["on_failure_callback"] = NamedCallback(airflow.on_failure, job.home)
    if airflow.on_retry is not None:
        settings["on_retry_callback"] = NamedCallback(airflow.on_retry, job.home)
    return settings


def run_settings(job: JobConfig) -> dict[str, Any]:
    """Return further settings of the task `run`."""
    settings: dict[str, Any] = {"pool_slots": job.airflow.pool_slots}
    if job.airflow.on_success is not None:
        settings["on_success_callback"] = NamedCallback(job.airflow.on_success, job.home)
    return settings


def tell_of_alerts(job: JobConfig, result: Mapping[str, Any], context: Context, log: Any) -> None:
    """Call `airflow.on_alert` for each alert that has begun or ended in a run. What it raises is in the log: a run must not fail for it."""
    if job.airflow.on_alert is None:
        return
    callback = NamedCallback(job.airflow.on_alert, job.home)
    for alert in result.get("alerts", ()):
        if not alert["calls_airflow"]:
            continue
        try:
            callback({**context, "alert": alert})
        except Exception:  # the user's code may raise anything
            log.exception(
                "airflow.on_alert (%s) was not told of the alert on %s", job.airflow.on_alert, alert["metric"]
            )


def deadline_of(job: JobConfig) -> DeadlineAlert | None:
    """Return the deadline of a run of the job's DAG; None if it has none.

    Airflow runs a coroutine function in the triggerer. A function that cannot be imported here is treated like a coroutine function.
    """
    airflow = job.airflow
    if airflow.deadline is None:
        return None
    if airflow.on_deadline is None:
        callback: AsyncCallback | SyncCallback = AsyncCallback(tell_of_deadline, {"job": job.job})
    else:
        path = airflow.on_deadline.replace(":", ".")
        try:
            callback = AsyncCallback(path)
        except AttributeError:  # a plain function
            callback = SyncCallback(path)
    return DeadlineAlert(reference=DeadlineReference.DAGRUN_QUEUED_AT, interval=airflow.deadline, callback=callback)


async def tell_of_deadline(job: str, **_: Any) -> None:
    """Log that a run of a job takes longer than its deadline. Called by Airflow's triggerer."""
    _log.warning("a DAG run of job '%s' has passed its deadline (airflow.deadline) and goes on", job)
