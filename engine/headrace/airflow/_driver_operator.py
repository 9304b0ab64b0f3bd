"""Base of operators that run a driver, and the log of a driver in their tasks.

A driver on the task's machine is the command itself, which starts Spark when it needs it, with the settings that Airflow's Spark
provider has for spark-submit. A driver on the cluster goes through spark-submit. The log has the driver's lines, and Spark's warnings and
errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any, Literal

import psutil
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk.exceptions import AirflowException

from headrace.airflow._command import HeadraceCommand, ReportFile
from headrace.airflow._lines import log_object, object_of
from headrace.airflow._results import SparkUiLink, operator_lineage
from headrace.airflow._submission import packed_home, submission, task_environment
from headrace.airflow._telemetry import telemetry_environment, trace_context
from headrace.airflow._words import option, plain_words, value_of
from headrace.config import JobConfig, expand_settings
from headrace.errors import ConfigError
from headrace.provision.pyspark import SUBMIT_OPTIONS

if TYPE_CHECKING:
    from airflow.sdk import Context


_SPARK_CHATTER = re.compile(r"\d\d/\d\d/\d\d \d\d:\d\d:\d\d (INFO|DEBUG|TRACE) ")
_SPARK_SUBMIT = "spark-submit"
_RM_ADDRESS = "yarn_resourcemanager_webapp_address"
"""Key of a Spark connection's extras, with which the provider can ask YARN for the state of a driver."""
_OF_RUN = "headrace_driver"
"""Key of the task's state store: the driver that was submitted last, and the run that it is for."""
_UNKNOWN = "NOT_KNOWN"
_SPARK_UI = re.compile(r"\bSpark UI at (https?://\S+)")


class DriverLog:
    """Logger that leaves out Spark's lines of level INFO and below, and reports the address of the Spark UI.

    It replaces the logger of the Spark provider's hook, which logs each line of its process's output.
    """

    def __init__(self, log: Any, *, on_spark_ui: Callable[[str], None], spark_info: bool = False) -> None:
        """Pass lines to `log`. `on_spark_ui` gets the address when a line has it. With `spark_info`, leave nothing out."""
        self._log = log
        self._on_spark_ui = on_spark_ui
        self._spark_info = spark_info

    def info(self, line: object, *arguments: object, **fields: object) -> None:
        """Log a line, unless Spark wrote it at level INFO or below. An object of Headrace's keeps its level and fields."""
        content = object_of(str(line))
        text = str(line) if content is None else content["message"]
        if (address := _SPARK_UI.search(text)) is not None:
            self._on_spark_ui(address[1])
        if content is not None:
            log_object(self._log, content)
        elif self._spark_info or not _SPARK_CHATTER.match(text):
            self._log.info(line, *arguments, **fields)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


def kill_descendants(process: Popen[str] | None) -> None:
    """Kill every process that `process` has started, directly or not; do not kill `process` itself."""
    if process is None or process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()


Report = dict[str, Any]
"""Report of a command from `--report`: its result, or its error."""


class CommandFailed(Exception):  # noqa: N818  it says what has happened
    """A command ended with another exit code than 0. `report` has its error, None if the command wrote none."""

    def __init__(self, exit_code: int, report: Report | None) -> None:
        super().__init__(f"exit code {exit_code}")
        self.exit_code, self.report = exit_code, report


