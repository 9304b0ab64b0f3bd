"""Commands of `headrace` as tasks of a DAG: failures, processes, and operators.

The file has the exception that ends a task after a failed command, for good or with a retry; the process of a command
and its JSON output; a task for any command; and operators for compaction, restore and savepoint, which change a job
without running it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSkipException

from headrace import errors
from headrace.airflow._home import given_job
from headrace.airflow._lines import log_line
from headrace.airflow._submission import task_environment
from headrace.airflow._telemetry import telemetry_environment
from headrace.airflow._words import option
from headrace.config import JobConfig
from headrace.errors import FencedError

if TYPE_CHECKING:
    from airflow.sdk import Context


_FINAL = (
    errors.ConfigError,
    errors.UserFunctionError,
    errors.StateSchemaError,
    errors.SourceError,
    errors.IntervalError,
    errors.SinkMismatchError,
    errors.ConflictError,
    errors.LimitError,
)
_BY_SIGNAL = 128
"""A shell, or spark-submit, ends with this and the number of the signal that ended its child."""

_CAUSES = {
    9: ": most often memory ran out, and the machine or the container killed it; or somebody did",
    15: ": somebody, or the scheduler, told it to stop",
}
FINAL_EXIT_CODES = frozenset(error.exit_code for error in _FINAL)
"""Exit codes after which a retry would end the same: somebody has to act first."""


_NO_COMMAND = (
    "the command ended with exit code 2, and has written no report: Python itself does so where it cannot open a file. The log above says why. "
    "Nothing was done."
)


def failure(exit_code: int, report: Mapping[str, Any] | None = None) -> AirflowException:
    """Return the exception that ends a task whose command ended with `exit_code`.

    It is an `AirflowFailException`, after which Airflow does not retry, for `FINAL_EXIT_CODES`, unless the interval was only open: a retry may come
    later. `report` has the error as the
    command wrote it (`error`, `message`); without them, as of a command whose output was lost, the sentence names what is known of the exit code.
    """
    has_error = report is not None and "error" in report
    if exit_code == errors.ConfigError.exit_code and not has_error:
        return AirflowException(f"{_NO_COMMAND}\n(exit code {exit_code})")
    sentence = f"{report['error']}: {report['message']}" if report and has_error else _unreported(exit_code)
    is_open = report is not None and report.get("error") == errors.OpenIntervalError.__name__
    if exit_code in FINAL_EXIT_CODES and not is_open:
        return AirflowFailException(f"{sentence}\n(exit code {exit_code}: not retried, a retry would end the same)")
    return AirflowException(f"{sentence}\n(exit code {exit_code})")


def _unreported(exit_code: int) -> str:
    """Return a sentence for a command that wrote no report."""
    signal = -exit_code if exit_code < 0 else exit_code - _BY_SIGNAL
    if signal > 0:
        return f"signal {signal} ended the command{_CAUSES.get(signal, '')}. Nothing half done was left: the next run goes on from the last checkpoint."
    known = (
        error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, errors.HeadraceError)
    )
    for error in known:
        # Python itself ends with 1 where it could not even start the command.
        if error.exit_code == exit_code and error not in {errors.HeadraceError, errors.EngineBug, errors.CheckFailed}:
            return f"{error.__name__}: {error.__doc__} The log above has the message."
    return f"the command ended with exit code {exit_code}. The log above says why."


class ReportFile:
    """File of `--report` in its own temporary folder, for the length of a block: a command on this machine passes its report in it."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-run-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def path(self) -> Path:
        """Return the path to which the command writes the report."""
        return self._folder / "report.json"

    def content(self) -> dict[str, Any] | None:
        """Return the command's report; None if the command was killed before it wrote one."""
        with contextlib.suppress(OSError, ValueError):
            content = json.loads(self.path.read_bytes())
            return content if isinstance(content, dict) else None
        return None


