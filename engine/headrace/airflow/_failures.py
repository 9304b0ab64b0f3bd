"""Failures of tasks: decide whether a failed command ends its task for good, or with a retry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from headrace import errors

_FINAL = (
    errors.ConfigError,
    errors.UserFunctionError,
    errors.StateSchemaError,
    errors.SourceError,
    errors.IntervalError,
    errors.SinkMismatchError,
    errors.ConflictError,
)
_BY_SIGNAL = 128
"""A shell, or spark-submit, ends with this and the number of the signal that ended its child."""

_CAUSES = {
    9: ": most often memory ran out, and the machine or the container killed it; or somebody did",
    15: ": somebody, or the scheduler, told it to stop",
}
FINAL_EXIT_CODES = frozenset(error.exit_code for error in _FINAL)
"""Exit codes after which a retry would end the same: somebody has to act first."""


def failure(exit_code: int, report: Mapping[str, Any] | None = None) -> AirflowException:
    """Return the exception that ends a task whose command ended with `exit_code`.

    It is an `AirflowFailException`, after which Airflow does not retry, for `FINAL_EXIT_CODES`. `report` has the error as the
    command wrote it (`error`, `message`); without it the sentence names what is known of the exit code.
    """
    sentence = _unreported(exit_code) if report is None else f"{report['error']}: {report['message']}"
    if exit_code in FINAL_EXIT_CODES:
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
        if error.exit_code == exit_code and error not in {errors.HeadraceError, errors.EngineBug}:
            return f"{error.__name__}: {error.__doc__} The log above has the message."
    return f"the command ended with exit code {exit_code}. The log above says why."
