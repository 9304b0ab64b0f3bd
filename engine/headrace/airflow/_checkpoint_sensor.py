"""Sensor that waits until a job has reached a milestone."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException

from headrace.airflow._checkpoint_trigger import CheckpointTrigger
from headrace.airflow._command import HeadraceCommand
from headrace.airflow._failures import failure
from headrace.airflow._home import given_job
from headrace.airflow._milestone import Milestone
from headrace.config import JobConfig
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Context


class HeadraceCheckpointSensor(BaseSensorOperator):
    """Wait until a job has made a checkpoint, has reached a watermark, or has taken in an interval.

    Give at least one of `checkpoint` (an id), `watermark` and `interval_end` (moments: a `datetime`, or ISO 8601, in UTC unless it
    has an offset); all may be templates, and the job must reach all of them. Checks every `poke_interval` seconds. By default it
    waits in the triggerer, which runs `headrace status`; with `deferrable=False` it occupies a worker instead. Returns the output
    of `headrace status` on the job.
    """

    template_fields: Sequence[str] = ("checkpoint", "watermark", "interval_end")

    def __init__(
        self,
        *,
        job: str | JobConfig,
        home: str | Path | None = None,
        checkpoint: int | str | None = None,
        watermark: datetime | str | None = None,
        interval_end: datetime | str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        """Read the job's file. Raises `ConfigError` for an unknown job, or a wrong file."""
        config = given_job(job, home)
        super().__init__(**kwargs)
        self.job = config.job
        self.checkpoint = checkpoint
        self.watermark = watermark
        self.interval_end = interval_end
        self.deferrable = deferrable
        self._home, self._python = config.home, config.profile.python

    def execute(self, context: Context) -> Any:
        """Wait here, or in the triggerer. Raises `AirflowFailException` without a milestone to wait for."""
        if not self.deferrable:
            super().execute(context)
            return self._status()
        status = self._status()
        if not self._milestone().is_reached(status):
            self.defer(trigger=self._trigger(), method_name="resume", timeout=timedelta(seconds=self.timeout))
        return status

    def poke(self, context: Context) -> bool:  # noqa: ARG002  Airflow calls it so
        """Return whether the job has reached the milestone."""
        return self._milestone().is_reached(self._status())

    def resume(self, context: Context, event: dict[str, Any]) -> Any:  # noqa: ARG002  Airflow calls it so
        """Return the status from the trigger. Raises the task's error if the trigger met one."""
        if "exit_code" in event:
            raise failure(event["exit_code"], event if "error" in event else None)
        return event

    def _trigger(self) -> CheckpointTrigger:
        return CheckpointTrigger(
            job=self.job,
            home=str(self._home),
            python=self._python,
            checkpoint=self.checkpoint,
            watermark=_text(self.watermark),
            interval_end=_text(self.interval_end),
            poll_interval=self.poke_interval,
        )

    def _milestone(self) -> Milestone:
        try:
            return Milestone.of(checkpoint=self.checkpoint, watermark=self.watermark, interval_end=self.interval_end)
        except ConfigError as error:
            raise AirflowFailException(f"ConfigError: {error}") from None

    def _status(self) -> dict[str, Any]:
        return job_status(HeadraceCommand(["status", self.job], self._home, self._python).answer(self.log))


def job_status(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the entry of the job in the output of `headrace status JOB --json`."""
    (status,) = answer["jobs"]
    return {name: value for name, value in status.items() if name != "error"}


def _text(moment: datetime | str | None) -> str | None:
    return moment.isoformat() if isinstance(moment, datetime) else moment
