"""Tasks `backfill` and `promote` of the replay DAG: they run `headrace backfill` on the DAG's branch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from airflow.sdk.exceptions import AirflowException, AirflowRescheduleException

from headrace import clock
from headrace.airflow._command import failure
from headrace.airflow._difference_summary import plan_text, rows_text, summary
from headrace.airflow._driver_operator import CommandFailed, DriverOperator
from headrace.airflow._notes import write_note
from headrace.airflow._partitions import keys_of
from headrace.airflow._replay_requests import requested, tell_requesters
from headrace.airflow._results import SparkUiLink, announce_promotion
from headrace.airflow._run_operator import RUN_ID
from headrace.airflow._words import option
from headrace.config import JobConfig, Promote
from headrace.errors import FencedError

if TYPE_CHECKING:
    from airflow.sdk import BaseOperatorLink, Context


BRANCH: Final = "replay"
"""Name of the replay DAG's branch."""

_SERVICES: Final = timedelta(minutes=5)
_HELD: Final = timedelta(minutes=1)


class ReplayTask(DriverOperator):
    """Run `headrace backfill` for the requested interval; return its result, and write it into the note.

    With `only_open` it continues an open branch, and never begins one. If the budget ran out, the backfill continues at once; if
    services are down, or another run holds the job or the branch, some minutes later. Neither uses up a retry.
    """

    operator_extra_links: Collection[BaseOperatorLink] = (SparkUiLink(),)

    def __init__(
        self, *, job: JobConfig, promote: Promote, only_open: bool = False, beyond_limits: bool = False, **kwargs: Any
    ) -> None:
        """Store the options. `promote` overrides the job's file. `beyond_limits`: a task before this one has asked a person."""
        words = [
            "backfill",
            job.job,
            option("cluster", job.cluster),
            option("name", BRANCH),
            option("promote", promote.value),
            "--only-open" if only_open else "--renew",
            option("run-id", RUN_ID),
            option("budget", f"{job.run.budget.total_seconds():.0f}s"),
            *(["--beyond-limits"] if beyond_limits else []),
            "--days",
            f"--limit={max(1, job.replay.show_rows)}",
        ]
        super().__init__(job=job, application_args=words, **kwargs)

    def execute(self, context: Context) -> dict[str, Any]:  # type: ignore[override]  # the provider's returns nothing
        """Run the backfill. Raises `AirflowRescheduleException` to continue later, and the exception of `failure`."""
        start, end = requested(context)
        self.application_args = [*(self.application_args or []), option("from", start), option("to", end)]
        self.log.info("asked for %s to %s", start, end)
        tell_requesters(
            context, lambda *_: f"the replay is at work: DAG {context['ti'].dag_id}, branch {BRANCH}", self.log
        )
        try:
            report = self.report(context)
        except CommandFailed as failed:
            if failed.exit_code == FencedError.exit_code:
                self.log.warning((failed.report or {}).get("message", "another run holds the job or the branch"))
                raise _later(_HELD) from None
            raise failure(failed.exit_code, failed.report) from None
        if report is None:
            raise AirflowException("the driver has written no report, so nobody knows how the backfill has ended")
        text = summary(report)
        self.log.info(text)
        write_note(context, text, self.log)
        tell_requesters(context, partial(_standing, report), self.log)
        _refuse_unfinished(report)
        self.outlets = self._announced(report, context)
        shown = rows_text(report, self._job.replay.show_rows)
        return {**_without_values(report), "plan": plan_text(report), "summary": text, "rows": shown}

    def _announced(self, report: Mapping[str, Any], context: Context) -> list[Any]:
        """Let the assets of the sinks tell of a promotion; return the outlets that have to."""
        if not self.outlets:
            return []
        if report["outcome"] == "nothing_open":
            report = self._promoted_before(report, context) or report
        if report["outcome"] != "promoted":
            return []
        return announce_promotion(report, self.outlets, context, partial(keys_of, self._job))

    def _promoted_before(self, report: Mapping[str, Any], context: Context) -> Mapping[str, Any] | None:
        """Return what an earlier try has promoted, which died before it told anybody: as the task before has compared it. None if it did not."""
        compared = context["ti"].xcom_pull(task_ids="backfill") or {}
        promotion, differences = report.get("promotion"), compared.get("differences")
        if promotion is None or differences is None or promotion <= differences["from"]:
            return None
        return {**compared, "outcome": "promoted", "promotion": promotion}


def _standing(report: Mapping[str, Any], start: str, end: str) -> str:
    """Return where the replay of an interval stands, for the task that has asked for it."""
    name, outcome = report["name"], report["outcome"]
    if outcome == "nothing_open":
        return f"the replay is over: branch {name} was promoted or dropped already"
    if report.get("differences") is None:
        reached = f"{len(report['checkpoints'])} more micro-batches on branch {name}"
        return f"the replay goes on: {_WAITS[outcome]} ({reached})" if outcome in _WAITS else f"the replay: {outcome}"
    changed = [
        table["table"]
        for table in report["differences"]["tables"]
        if any(first < end and start < last for first, last in table.get("intervals", ()))
    ]
    rows = f"rows of this day differ in {', '.join(changed)}" if changed else "no row of this day differs in any sink"
    if outcome == "promoted":
        return f"replayed and live: checkpoint {report['promotion']} has the result; {rows}"
    return f"replayed on branch {name}, {outcome.replace('_', ' ')}: {rows}"


_WAITS: Final = {"unfinished": "its budget ended, and the next attempt continues", "waiting": "services are down"}


def _refuse_unfinished(report: Mapping[str, Any]) -> None:
    """Raise `AirflowRescheduleException` for a backfill that must continue."""
    if report["outcome"] == "waiting":
        raise _later(_SERVICES)
    if report["outcome"] == "unfinished":
        if report["checkpoints"]:
            raise _later(timedelta())
        raise AirflowException(f"the backfill ended without progress ({report['stopped_because']})")


def _later(delay: timedelta) -> AirflowRescheduleException:
    # Airflow gives this class no types.
    return AirflowRescheduleException(datetime.fromtimestamp(clock.now() / 1000, UTC) + delay)  # type: ignore[no-untyped-call]


def _without_values(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report without rows: Airflow's database stores values of keys and states only where the job's file allows it."""
    differences = report.get("differences")
    if differences is None:
        return dict(report)
    tables = [{name: value for name, value in table.items() if name != "rows"} for table in differences["tables"]]
    return {**report, "differences": {**differences, "tables": tables}}
