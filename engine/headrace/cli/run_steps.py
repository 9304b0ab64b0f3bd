"""Steps around a run, in its own process: its check before, its verification afterwards, and whether a compaction is due.

A scheduler needs no process, and no start of Python, for each of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from headrace import clock, logs
from headrace.cli.check import findings_of, verified
from headrace.errors import CheckFailed, HeadraceError
from headrace.names import counted

if TYPE_CHECKING:
    from headrace.cli.alerts import Message
    from headrace.cli.findings import Finding, Outcome
    from headrace.config import JobConfig
    from headrace.run.options import RunReport


_log = logging.getLogger(__name__)
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Step:
    """Part of a run as a scheduler sees it: `check`, `run`, `verify`, `compaction` or `alerts`."""

    step: str
    seconds: float
    outcome: Outcome = "ok"
    """The worst of its findings."""
    findings: tuple[Finding, ...] = ()
    """Those that are warnings or failures."""


@dataclass(slots=True)
class RunSteps:
    """Steps of one run, in the order in which they were taken."""

    config: JobConfig
    taken: list[Step] = field(default_factory=list)
    compaction_due: bool | None = None
    """Whether `compaction.every` runs have committed since the last compaction; None if nobody has looked."""
    alerts: list[Message] = field(default_factory=list)

    def check(self) -> None:
        """Do what `headrace check --no-sample` does, and write on stderr what is not as it should be. A failure stops nothing: the run refuses it, by a sentence and an exit code of its own.

        Raises `ConfigError` with all problems of the job's file and pipeline.
        """
        for fault in self._look("check", lambda: findings_of(self.config, sample=False, strict=False)):
            advice = f" -> {fault.advice}" if fault.advice else ""
            message = f"{fault.check}: {fault.detail}{advice}"
            logs.write(
                _log,
                message,
                level=logging.WARNING,
                kind="check",
                text=f"check ({fault.outcome}): {message}",
                fields={"check": fault.check, "outcome": fault.outcome},
            )

    def run(self, run_job: Callable[[], RunReport]) -> RunReport:
        """Run the job."""
        report, seconds = _timed(run_job)
        self.taken.append(Step("run", seconds))
        return report

    def verify(self) -> CheckFailed | None:
        """Do what `headrace verify` does, and see whether a compaction is due; return the error of a failed check."""
        failures = [f for f in self._look("verify", lambda: verified(self.config)) if f.outcome == "fail"]
        if failures:
            listed = "; ".join(f"{failure.check}: {failure.detail}" for failure in failures)
            return CheckFailed(
                f"the run has ended, its checkpoints stay, and {counted(len(failures), 'check')} of 'headrace verify "
                f"{self.config.job}' failed: {listed}"
            )
        from headrace.edits.compact import is_compaction_due

        self.compaction_due, seconds = _timed(lambda: is_compaction_due(self.config))
        self.taken.append(Step("compaction", seconds))
        return None

    def tell(self, *, is_scheduled: bool) -> None:
        """Look at the alerts of the job's file, and tell whom it names of what has changed. Branches have none.

        A run has committed by then: where its tables cannot be read or written, stderr says so.
        """
        if self.config.branch is not None:
            return
        from headrace.cli.alerts import look, ways_of

        try:
            self.alerts, seconds = _timed(lambda: look(self.config, ways_of(self.config, is_scheduled=is_scheduled)))
        except Exception as error:  # noqa: BLE001  what tells of a run must not fail it
            why = error if isinstance(error, HeadraceError) else type(error).__name__  # other texts may hold a secret
            if self.config.alerts:  # others look only for alerts that were taken out of the file
                message = f"this look at them failed, and the next one tells: {why}"
                logs.write(_log, message, level=logging.WARNING, kind="alerts")
            return
        if self.config.alerts or self.alerts:
            self.taken.append(Step("alerts", seconds, "warn" if any(own.is_raised for own in self.alerts) else "ok"))

    def _look(self, step: str, look: Callable[[], list[Finding]]) -> tuple[Finding, ...]:
        """Take a step that looks for something; return what is not as it should be."""
        findings, seconds = _timed(look)
        faults = tuple(finding for finding in findings if finding.outcome != "ok")
        outcomes = {fault.outcome for fault in faults}
        worst: Outcome = "fail" if "fail" in outcomes else "warn" if outcomes else "ok"
        self.taken.append(Step(step, seconds, worst, faults))
        return faults


def _timed(work: Callable[[], _Result]) -> tuple[_Result, float]:
    """Return what `work` returns, and its seconds."""
    begun = clock.monotonic()
    result = work()
    return result, round(clock.monotonic() - begun, 3)