class DriverOperator(SparkSubmitOperator):
    """Run a `headrace` command as the driver of a job's Spark application, on the job's cluster profile.

    `application_args` are the words of the command, which may be templates. If `runner`, else the profile, says `local`, or if the
    profile's master is a server of Spark Connect, the task runs the command itself, without a JVM. `spark_info` shows Spark's lines of level INFO.
    """

    def __init__(
        self,
        *,
        job: JobConfig,
        application_args: Sequence[str],
        runner: Literal["spark", "local"] | None = None,
        spark_info: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**_arguments(job, application_args, kwargs))
        self.spark_ui_link = ""
        self.described_lineage: dict[str, Any] | None = None
        self._job = job
        self._needs_spark = (runner or job.profile.runner) == "spark" and not job.profile.is_connect
        self._command: HeadraceCommand | None = None
        self._spark_info = spark_info
        self._is_own_driver = False
        self._finds_driver = False

    @property
    def _is_elsewhere(self) -> bool:
        """Return whether the driver runs on another machine, where it outlives its client."""
        return self._needs_spark and self._job.profile.deploy_mode == "cluster"

    def report(self, context: Context) -> Report | None:
        """Run the command; return its report, None if the driver runs on another machine and cannot pass it on.

        Raises `CommandFailed` when it ends with another exit code than 0, or would for its words, and `AirflowException` when it
        could not be submitted.
        """
        try:
            self.prepare()
        except ConfigError as error:
            raise CommandFailed(error.exit_code, {"error": type(error).__name__, "message": str(error)}) from None
        with ReportFile() as report_file:
            if not self._is_elsewhere:
                self.application_args = [*(self.application_args or []), option("report", report_file.path)]
            else:
                home = packed_home(self._job, report_file.path.parent)
                self._archives = ",".join(filter(None, (self._archives, home)))
            return self._submitted(context, report_file) if self._needs_spark else self._ran_here(report_file)

    def on_kill(self) -> None:
        """Kill the command with its processes: the provider kills only the process that it has started.

        Spark's JVM would notice at its next look at its input, and the processes of its workers after it. Until then they would go on
        beside the next attempt.
        """
        if self._command is not None:
            self._command.end()
        if self._hook is not None:
            kill_descendants(self._submission())
            super().on_kill()

    def submit_job(self, context: Context) -> str | None:
        """Submit a driver, called by the provider; keep for which run it is. Airflow keeps a task's state when the task is cleared."""
        store = context.get("task_state_store")
        if store is not None:
            store.delete(self._K8S_DRIVER_STATUS_KEY)  # the provider's, of an earlier driver
        driver = super().submit_job(context)
        if store is not None and driver is not None:
            store.set(_OF_RUN, self._of_run(driver))
        return driver

    def get_job_status(self, external_id: Any, context: Context) -> str:
        """Return the state of the driver that an earlier attempt has submitted. One that nobody knows any more has ended.

        A driver of another run, before somebody has cleared the task, is waited for: this run has its own driver after it.
        """
        self._is_own_driver = context["task_state_store"].get(_OF_RUN) == self._of_run(external_id)
        try:
            status = super().get_job_status(external_id, context)
        except Exception as error:  # noqa: BLE001  of the provider, of its clients
            self.log.warning("the state of driver %s is not known, so another one is submitted: %s", external_id, error)
            return _UNKNOWN  # if it still runs, the job's lease refuses the other one
        if self._is_own_driver or not self.is_job_active(status):
            return status
        self.log.info("driver %s is that of another run of this task: this run begins when it has ended", external_id)
        with suppress(Exception):  # the failure of another run is none of this one
            self.poll_until_complete(external_id, context)
        return _UNKNOWN

    def is_job_active(self, status: str) -> bool:
        """Return whether a driver in this state still runs."""
        return status != _UNKNOWN and super().is_job_active(status)

    def is_job_succeeded(self, status: str) -> bool:
        """Return whether this run has ended well in an earlier attempt. A cleared task has another run id, and runs again."""
        return self._is_own_driver and super().is_job_succeeded(status)

    def poll_until_complete(self, external_id: Any, context: Context) -> None:
        """Wait for a driver. Airflow may end this task meanwhile: then `on_kill` has to know the driver."""
        if self._hook is not None and self._hook._is_yarn_cluster_mode:  # noqa: SLF001  the provider offers no other way
            self._hook._yarn_application_id = external_id  # noqa: SLF001
        super().poll_until_complete(external_id, context)

    def _of_run(self, driver: str) -> Any:
        return {"driver": driver, "run_id": value_of("run-id", self.application_args or [])}

    def _reconnect(self, hook: Any) -> None:
        """Let the provider keep the id of a driver elsewhere, and find it again in a retry, if it can ask for the driver's state."""
        if hook._is_yarn_cluster_mode and hook._conf.get(_WAITS, "").lower() != "true" and _has_rm_address(hook):  # noqa: SLF001
            self._yarn_track_via_rm_api = hook._yarn_track_via_rm_api = True  # noqa: SLF001
            self.durable = True
        elif hook._should_track_driver_via_k8s_api():  # noqa: SLF001
            self.durable = True

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:  # noqa: ARG002  the provider calls it so
        """Return the job's sources and sinks as `OperatorLineage` of Airflow's OpenLineage provider; None without the provider."""
        return operator_lineage(self._job, self.described_lineage)

    def get_openlineage_facets_on_start(self) -> Any:
        """Return the places of the job's sources and sinks, as `get_openlineage_facets_on_complete` does: the run tells their columns."""
        return operator_lineage(self._job)

    def prepare(self) -> None:
        """Turn the rendered arguments into those of spark-submit. Raises `ConfigError` for invalid ones."""
        self.application_args: list[str] = plain_words(self.application_args or [])
        if not self._needs_spark:
            return
        self._publish_master()
        self.conf = expand_settings(self.conf or {}, os.environ)
        given = (self.env_vars or {}).get("SPARK_SUBMIT_OPTS", os.environ.get("SPARK_SUBMIT_OPTS", ""))
        java = _java(self._job.home, given, str(self.conf.get("spark.driver.extraJavaOptions", "")))
        if self._job.profile.deploy_mode == "client":
            self.env_vars = {**(self.env_vars or {}), **java}
        else:
            # `env_vars` are for the driver on another machine. spark-submit takes its own from this process.
            self.env_vars = {**(self.env_vars or {}), **trace_context()}
            os.environ.update(java | {"PATH": task_environment(self._job.home, self._job.profile.python)["PATH"]})

    def _submitted(self, context: Context, report_file: ReportFile) -> Report | None:
        """Let the provider start the driver, wait, and return the driver's report. Raises `CommandFailed` when the driver fails."""
        if self._hook is None:
            self._hook = self._get_hook() if self._is_elsewhere else self._hook_of_driver()
            if self._is_elsewhere and self._finds_driver:
                self._reconnect(self._hook)

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
            raise CommandFailed(exit_code, report_file.content()) from None
        return report_file.content()

    def _hook_of_driver(self) -> Any:
        """Return the provider's hook, which starts the driver itself in place of spark-submit, and gives it the options of spark-submit.

        So a run that has nothing to do starts no JVM, and one that has waits for one Python less. A program that the connection names in
        place of spark-submit (`spark-binary`) starts the driver as ever.
        """
        words, self.application_args = self.application_args, []
        hook: Any = self._get_hook()
        self.application_args = words
        build = hook._build_spark_submit_command  # noqa: SLF001  the provider offers no other way
        python = self._job.profile.python or sys.executable

        def command(application: str) -> list[str]:
            program, *options = build("pyspark-shell")
            if program != _SPARK_SUBMIT:
                hook._application_args = words  # noqa: SLF001
                return list(build(application))
            telemetry = telemetry_environment({**os.environ, **(hook._env or {})})  # noqa: SLF001
            hook._env = {**(hook._env or {}), **telemetry, SUBMIT_OPTIONS: shlex.join(options)}  # noqa: SLF001
            return [python, application, *words]

        hook._build_spark_submit_command = command  # noqa: SLF001
        return hook

    def _ran_here(self, report_file: ReportFile) -> Report | None:
        """Run the command in its own process, and return its report. Raises `CommandFailed` when it fails."""
        self._command = HeadraceCommand(self.application_args, self._job.home, self._job.profile.python)
        if exit_code := self._command.shown(self.log):
            raise CommandFailed(exit_code, report_file.content())
        return report_file.content()

    def _publish_master(self) -> None:
        """Make the profile's `master` a connection of this process: the provider reads it from a connection.

        A profile that names a `connection` uses the one in Airflow's store instead.
        """
        if self._job.profile.connection is None:
            connection = {"conn_type": "spark", "host": self._job.profile.master}
            os.environ[f"AIRFLOW_CONN_{self._conn_id.upper()}"] = json.dumps(connection)

    def _submission(self) -> Popen[str] | None:
        return None if self._hook is None else self._hook._submit_sp  # noqa: SLF001  the provider offers no other way

    def _exit_code(self) -> int | None:
        """Return spark-submit's exit code, which in client mode is the driver's."""
        submission = self._submission()
        return None if submission is None else submission.returncode


