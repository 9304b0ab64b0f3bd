"""Alerts of a job: the metrics that its file has conditions on, and their values now."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from headrace import clock
from headrace.config import Condition, JobConfig, parse_condition
from headrace.errors import StorageError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.log import CheckpointLog
from headrace.metrics import ALERT_METRICS
from headrace.readers.job_at import JobAtCheckpoint
from headrace.readers.waiting import count_retries
from headrace.tables.folder import JobFolder

_WEEK: Final = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Alert:
    """Condition of a job's file, and what it says now."""

    condition: Condition
    value: float | None
    """In the unit of the metric, or in percent; None if nobody can tell: then nothing changes."""
    checkpoint_id: int | None
    """Last checkpoint of the job."""

    @property
    def is_raised(self) -> bool:
        """Return whether the condition holds."""
        return self.value is not None and self.condition.holds(self.value)


def alerts_of(config: JobConfig) -> list[Alert]:
    """Return the alerts of a job's file. A job without a checkpoint has no values. Raises `StorageError` if its tables cannot be read."""
    conditions = [parse_condition(metric, text) for metric, text in config.alerts.items()]
    log = CheckpointLog(JobFolder.of(config))
    if log.last is None:
        return [Alert(condition, None, None) for condition in conditions]
    measures, at = _Measures(config, log, log.last), log.last.checkpoint_id
    return [Alert(condition, measures.value(condition), at) for condition in conditions]


def job_values(config: JobConfig) -> dict[str, float]:
    """Return the metrics of a job as a whole, by name; those alone that can be told now. Growth is that of a week.

    Raises `StorageError` if the job's tables cannot be read.
    """
    log = CheckpointLog(JobFolder.of(config))
    if log.last is None:
        return {}
    measures = _Measures(config, log, log.last)
    values = {name: measure(measures, Condition(name, "", ">", 0, period=_WEEK)) for name, measure in _OF_JOBS.items()}
    return {name: value for name, value in values.items() if value is not None}


class _Measures:
    """Values of metrics, now."""

    def __init__(self, config: JobConfig, log: CheckpointLog, last: Checkpoint) -> None:
        self._config, self._log, self._last = config, log, last
        self._run = _last_run(log)

    def value(self, condition: Condition) -> float | None:
        """Return the value of a condition's metric; None if nobody can tell."""
        if (measure := _OF_JOBS.get(condition.metric)) is not None:
            return measure(self, condition)
        count = self._counted(condition.metric)
        if not condition.is_of_rows or count is None:
            return count
        rows = self._counted("rows_in")
        # A run without rows can set records of earlier runs aside.
        return 100 * count / rows if rows else 100.0 * bool(count)

    def _counted(self, name: str) -> float | None:
        """Return a metric of the last run that has taken something in."""
        total = None
        for checkpoint in self._run:
            total = ALERT_METRICS[name].together(total, checkpoint.count(name) or 0)
        return total

    def lag(self, _: Condition) -> float | None:
        """Return how far the watermark is behind (ms)."""
        watermark = self._last.watermark
        return None if watermark is None else max(0, clock.now() - watermark)

    def waiting(self, _: Condition) -> float | None:
        """Return the number of elements that wait for a service."""
        return self._last.work.pending

    def waiting_for(self, _: Condition) -> float | None:
        """Return how long the oldest of them has waited (ms)."""
        if not self._last.work.pending:
            return 0
        rows = count_retries(JobAtCheckpoint(self._config, log=self._log)).dicts()
        begun = [row["since"].timestamp() * 1000 for row in rows if row["since"] is not None]
        return max(0, clock.now() - min(begun)) if begun else 0

    def state(self, _: Condition) -> float | None:
        """Return the size of the state tables' files (bytes)."""
        return JobFolder.of(self._config).size_of_tables(self._last.versions)

    def state_growth(self, condition: Condition) -> float | None:
        """Return by how many percent it has grown; None without a checkpoint that is old enough, or if its files cannot be found."""
        until = clock.now() - condition.period
        old = [own for own in self._log.lineage.checkpoints if own.has_state and own.committed_at <= until]
        if not old:
            return None
        folder = JobFolder.of(self._config)
        try:
            before = folder.size_of_tables(old[-1].versions)
        except StorageError:
            return None
        return 100 * (folder.size_of_tables(self._last.versions) - before) / before if before else None


_OF_JOBS: Final[dict[str, Callable[[_Measures, Condition], float | None]]] = {
    "lag": _Measures.lag,
    "waiting": _Measures.waiting,
    "waiting_for": _Measures.waiting_for,
    "state": _Measures.state,
    "state_growth": _Measures.state_growth,
}


def _last_run(log: CheckpointLog) -> list[Checkpoint]:
    """Return the micro-batches of the last run that has committed some."""
    batches = [own for own in log.lineage.checkpoints if own.kind is Kind.BATCH]
    return [own for own in batches if own.run_id == batches[-1].run_id]
