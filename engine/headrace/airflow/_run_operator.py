"""Operator of a run, and the rules for the data interval that it takes from its DAG run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from zoneinfo import ZoneInfo

import pendulum
from airflow.sdk import CronTriggerTimetable
from airflow.sdk.exceptions import AirflowException, AirflowFailException

from headrace.airflow._command import HeadraceCommand, failure
from headrace.airflow._driver_operator import CommandFailed, DriverOperator, Report
from headrace.airflow._home import given_job
from headrace.airflow._notes import degraded, done, note_of, write_note
from headrace.airflow._order_of_runs import (
    asked_at,
    hold_behind_failed_run,
    is_cancelled,
    is_cleared,
    is_triggered,
    refuse,
    wait_for_earlier,
    wait_for_holder,
    wait_until,
)
from headrace.airflow._partitions import interval_of_partition, keys_of
from headrace.airflow._replay_requests import register, replay_asset, replay_id, without_replay
from headrace.airflow._results import (
    CheckpointLink,
    Result,
    SparkUiLink,
    announce,
    keep_position,
    reports_lineage,
    result_of,
    result_page,
    sink_assets,
)
from headrace.airflow._settings import tell_of_alerts, unknown_params
from headrace.airflow._submission import run_words
from headrace.airflow._words import option, plain_words, value_of, with_interval
from headrace.config import JobConfig, parse_duration
from headrace.errors import ConfigError, FencedError, IntervalError

if TYPE_CHECKING:
    from airflow.sdk import DAG, BaseOperatorLink, Context


def refuse_foreign_interval(context: Context) -> None:
    """Raise `AirflowFailException` for a backfill that has taken over a manual DAG run.

    If a trigger or `airflow dags test` starts a run for a logical date, the run's interval ends at that date. A backfill of the same
    date clears that run and starts it again, with the same interval. If the scheduler or a backfill makes a run, its interval begins
    at the logical date.
    """
    run = context["dag_run"]
    date, start, end = run.logical_date, run.data_interval_start, run.data_interval_end
    if run.run_type != "backfill" or None in {date, start} or date == start:
        return
    raise AirflowFailException(
        f"IntervalError: this backfill is for the interval that starts at {date:%Y-%m-%d %H:%M}, and has taken over the DAG run "
        f"'{context['run_id']}', which was made by hand ('airflow dags test', or a trigger for a logical date) and has the "
        f"interval {start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}. Nothing was done. Delete that DAG run, in the UI or with the API, "
        "and make the backfill again."
    )


def refuse_unknown_zone(dag: DAG, job: JobConfig) -> None:
    """Raise `AirflowFailException` if a DAG cuts time in a zone other than UTC, and a source does not say in which zone its files do.

    For a job with a `schedule`, the check of the job's file asks for the zone. A DAG of one's own has a schedule that the file does not
    know.
    """
    zone = str(getattr(dag.timetable, "timezone", dag.timezone))
    unknown = [name for name, source in job.sources.items() if source.pattern is not None and source.timezone is None]
    if not unknown or ZoneInfo(zone).utcoffset(None) == timedelta(0):
        return
    raise AirflowFailException(
        f"ConfigError: the DAG is in {zone}, and source '{unknown[0]}' of job '{job.job}' does not say in which zone the times in {job.sources[unknown[0]].timed} "
        f"are. Nothing was done. In {job.where(f'sources.{unknown[0]}')} write timezone: {zone}, or timezone: UTC."
    )


def interval_of_trigger(context: Context) -> tuple[str, str] | None:
    """Return the interval that ends with a run of a trigger timetable: from the previous trigger to this one. Else None.

    Airflow 3 makes a trigger timetable of a cron expression such as "@daily", and gives its runs an interval without length,
    in which no file is. The day of such a run is the one that a run of `CronDataIntervalTimetable` at this moment has.
    """
    start, end = context["dag_run"].data_interval_start, context["dag_run"].data_interval_end
    if end is None or start != end:
        return None
    timetable = context["dag"].timetable
    if not isinstance(timetable, CronTriggerTimetable):
        return None
    from airflow.timetables.interval import CronDataIntervalTimetable

    intervals = CronDataIntervalTimetable(timetable.expression, timetable.timezone)
    interval = intervals.infer_manual_data_interval(run_after=pendulum.instance(end))
    return interval.start.isoformat(), interval.end.isoformat()


INTERVAL_START = "{{ dag_run.data_interval_start.isoformat() if dag_run.data_interval_start else '' }}"
INTERVAL_END = "{{ dag_run.data_interval_end.isoformat() if dag_run.data_interval_end else '' }}"
# A label for people, in checkpoints and logs: behind a cleared run, the number of tries before. It decides nothing.
MODE = "{{ 'interval' if dag_run.run_type == 'backfill' else 'auto' }}"
RUN_ID = "{{ run_id }}{{ '.' ~ (ti.max_tries - task.retries) if ti.max_tries > task.retries else '' }}"

_SECOND = 2
_REFUSALS = frozenset({ConfigError.exit_code, IntervalError.exit_code})
"""Exit codes of a run that cannot be what was asked for: nothing was done."""


class HeadraceRunOperator(DriverOperator):
    """Run a job once, as `headrace run` does, on the job's cluster profile. A run without work starts no JVM.

    Give `job` as the name of a file in `conf/jobs/`; `home` is the folder that holds `conf/` ($HEADRACE_HOME, else the nearest
    folder above the DAG file). All other options are those of `headrace run`, may be templates, and are left out when they
    render to nothing. With `runner="local"`, or if the cluster profile says so, the task runs the command itself, on its own machine and
    without a JVM. The task returns the run's report, and updates the assets of the job's sinks that have news.

    `budget` can shorten the run's budget, never prolong it: Airflow ends the task at the budget and grace of the job's file.
    References to the environment in the profile's Spark settings are replaced when the task runs, so that the serialised DAG
    holds no secret. `checkpoint_url` is the target of the link "Headrace checkpoint", with `{job}`, `{checkpoint}` and `{folder}`; by
    default the task's result. `spark_info` shows Spark's lines of level INFO. With `hold_after_failure` a run waits while the same
    task of another run of the DAG has failed. `known_params`, if given, are the only params that the DAG accepts. With
    `skip_refused` a run that somebody triggered, and that cannot be what was asked for (exit code 2 or 9), or whose backfill was
    cancelled, ends as skipped: then it holds up no other run. With `check` and `verify` the run also does, in its own process, what
    `headrace check --no-sample` does before it, and `headrace verify` after it: both are `steps` of its report. With `register_replay`, a run whose interval was taken in already succeeds and starts the job's replay DAG, if the input
    of the interval has changed, or if a person asked for it again: by clearing the task, by a backfill, or by a run for a logical date.
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
        finish: bool | str = False,
        end_of_input: bool | str = False,
        force_fail_over: bool | str = False,
        checkpoint_url: str | None = None,
        spark_info: bool = False,
        hold_after_failure: bool = False,
        known_params: Collection[str] | None = None,
        skip_refused: bool = False,
        register_replay: bool = False,
        check: bool | str = False,
        verify: bool | str = False,
        **kwargs: Any,
    ) -> None:
        """Read the job's file. Raises `ConfigError` for an unknown job, or a wrong file."""
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
            "finish": finish,
            "end-of-input": end_of_input,
            "no-follow": register_replay,
            "check": check,
            "verify": verify,
        }
        outlets = [*sink_assets(config), *([replay_asset(config.job)] if register_replay else [])]
        settings = {"outlets": outlets, "runner": runner, "spark_info": spark_info, **kwargs}
        super().__init__(job=config, application_args=run_words(config, words), **settings)
        self._finds_driver = True
        self.checkpoint_link = ""
        self._checkpoint_url = checkpoint_url
        self._holds_after_failure = hold_after_failure
        self._skips_refused = skip_refused
        self._known_params = None if known_params is None else frozenset(known_params)

    def execute(self, context: Context) -> Result | None:  # type: ignore[override]  # the provider's returns nothing
        """Run the job; return its report. That of a driver on another machine is read from its checkpoints; None if they cannot be read.

        Raises `AirflowFailException` if a retry cannot help, `AirflowRescheduleException` after a failed run and while another
        run holds the job, `AirflowSkipException` with `skip_refused`, and `AirflowException` for other failures.
        """
        self._check(context)
        if (timestamp := asked_at(context)) is not None:
            self.application_args = [*(self.application_args or []), option("recompute", timestamp.isoformat())]
        elif (stored := self._ended_before(context)) is not None:
            return self._finished(result_of(stored), context)
        if reports_lineage() and not self._is_elsewhere:
            self.application_args = [*(self.application_args or []), "--lineage"]
        try:
            report = self.report(context)
        except CommandFailed as failed:
            if self._is_for_replay(failed):
                return self._registered(failed.report or {}, context)
            raise self._failed(failed, context) from None
        if report is None and self._is_elsewhere:
            report = self._stored_report()
        if report is None:
            return None
        self.described_lineage = report.pop("lineage", None)
        return self._finished(result_of(report), context)

    def _ended_before(self, context: Context) -> Report | None:
        """Return the report of a run whose interval an earlier attempt has taken in, with a driver elsewhere: it starts no other one. Else None.

        With --finish there may be work left behind the interval. Raises `AirflowException` if the verification of the run fails.
        """
        is_first = context["ti"].try_number < _SECOND
        if not self._is_elsewhere or is_first or "--finish" in plain_words(self.application_args or []):
            return None
        report = self._stored_report("--verify")
        if report is None:
            return None
        if not report["is_whole"]:
            tell_of_alerts(self._job, report, context, self.log)  # no later report has them
            return None
        self.log.info("an earlier attempt of this run has taken in its interval: no driver is submitted")
        if report["failed"]:
            raise AirflowException(report["failed"])
        return report

    def _stored_report(self, *options: str) -> Report | None:
        """Return the report of this run from its checkpoints, and say if it has none; None, with a warning, if they cannot be read."""
        words = plain_words(self.application_args or [])
        interval = ("interval-start", "interval-end") if self._takes_an_interval() else ()
        given = {name: value_of(name, words) for name in ("run-id", "cluster", *interval)}
        wanted = options if "--verify" in words else ()
        named = [option(name, value) for name, value in given.items() if value is not None]
        self._command = HeadraceCommand(
            ["run-report", self._job.job, *named, *wanted], self._job.home, self._job.profile.python
        )
        try:
            report = self._command.answer(self.log)
        except (AirflowException, OSError) as error:  # the run has ended well
            self.log.warning("the checkpoints of this run cannot be read from this machine: %s", error)
            return None
        if not report["checkpoints"]:
            self.log.info(
                "run %s has committed no checkpoint: checkpoints do not say whether there was no input, or why it ended",
                report["run_id"],
            )
        return report

    def prepare(self) -> None:
        """Turn the rendered arguments into those of spark-submit. Raises `ConfigError` for invalid ones."""
        super().prepare()
        _check_budget(value_of("budget", self.application_args), self._job.run.budget)

    def _takes_an_interval(self) -> bool:
        """Return whether the run takes in the DAG run's data interval."""
        mode = value_of("mode", self.application_args)
        return mode == "interval" or (self._job.mode == "interval" and mode != "caught-up")

    def _check(self, context: Context) -> None:
        """Refuse what cannot be run, wait behind a failed run, and put in the interval of a trigger timetable or of a partition."""
        if self._known_params is not None and (unknown := unknown_params(context, self._known_params)):
            if self._skips_refused:
                refuse(context, unknown, self.log)
            raise AirflowFailException(unknown)
        refuse_foreign_interval(context)
        if self._takes_an_interval():
            refuse_unknown_zone(self.dag, self._job)
        if self._holds_after_failure:
            hold_behind_failed_run(context, self.log)
        if self._skips_refused and not is_cleared(context) and is_cancelled(context, self.log):
            refuse(context, "the backfill of this run was cancelled. Nothing was done.", self.log)
        if (interval := interval_of_trigger(context) or self._interval_of_partition(context)) is not None:
            self.application_args = with_interval(self.application_args or [], interval)

    def _interval_of_partition(self, context: Context) -> tuple[str, str] | None:
        """Return the interval of a DAG run for a partition, unless the task was given one.

        Raises `AirflowFailException` for a strange key, `AirflowSkipException` with `skip_refused`.
        """
        if not self._takes_an_interval() or value_of("interval-start", self.application_args or []):
            return None
        try:
            return interval_of_partition(context, self._job)
        except ConfigError as error:
            if self._skips_refused and is_triggered(context):
                refuse(context, f"ConfigError: {error}", self.log)
            raise AirflowFailException(f"ConfigError: {error}") from None

    def _failed(self, failed: CommandFailed, context: Context) -> AirflowException:
        """Return the exception for a failed run. Raises `AirflowRescheduleException` if it waits, `AirflowSkipException` if it is refused."""
        error = failure(failed.exit_code, failed.report)
        if failed.exit_code == FencedError.exit_code and "--force-fail-over" not in self.application_args:
            wait_for_holder(context, self._job.run.budget + self._job.run.grace, str(error), self.log)
        if (text := (failed.report or {}).get("open_until")) is not None:
            wait_until(text, str(error), self.log)
        if (failed.report or {}).get("leaves_gap", False):
            wait_for_earlier(context, str(error), self.log)
        is_refused = failed.exit_code in _REFUSALS and failed.report is not None
        if self._skips_refused and is_refused and is_triggered(context):
            refuse(context, str(error), self.log)
        return error

    def _is_for_replay(self, failed: CommandFailed) -> bool:
        """Return whether the run failed because its interval was taken in already, and the job's replay DAG can take it in again."""
        is_taken_in = failed.report is not None and failed.report.get("is_taken_in", False)
        return is_taken_in and replay_asset(self._job.job) in self.outlets

    def _registered(self, report: Report, context: Context) -> Result:
        """Request the interval of this run from the job's replay DAG; write that, and why, into log and note."""
        words = self.application_args
        asked = [value_of(name, words) or "" for name in ("interval-start", "interval-end")]
        changes = report.get("changes", [])
        self.outlets = register(self._job.job, asked[0], asked[1], self.outlets, context)
        sentence = (
            f"{_why(changes)}, registered for replay: interval {asked[0]} to {asked[1]} was taken in already. The DAG "
            f"{replay_id(self._job.job)} computes it again on a branch and shows how the result differs. The live tables are as before."
        )
        self.log.info(sentence)
        write_note(context, sentence, self.log)
        return {
            "job": self._job.job,
            "run_id": context["run_id"],
            "interval": asked,
            "registered": True,
            "changes": changes,
        }

    def _finished(self, result: Result, context: Context) -> Result:
        """Update assets, links, log, note and the task's state store after a successful run; return its result."""
        self.checkpoint_link = self._link_to(result, context)
        if sentence := done(result):
            self.log.info(sentence)
        if warning := degraded(result):
            self.log.warning("%s: %s", self._job.job, warning)
        tell_of_alerts(self._job, result, context, self.log)
        write_note(context, note_of(self._job, result), self.log)
        keep_position(context, result, self.log)
        keys = keys_of(self._job, result.get("intervals", ()))
        asked = self._followed(result, context)
        self.outlets = [*announce(result, without_replay(self._job.job, self.outlets), context, keys), *asked]
        return result

    def _followed(self, result: Result, context: Context) -> list[Any]:
        """Ask the job's replay DAG for the pending days that a run has met, if its file says so; return the asset of the request."""
        pending = result.get("pending")
        if pending is None or self._job.replay.follow != "automatic":
            return []
        days = f"{pending['from']} to {pending['to']}"
        asked = register(self._job.job, pending["from"], pending["to"], self.outlets, context)
        if asked:
            self.log.info("pending days %s are registered for replay (replay.follow: automatic)", days)
        return asked

    def _link_to(self, result: Result, context: Context) -> str:
        if self._checkpoint_url is None:
            return result_page(context["ti"])
        job = self._job
        return self._checkpoint_url.format(job=job.job, checkpoint=result["checkpoint"], folder=job.job_folder)


def _why(changes: Sequence[str]) -> str:
    """Return why an interval is registered for replay."""
    if not changes:
        return "asked for again"
    more = f", and {len(changes) - 1} more" if len(changes) > 1 else ""
    return f"input changed ({changes[0]}{more})"


def _check_budget(budget: str | None, longest: timedelta) -> None:
    """Raise `ConfigError` for an invalid budget, and for one longer than the job's own."""
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
