"""Task `plan` of a replay DAG whose job has limits: it finds out, without Spark, if a person has to allow the replay."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException

from headrace.airflow._command import failure
from headrace.airflow._difference_summary import plan_text
from headrace.airflow._driver_operator import CommandFailed, DriverOperator
from headrace.airflow._replay_requests import requested
from headrace.airflow._replay_task import BRANCH
from headrace.airflow._words import option
from headrace.config import JobConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


BEYOND: Final = "beyond_limits"
"""Outcome of a plan that a person has to allow."""


def has_limits(job: JobConfig) -> bool:
    """Return whether a job's file sets a limit to backfills."""
    return job.replay.max_calls is not None or job.replay.max_minutes is not None


class PlanTask(DriverOperator):
    """Plan the replay of the requested interval; return the plan, and its text for the person who may be asked."""

    def __init__(self, *, job: JobConfig, **kwargs: Any) -> None:
        """Store the words of the command."""
        words = ["backfill", job.job, option("cluster", job.cluster), option("name", BRANCH), "--renew", "--dry-run"]
        super().__init__(job=job, application_args=words, runner="local", **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # the provider's returns nothing
        """Run the command. Raises the exception of `failure`."""
        start, end = requested(context)
        self.application_args = [*(self.application_args or []), option("from", start), option("to", end)]
        try:
            report = self.report(context)
        except CommandFailed as failed:
            raise failure(failed.exit_code, failed.report) from None
        if report is None:
            raise AirflowException("the command has written no plan")
        text = plan_text(report)
        self.log.info(text)
        return {**report, "plan": text, "outcome": BEYOND if report["beyond_limits"] else "within_limits"}
