"""The one operator of the project: spark-submit of a job, through Airflow's Spark provider."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psutil
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowFailException
from job_files import Cluster, Job, duration, expand, home, task_environment

if TYPE_CHECKING:
    from airflow.sdk import Context

BACKFILLS_RUN_THEIR_INTERVAL = "{{ 'interval' if dag_run.run_type == 'backfill' else params.mode }}"
# A retry has the id of the run, so that it goes on with its work. A task that somebody has cleared is another run: clearing
# raises max_tries.
RUN_ID = "{{ run_id }}{{ '.' ~ (ti.max_tries - task.retries) if ti.max_tries > task.retries else '' }}"


class SubmitJob(SparkSubmitOperator):
    """Run a job once: `engine/headrace/cli/submit/driver.py` with the arguments of `headrace run`, on the job's cluster.

    The budget of the run can be shortened by the param `budget`, never prolonged: Airflow ends the task at
    the budget and grace of the job's file.
    """

    template_fields: Sequence[str] = SparkSubmitOperator.template_fields

    def __init__(self, *, job: Job, **kwargs: Any) -> None:
        cluster = job.cluster
        super().__init__(
            application=str(home() / "engine" / "headrace" / "cli" / "submit" / "driver.py"),
            name=f"headrace.{job.name}",
            conn_id=cluster.connection or _connection_to_master(cluster),
            deploy_mode=cluster.deploy_mode,
            conf=dict(cluster.spark),
            jars=",".join(cluster.jars) or None,
            py_files=",".join(cluster.py_files) or None,
            env_vars=task_environment(),
            application_args=_arguments(job),
            execution_timeout=job.budget + job.grace,
            retries=job.retries,
            retry_delay=job.retry_delay,
            **kwargs,
        )
        self.longest_budget = job.budget.total_seconds()

    def execute(self, context: Context) -> None:
        """Leave out what wasn't given, put the environment's values in, and submit."""
        budget = context["params"]["budget"]
        if budget and duration(budget).total_seconds() > self.longest_budget:
            raise AirflowFailException(
                f"param budget: {budget} is longer than the job's own budget of {self.longest_budget:.0f} s, after "
                "which Airflow ends the task. Raise run.budget in the job's file."
            )
        self.application_args = without_empty(self.application_args or [])
        self.conf = {key: expand(value) for key, value in (self.conf or {}).items()}
        super().execute(context)

    def on_kill(self) -> None:
        """End the driver, then spark-submit: the provider kills spark-submit's JVM alone.

        Spark's Python workers end with the JVM. The driver is a child of it and would only notice at its next
        call into Spark; until then it would go on computing and committing beside the next attempt.
        """
        if self._hook is not None:
            end_children(self._hook._submit_sp)  # noqa: SLF001  the provider offers no other way to it
        super().on_kill()


def without_empty(words: Sequence[str]) -> list[str]:
    """Leave out what wasn't given: `--budget=`, or a switch that is off."""
    return [word for word in words if word and not word.endswith("=")]


def end_children(process: Any) -> None:
    """Kill all that `process` (a Popen, or None) has started, directly or not."""
    if process is None or process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


def _arguments(job: Job) -> list[str]:
    """Return one word per option; one without a value is left out when the task runs."""
    return [
        "run",
        job.name,
        f"--cluster={job.cluster.name}",
        f"--mode={BACKFILLS_RUN_THEIR_INTERVAL}",
        "--interval-start={{ dag_run.data_interval_start.isoformat() if dag_run.data_interval_start else '' }}",
        "--interval-end={{ dag_run.data_interval_end.isoformat() if dag_run.data_interval_end else '' }}",
        f"--run-id={RUN_ID}",
        f"--budget={{{{ params.budget or '{job.budget.total_seconds():.0f}s' }}}}",
        "--max-batches={{ params.max_batches or '' }}",
        "--parallelism={{ params.parallelism or '' }}",
        "{{ '--replay' if params.replay else '' }}",
        "{{ '--finish' if params.finish else '' }}",
    ]


def _connection_to_master(cluster: Cluster) -> str:
    """Publish the profile's `master` as a connection of this process, since spark-submit takes it from one.

    A profile that names a `connection` has it from Airflow's own store instead.
    """
    name = f"headrace_{cluster.name}"
    os.environ[f"AIRFLOW_CONN_{name.upper()}"] = json.dumps({"conn_type": "spark", "host": expand(cluster.master)})
    return name