def _arguments(job: JobConfig, words: Sequence[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the provider's operator: those of the job's files, overridden by those `given`."""
    own = submission(job)
    merged = {name: {**own[name], **(given.get(name) or {})} for name in ("conf", "env_vars")}
    return {
        **own,
        "execution_timeout": job.run.budget + job.run.grace,
        "retries": job.run.retries,
        "retry_delay": job.run.retry_delay,
        "application_args": list(words),
        **given,
        **merged,
    }


_WAITS = "spark.yarn.submit.waitAppCompletion"


def _has_rm_address(hook: Any) -> bool:
    with suppress(AirflowException):
        return bool(hook.get_connection(hook._conn_id).extra_dejson.get(_RM_ADDRESS))  # noqa: SLF001
    return False


def _java(home: Path, given: str, java_options: str) -> dict[str, str]:
    """Return the variables that say which Java spark-submit takes, and the archive of its classes; an empty mapping without a Java.

    Options `given` in SPARK_SUBMIT_OPTS stay there; `java_options` are those of the driver's settings.
    """
    from headrace.provision.class_archive import ClassArchive
    from headrace.provision.java import find_java
    from headrace.provision.pyspark import spark_home

    java = find_java(home)
    if java is None:
        return {}
    variables = {"JAVA_HOME": str(java)}
    with suppress(ConfigError):  # spark-submit may be of another Python than this process
        archive = ClassArchive(home, java, spark_home())
        if options := archive.submit_options(given, java_options):
            variables["SPARK_SUBMIT_OPTS"] = options
    return variables
