"""Settings of tasks from the section `airflow` of a job's file: pools, queues, callbacks, deadlines."""

from __future__ import annotations

import logging
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from airflow.sdk.definitions.callback import AsyncCallback, SyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference

from headrace.config import JobConfig

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
