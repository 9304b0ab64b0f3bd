"""The operator of a job's task `run`: spark-submit, through Airflow's Spark provider."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

import headrace
from headrace.airflow._command_task import task_environment
from headrace.airflow._errors import final_error
from headrace.airflow._process_tree import kill_descendants
from headrace.config import ClusterConfig, JobConfig, expand_settings, parse_duration

if TYPE_CHECKING:
    from airflow.sdk import Context

_DRIVER = Path(headrace.__file__).parent / "cli" / "submit" / "driver.py"
_MODE = "{{ 'interval' if dag_run.run_type == 'backfill' else params.mode }}"
# A retry has the id of its run, and goes on with its work. A task that somebody cleared is another run: clearing raises
# max_tries.
_RUN_ID = "{{ run_id }}{{ '.' ~ (ti.max_tries - task.retries) if ti.max_tries > task.retries else '' }}"


class HeadraceRunOperator(SparkSubmitOperator):
    """Run a job once: the driver `cli/submit/driver.py` with the arguments of `headrace run`, on the job's cluster.

    The param `budget` can shorten the run's budget, never prolong it: Airflow ends the task at the budget and grace
    of the job's file. References to the environment in the profile's Spark settings are replaced when the task runs,
    so that the serialised DAG holds no secret.
    """

    def __init__(self, *, job: JobConfig, **kwargs: Any) -> None:
        profile = job.profile
        super().__init__(
            application=str(_DRIVER),
            name=f"headrace.{job.job}",
            conn_id=profile.connection or _connection_id(profile),
            deploy_mode=profile.deploy_mode,
            conf=dict(profile.spark),
            jars=",".join(profile.jars) or None,
            py_files=",".join(profile.py_files) or None,
            env_vars=task_environment(job.home),
            application_args=_arguments(job),
            execution_timeout=job.run.budget + job.run.grace,
            retries=job.run.retries,
            retry_delay=job.run.retry_delay,
            **kwargs,
        )
        self._home = job.home
        self._longest_budget = job.run.budget
        self._master = None if profile.connection else profile.master

    def execute(self, context: Context) -> None:
        """Leave out arguments without a value, replace references to the environment, and submit.

        Raises `ConfigError` for a variable that is not set, and `AirflowFailException` where a retry cannot help.
        """
        self._check_budget(context["params"]["budget"])
        self._publish_master()
        self.env_vars = {**(self.env_vars or {}), **_java(self._home)}
        self.application_args = without_empty(self.application_args or [])
        self.conf = expand_settings(self.conf or {}, os.environ)
        try:
            super().execute(context)
        except AirflowException as error:
            if final := final_error(self._exit_code()):
                raise final from error
            raise

    def on_kill(self) -> None:
        """Kill the driver, then spark-submit: the provider kills spark-submit's JVM alone.

        Spark's Python workers end with the JVM. The driver is a child of it and would only notice at its next
        call into Spark; until then it would go on computing and committing beside the next attempt.
        """
        if self._hook is not None:
            kill_descendants(self._submission())
            super().on_kill()

    def _check_budget(self, budget: str | None) -> None:
        if budget and parse_duration(budget) > self._longest_budget:
            raise AirflowFailException(
                f"param budget: {budget} is longer than the job's own budget of "
                f"{self._longest_budget.total_seconds():.0f} s, after which Airflow ends the task. Raise run.budget in "
                "the job's file."
            )

    def _publish_master(self) -> None:
        """Make the profile's `master` a connection of this process, since spark-submit takes it from one.

        A profile that names a `connection` has it from Airflow's own store instead.
        """
        if self._master is not None:
            connection = {"conn_type": "spark", "host": self._master}
            os.environ[f"AIRFLOW_CONN_{self._conn_id.upper()}"] = json.dumps(connection)

    def _submission(self) -> Popen[str] | None:
        return None if self._hook is None else self._hook._submit_sp  # noqa: SLF001  the provider offers no other way

    def _exit_code(self) -> int | None:
        """Return spark-submit's exit code; in client mode it is the driver's."""
        submission = self._submission()
        return None if submission is None else submission.returncode


def without_empty(words: Sequence[str]) -> list[str]:
    """Return `words` without options that have no value (`--budget=`) and without empty words."""
    return [word for word in words if word and not word.endswith("=")]


def _arguments(job: JobConfig) -> list[str]:
    """Return one word per option; `without_empty` drops those without a value when the task runs."""
    return [
        "run",
        job.job,
        f"--cluster={job.cluster}",
        f"--mode={_MODE}",
        "--interval-start={{ dag_run.data_interval_start.isoformat() if dag_run.data_interval_start else '' }}",
        "--interval-end={{ dag_run.data_interval_end.isoformat() if dag_run.data_interval_end else '' }}",
        f"--run-id={_RUN_ID}",
        f"--budget={{{{ params.budget or '{job.run.budget.total_seconds():.0f}s' }}}}",
        "--max-batches={{ params.max_batches or '' }}",
        "--parallelism={{ params.parallelism or '' }}",
        "{{ '--replay' if params.replay else '' }}",
        "{{ '--finish' if params.finish else '' }}",
        "{{ '--end-of-input' if params.end_of_input else '' }}",
    ]


def _java(home: Path) -> dict[str, str]:
    """Return JAVA_HOME for spark-submit where only the project has a Java (`headrace setup`), else nothing."""
    from headrace.provision.java import find_java

    java = find_java(home)
    return {} if java is None else {"JAVA_HOME": str(java)}


def _connection_id(profile: ClusterConfig) -> str:
    return f"headrace_{profile.name}"
