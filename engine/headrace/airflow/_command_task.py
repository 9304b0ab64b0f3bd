"""Tasks that run the command `headrace`, and log its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowSkipException

from headrace.airflow._command import HeadraceCommand
from headrace.airflow._failures import failure
from headrace.errors import FencedError

if TYPE_CHECKING:
    from airflow.sdk import Context


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
        self._command = HeadraceCommand(self.words, self._home, self.python or None)
        exit_code, error = self._command.shown(self.log)
        if exit_code == FencedError.exit_code and self._skips_if_held:
            raise AirflowSkipException("another run holds the job: nothing was done, a later DAG run does it")
        if exit_code:
            raise failure(exit_code, error)

    def on_kill(self) -> None:
        """End the command."""
        if self._command is not None:
            self._command.end()