class HeadraceCommand:
    """One `headrace` command, as a process that a task can end."""

    def __init__(self, words: Sequence[str], home: Path, python: str | None = None) -> None:
        """Store the command. `words` are its arguments; `home` is the folder that holds `conf/`.

        Uses the command of the environment of `python`, by default the Python that runs the task.
        """
        self._words = ["headrace", *words]
        self._environment = {**os.environ, **task_environment(home, python), **telemetry_environment(os.environ)}
        self._process: subprocess.Popen[str] | None = None

    def answer(self, log: Any) -> dict[str, Any]:
        """Run the command with `--json`, pass its messages to `log`, and return its output.

        Raises the exception of `failure` unless the exit code is 0.
        """
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            with self._started("--json", stdout=printed, stderr=subprocess.PIPE) as process:
                for line in process.stderr or ():
                    log_line(log, line.rstrip())
            printed.seek(0)
            return answer_of(printed.read(), process.returncode)

    def shown(self, log: Any) -> int:
        """Run the command, pass its output to `log`, and return its exit code."""
        with self._started(stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
            for line in process.stdout or ():
                log_line(log, line.rstrip())
        return process.returncode

    def _started(self, *options: str, stdout: Any, stderr: int) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [*self._words, *options], env=self._environment, stdout=stdout, stderr=stderr,
            text=True, encoding="utf-8", errors="replace",  # user code may print any bytes
        )  # fmt: skip
        return self._process

    def end(self) -> None:
        """End the process if it runs. Its commits stay, and it leaves nothing half done."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()


def answer_of(printed: str, exit_code: int) -> dict[str, Any]:
    """Return the JSON object that a command printed. Raises the exception of `failure` unless the exit code is 0."""
    content: Any = None
    with contextlib.suppress(ValueError):
        content = json.loads(printed)
    if exit_code or not isinstance(content, dict):
        has_error = isinstance(content, dict) and {"error", "message"} <= content.keys()
        raise failure(exit_code, content if has_error else None)
    return content


class CommandTask(BaseOperator):
    """Run `headrace WORDS` on the jobs of `home`. Exit codes end the task as they do for a run.

    `words` and `python` may be templates; no shell reads them. `python` is the interpreter whose environment has the
    command; if empty or None, it is the interpreter that runs the task. With `skip_if_held` the task is skipped, not failed, while another run holds
    the job.
    """

    template_fields: Sequence[str] = ("words", "python")

    def __init__(
        self, *, words: Sequence[str], home: Path, python: str | None = None, skip_if_held: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.words = list(words)
        self.python = python
        self._home = home
        self._skips_if_held = skip_if_held
        self._command: HeadraceCommand | None = None

    def execute(self, context: Context) -> None:  # noqa: ARG002  Airflow calls it so
        """Run the command. Raises `AirflowFailException` if a retry cannot help, and `AirflowException` for other failures."""
        with ReportFile() as report:
            words = [*self.words, option("report", report.path)]
            self._command = HeadraceCommand(words, self._home, self.python or None)
            exit_code, error = self._command.shown(self.log), report.content()
        if exit_code == FencedError.exit_code and self._skips_if_held:
            raise AirflowSkipException("another run holds the job: nothing was done, a later DAG run does it")
        if exit_code:
            raise failure(exit_code, error)

    def on_kill(self) -> None:
        """End the command."""
        if self._command is not None:
            self._command.end()


class _JobOperator(BaseOperator):
    """Run a `headrace` command on a job; return its JSON output.

    `job` is the name of a file in `conf/jobs/`, `home` the folder that holds `conf/` ($HEADRACE_HOME, else the nearest folder
    above the DAG file). Exit codes end the task as they do for a run.
    """

    def __init__(self, *, job: str | JobConfig, home: str | Path | None = None, **kwargs: Any) -> None:
        """Read the job's file. Raises `ConfigError` for an unknown job, or a wrong file."""
        config = given_job(job, home)
        super().__init__(**{"execution_timeout": config.run.budget + config.run.grace, **kwargs})
        self.job = config.job
        self._home, self._python = config.home, config.profile.python
        self._command: HeadraceCommand | None = None

    def words(self) -> list[str]:
        """Return the words of the command, rendered."""
        raise NotImplementedError

    def execute(self, context: Context) -> dict[str, Any]:
        """Run the command; return `job` and `checkpoint` (None if there was nothing to do)."""
        self._command = HeadraceCommand([*self.words(), f"--run-id={context['run_id']}"], self._home, self._python)
        return self._command.answer(self.log)

    def on_kill(self) -> None:
        """End the command."""
        if self._command is not None:
            self._command.end()


class HeadraceCompactOperator(_JobOperator):
    """Rewrite the state tables of a job to one row per live entry: `headrace maintain --state`.

    With `every`, only if at least this many runs have committed since the last compaction.
    """

    template_fields: Sequence[str] = ("every",)

    def __init__(self, *, job: str | JobConfig, every: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.every = every

    def words(self) -> list[str]:
        """Return the words of `headrace maintain --state`."""
        return [
            "maintain",
            self.job,
            "--state",
            *([] if self.every in {None, "", "None"} else [f"--every={self.every}"]),
        ]


class HeadraceRestoreOperator(_JobOperator):
    """Take state and sinks of a job back to checkpoint `to`, an id or the name of a savepoint: `headrace restore`.

    `why` is kept with the new checkpoint. A restore deletes nothing: another restore undoes it.
    """

    template_fields: Sequence[str] = ("to", "why")

    def __init__(self, *, job: str | JobConfig, to: int | str, why: str, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.to = to
        self.why = why

    def words(self) -> list[str]:
        """Return the words of `headrace restore`."""
        return ["restore", self.job, f"--to={self.to}", f"--why={self.why}", "--yes"]


class HeadraceSavepointOperator(_JobOperator):
    """Give the present state of a job a name, so that retention keeps it: `headrace savepoint`. `why` is kept with it."""

    template_fields: Sequence[str] = ("savepoint", "why")

    def __init__(self, *, job: str | JobConfig, savepoint: str, why: str, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.savepoint = savepoint
        self.why = why

    def words(self) -> list[str]:
        """Return the words of `headrace savepoint`."""
        return ["savepoint", self.job, self.savepoint, f"--why={self.why}"]
