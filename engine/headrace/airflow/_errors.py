"""Ends of a run that Airflow must not retry."""

from __future__ import annotations

from airflow.sdk.exceptions import AirflowFailException

from headrace.errors import IntervalError, SinkMismatchError

_FINAL = {
    IntervalError.exit_code: "the run's interval was refused. Run the missing interval first, or trigger with the param `replay`",
    SinkMismatchError.exit_code: "the job and a sink disagree on what was published. 'headrace reconcile JOB' shows the difference and mends it",
}


def final_error(exit_code: int | None) -> AirflowFailException | None:
    """Return the error that ends the task without a retry; None for an exit code after which a retry may help."""
    if exit_code not in _FINAL:
        return None
    return AirflowFailException(
        f"The driver ended with exit code {exit_code}: {_FINAL[exit_code]}. "
        "The task is not retried, since a retry would end the same; the log above has the driver's message."
    )
