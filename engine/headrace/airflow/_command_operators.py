"""Operators that change a job without running it: compaction, restore, savepoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from headrace.airflow._command import HeadraceCommand
from headrace.airflow._home import given_job
from headrace.config import JobConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


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
    """Rewrite the state tables of a job to one row per live entry: `headrace compact`.

    With `every`, only if at least this many runs have committed since the last compaction.
    """

    template_fields: Sequence[str] = ("every",)

    def __init__(self, *, job: str | JobConfig, every: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(job=job, **kwargs)
        self.every = every

    def words(self) -> list[str]:
        """Return the words of `headrace compact`."""
        return ["compact", self.job, *([] if self.every in {None, "", "None"} else [f"--every={self.every}"])]


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
