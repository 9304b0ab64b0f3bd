"""The operator of a run: spark-submit, through Airflow's Spark provider, or the command without Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Literal

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from headrace.airflow._command import HeadraceCommand
from headrace.airflow._data_interval import refuse_foreign_interval
from headrace.airflow._driver_log import DriverLog
from headrace.airflow._environment import task_environment
from headrace.airflow._failures import failure
from headrace.airflow._home import given_job
from headrace.airflow._lineage import operator_lineage
from headrace.airflow._links import CheckpointLink, SparkUiLink, result_page
from headrace.airflow._notes import write_note
from headrace.airflow._order_of_runs import hold_behind_failed_run
from headrace.airflow._params import refuse_unknown_params
from headrace.airflow._process_tree import kill_descendants
from headrace.airflow._report_file import ReportFile
from headrace.airflow._results import Result, announce, degraded, result_of, sink_assets
from headrace.airflow._submission import packed_home, run_words, submission
from headrace.airflow._words import option, plain_words, value_of
from headrace.config import JobConfig, expand_settings, parse_duration
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context

INTERVAL_START = "{{ dag_run.data_interval_start.isoformat() if dag_run.data_interval_start else '' }}"
INTERVAL_END = "{{ dag_run.data_interval_end.isoformat() if dag_run.data_interval_end else '' }}"
# A retry has the id of its run, and goes on with its work. A task that somebody cleared is another run: clearing raises
# max_tries.
MODE = "{{ 'interval' if dag_run.run_type == 'backfill' else 'auto' }}"
RUN_ID = "{{ run_id }}{{ '.' ~ (ti.max_tries - task.retries) if ti.max_tries > task.retries else '' }}"


class HeadraceRunOperator(SparkSubmitOperator):
    """Run a job once, as `headrace run` does, through spark-submit on the job's cluster profile.

    Give `job` as the name of a file in `conf/jobs/`; `home` is the folder that holds `conf/` ($HEADRACE_HOME, else the nearest
    folder above the DAG file). All other options are those of `headrace run`, may be templates, and are left out when they
    render to nothing. With `runner="local"`, or where the cluster profile says so, the task runs the command itself, on the machine of
    the task and without a JVM. The task returns the run's report, and updates the assets of the job's sinks that have news.

    `budget` can shorten the run's budget, never prolong it: Airflow ends the task at the budget and grace of the job's file.
    References to the environment in the profile's Spark settings are replaced when the task runs, so that the serialised DAG
    holds no secret. `checkpoint_url` is where "Headrace checkpoint" leads, with `{job}`, `{checkpoint}` and `{folder}`; without
    it, to what the task returned. `spark_info` shows Spark's lines of level INFO. `hold_after_failure` lets a run wait while the
    same task of another run of the DAG has failed. `known_params`, if given, are the params that the DAG may be triggered with.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (CheckpointLink(), SparkUiLink())

    def __init__(
        self,
        *,
        job: str | JobConfig,
        home: str | Path | None = None,
        cluster: str | None = None,
        runner: Literal["spark", "local"] | None = None,
        mode: str = MODE,
        interval_start: str | None = INTERVAL_START,
        interval_end: str | None = INTERVAL_END,
        run_id: str = RUN_ID,
        budget: str | None = None,
        max_batches: int | str | None = None,
        parallelism: int | str | None = None,
        backend: str | None = None,
        replay: bool | str = False,
        finish: bool | str = False,
        end_of_input: bool | str = False,
        force_fail_over: bool | str = False,
        checkpoint_url: str | None = None,
        spark_info: bool = False,
        hold_after_failure: bool = False,
        known_params: Collection[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Raises `ConfigError` for a job that is not there, or whose file is wrong."""
        config = given_job(job, home, cluster)
        words = {
            "runner": runner,
            "mode": mode,
            "interval-start": interval_start,
            "interval-end": interval_end,
            "run-id": run_id,
            "budget": budget or f"{config.run.budget.total_seconds():.0f}s",
            "max-batches": max_batches,
            "parallelism": parallelism,
            "backend": backend,
            "force-fail-over": force_fail_over,
            "replay": replay,
            "finish": finish,
            "end-of-input": end_of_input,
        }
        super().__init__(**_arguments(config, words, kwargs))
        self.checkpoint_link = self.spark_ui_link = ""
        self._job = config
        self._needs_spark = (runner or config.profile.runner) == "spark"
        self._command: HeadraceCommand | None = None
        self._checkpoint_url = checkpoint_url
        self._spark_info = spark_info
        self._holds_after_failure = hold_after_failure
        self._known_params = None if known_params is None else frozenset(known_params)

    def execute(self, context: Context) -> Result | None:  # type: ignore[override]  # the provider's returns nothing
        """Run the job; return what it did, None where the driver runs elsewhere and cannot hand it over.

        Raises `AirflowFailException` where a retry cannot help, `AirflowRescheduleException` behind a failed run, and
        `AirflowException` otherwise.
        """
        if self._known_params is not None:
            refuse_unknown_params(context, self._known_params)
        refuse_foreign_interval(context)
        if self._holds_after_failure:
            hold_behind_failed_run(context, self.log)
        try:
            self._prepare()
        except ConfigError as error:
            raise AirflowFailException(f"ConfigError: {error}\n(not retried, a retry would end the same)") from None
        with ReportFile() as report_file:
            if self._job.profile.deploy_mode == "client" or not self._needs_spark:
                self.application_args = [*self.application_args, option("report", report_file.path)]
            else:
                home = packed_home(self._job, report_file.path.parent)
                self._archives = ",".join(filter(None, (self._archives, home)))
            report = self._submitted(context, report_file) if self._needs_spark else self._ran_here(report_file)
        return None if report is None else self._finished(result_of(report), context)

    def on_kill(self) -> None:
        """Kill the command; or the driver, then spark-submit: the provider kills spark-submit's JVM alone.

        Spark's Python workers end with the JVM. The driver is a child of it and would only notice at its next
        call into Spark; until then it would go on computing and committing beside the next attempt.
        """
        if self._command is not None:
            self._command.end()
        if self._hook is not None:
            kill_descendants(self._submission())
            super().on_kill()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  the provider calls it so
        """Return the job's sources and sinks to Airflow's OpenLineage provider, as `OperatorLineage`; None without the provider."""
        return operator_lineage(self._job)

    def _prepare(self) -> None:
        """Make the rendered arguments what spark-submit takes. Raises `ConfigError`."""
        self.application_args: list[str] = plain_words(self.application_args or [])
        _check_budget(value_of("budget", self.application_args), self._job.run.budget)
        if not self._needs_spark:
            return
        self._publish_master()
        self.conf = expand_settings(self.conf or {}, os.environ)
        java = _java(self._job.home)
        if self._job.profile.deploy_mode == "client":
            self.env_vars = {**(self.env_vars or {}), **java}
        else:
            # `env_vars` are the driver's, on another machine: these are for spark-submit, which takes them from this process.
            os.environ.update(java | {"PATH": task_environment(self._job.home, self._job.profile.python)["PATH"]})

    def _submitted(self, context: Context, report_file: ReportFile) -> Result | None:
        """Submit, wait, and return the driver's report. Raises what ends the task when the driver fails."""
        if self._hook is None:
            self._hook = self._get_hook()

        def keep_spark_ui(address: str) -> None:
            self.spark_ui_link = address
            context["ti"].xcom_push(key=SparkUiLink().xcom_key, value=address)

        # The provider offers no other way to leave lines out.
        log: Any = DriverLog(self._hook.log, on_spark_ui=keep_spark_ui, spark_info=self._spark_info)
        self._hook._log = log  # noqa: SLF001
        try:
            super().execute(context)
        except AirflowException:
            if not (exit_code := self._exit_code()):
                raise
            raise failure(exit_code, report_file.content()) from None
        return report_file.content()

    def _ran_here(self, report_file: ReportFile) -> Result | None:
        """Run the command in a process of its own, and return its report. Raises what ends the task when it fails."""
        self._command = HeadraceCommand(self.application_args, self._job.home, self._job.profile.python)
        exit_code, _ = self._command.shown(self.log)
        if exit_code:
            raise failure(exit_code, report_file.content())
        return report_file.content()

    def _finished(self, result: Result, context: Context) -> Result:
        """Tell assets, links, log and note of a run that ended well."""
        self.checkpoint_link = self._link_to(result, context)
        if said := degraded(result):
            self.log.warning("%s: %s", self._job.job, said)
            write_note(context, said, self.log)
        self.outlets = announce(result, self.outlets, context)
        return result

    def _link_to(self, result: Result, context: Context) -> str:
        if self._checkpoint_url is None:
            return result_page(context["ti"])
        job = self._job
        return self._checkpoint_url.format(job=job.job, checkpoint=result["checkpoint"], folder=job.job_folder)

    def _publish_master(self) -> None:
        """Make the profile's `master` a connection of this process, since spark-submit takes it from one.

        A profile that names a `connection` has it from Airflow's own store instead.
        """
        if self._job.profile.connection is None:
            connection = {"conn_type": "spark", "host": self._job.profile.master}
            os.environ[f"AIRFLOW_CONN_{self._conn_id.upper()}"] = json.dumps(connection)

    def _submission(self) -> Popen[str] | None:
        return None if self._hook is None else self._hook._submit_sp  # noqa: SLF001  the provider offers no other way

    def _exit_code(self) -> int | None:
        """Return spark-submit's exit code; in client mode it is the driver's."""
        submission = self._submission()
        return None if submission is None else submission.returncode


def _arguments(job: JobConfig, words: Mapping[str, object], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the provider's operator: what the job's files say, and above it what was `given`."""
    own = submission(job)
    merged = {name: {**own[name], **(given.get(name) or {})} for name in ("conf", "env_vars")}
    return {
        **own,
        "execution_timeout": job.run.budget + job.run.grace,
        "retries": job.run.retries,
        "retry_delay": job.run.retry_delay,
        "outlets": sink_assets(job),
        "application_args": run_words(job, words),
        **given,
        **merged,
    }


def _check_budget(budget: str | None, longest: timedelta) -> None:
    """Raise `ConfigError` for a budget that is none, or is longer than the job's own."""
    if budget is None:
        return
    try:
        span = parse_duration(budget)
    except ValueError as error:
        raise ConfigError(f"budget: {error}") from None
    if span > longest:
        raise ConfigError(
            f"budget: {budget} is longer than the job's own budget of {longest.total_seconds():.0f} s, after which Airflow ends "
            "the task. Raise run.budget in the job's file."
        )


def _java(home: Path) -> dict[str, str]:
    """Return JAVA_HOME for spark-submit where only the project has a Java (`headrace setup`), else nothing."""
    from headrace.provision.java import find_java

    java = find_java(home)
    return {} if java is None else {"JAVA_HOME": str(java)}
