"""Runs that are exported: what `headrace run` and `headrace backfill` do if the environment asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from headrace.config import JobConfig
from headrace.errors import HeadraceError
from headrace.plan.loader import plan_of
from headrace.plan.stages import waits_of
from headrace.readers.alerts import job_values
from headrace.run.events import OnEvent
from headrace.run.options import Event, RunOptions, RunReport
from headrace.run.trace import Attribute, Trace
from headrace.sources.interval import Interval
from headrace.telemetry.exporter import Exporter, OpenSdk, open_sdk
from headrace.telemetry.instruments import job_points
from headrace.telemetry.settings import Wanted
from headrace.telemetry.trace import Measured, RunTrace


class RunJob(Protocol):
    """Function that runs a job, and shows its parts to a trace."""

    def __call__(
        self, config: JobConfig, options: RunOptions, on_event: OnEvent, *, trace: Trace | None = None
    ) -> RunReport:
        """Run the job once."""
        ...


@dataclass(slots=True)
class Exported:
    """Function that runs a job, and exports its trace and its metrics. No collector, and no setting, fails the run."""

    run: RunJob
    wanted: Wanted
    open_sdk: OpenSdk = open_sdk
    has_failed: bool = False
    """A collector did not take all of an earlier run: a backfill that has several does not wait for it again."""

    def __call__(self, config: JobConfig, options: RunOptions, on_event: OnEvent) -> RunReport:
        """Run the job once. An event says, in one sentence, what could not be exported."""
        if self.has_failed:
            return self.run(config, options, on_event)
        job = {"job": config.job} | ({} if config.branch is None else {"branch": config.branch})
        has_points = "metrics" in self.wanted.protocols
        with self._exporter(on_event) as exporter:
            trace = RunTrace(
                exporter.send,
                job,
                lambda: _services(config),
                has_spans="traces" in self.wanted.protocols,
                has_points=has_points,
            )
            with trace.run(**job, run_id=options.run_id, mode=_mode(config, options)) as span:
                try:
                    report = self.run(config, options, on_event, trace=trace)
                except HeadraceError as error:
                    span.set(exit=error.exit_code)
                    raise
                span.set(exit=0, interval=_interval(config, options, report), **_ending(report))
            if has_points:
                with suppress(Exception):  # the run has committed
                    exporter.send(Measured(tuple(job_points(job_values(config), job))))
        return report

    @contextmanager
    def _exporter(self, on_event: OnEvent) -> Iterator[Exporter]:
        """Yield an exporter for the length of a block. An event says what could not be exported."""
        exporter = Exporter(self.wanted.protocols, open_sdk=self.open_sdk)
        try:
            yield exporter
        finally:
            failure = exporter.finish()
            self.has_failed = bool(failure)
            if problems := [*self.wanted.problems, *filter(None, (failure,))]:
                on_event(Event("telemetry", f"not all was exported: {'; '.join(problems)}"))


def _interval(config: JobConfig, options: RunOptions, report: RunReport) -> str | None:
    """Return the interval that a run was for; None for one that takes in all input."""
    if _mode(config, options) == "caught_up" or report.interval_start is None or report.interval_end is None:
        return None
    return str(Interval(report.interval_start, report.interval_end))


def _ending(report: RunReport) -> dict[str, Attribute]:
    return {"checkpoint": report.checkpoint, "rows": report.rows_in, "stopped_because": report.stopped_because}


def _mode(config: JobConfig, options: RunOptions) -> str:
    return (config.mode if options.mode == "auto" else options.mode).replace("-", "_")


def _services(config: JobConfig) -> Mapping[str, str]:
    """Return the service of each async operator that names one. The run has loaded the plan by then."""
    return {wait.name: wait.service for wait in waits_of(plan_of(config.code)) if wait.service is not None}
