"""Sensor of a job's checkpoints, its trigger, and the milestones that it waits for.

Trigger of the sensor: checks a job from Airflow's triggerer.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseSensorOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from headrace import clock
from headrace.airflow._command import HeadraceCommand, failure
from headrace.airflow._home import given_job
from headrace.airflow._submission import task_environment
from headrace.config import JobConfig
from headrace.errors import ConfigError, EngineBug

if TYPE_CHECKING:
    from airflow.sdk import Context


@dataclass(frozen=True)
class Milestone:
    """Checkpoint, watermark, end of an interval, or several of them: the job must reach all. Times are in UTC."""

    checkpoint: int | None = None
    watermark: datetime | None = None
    interval_end: datetime | None = None

    @classmethod
    def of(cls, *, checkpoint: object = None, watermark: object = None, interval_end: object = None) -> Self:
        """Return a milestone from rendered texts, or values.

        Raises `ConfigError` without any, and for a text that is not a number or timestamp.
        """
        number = None if _is_nothing(checkpoint) else _number(checkpoint)
        reached = cls(number, _timestamp("watermark", watermark), _timestamp("interval_end", interval_end))
        if reached == cls():
            raise ConfigError("give the sensor a checkpoint, a watermark or an interval_end to wait for")
        return reached

    def is_reached(self, status: Mapping[str, Any]) -> bool:
        """Return whether a job has reached the milestone. `status` is its entry in `headrace status --json`."""
        return (
            _at_least(status["checkpoint"], self.checkpoint)
            and _at_least(_timestamp("watermark", status["watermark"]), self.watermark)
            and _at_least(_timestamp("interval_end", status["interval_end"]), self.interval_end)
        )


def _at_least(value: Any, wanted: Any) -> bool:
    return wanted is None or (value is not None and bool(value >= wanted))


def _is_nothing(value: object) -> bool:
    return value is None or value in {"", "None"}


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"checkpoint: '{value}' is not the id of a checkpoint") from None


def _timestamp(name: str, value: object) -> datetime | None:
    """Return a timestamp. Without a time zone it is in UTC."""
    if _is_nothing(value):
        return None
    try:
        timestamp = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(f"{name}: '{value}' is not a timestamp such as 2013-01-31 or 2013-01-31T05:00:00Z") from None
    return timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp.astimezone(UTC)


class CheckpointTrigger(BaseTrigger):
    """Fire when a job has reached the milestone, or when its status cannot be read.

    The event is the output of `headrace status` on the job; or `exit_code`, with `error` and `message` if the command printed them.
    The command runs in its own process, so the triggerer's loop never waits for a table.
    """

    def __init__(
        self,
        *,
        job: str,
        home: str,
        python: str | None = None,
        checkpoint: int | str | None,
        watermark: str | None,
        interval_end: str | None,
        poll_interval: float,
    ) -> None:
        """Store the milestone. `poll_interval` is in seconds."""
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow gives it no types
        self._arguments = {
            "job": job,
            "home": home,
            "python": python,
            "checkpoint": checkpoint,
            "watermark": watermark,
            "interval_end": interval_end,
            "poll_interval": poll_interval,
        }
        self._job, self._home, self._python, self._poll_interval = job, home, python, poll_interval
        self._milestone = Milestone.of(checkpoint=checkpoint, watermark=watermark, interval_end=interval_end)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, as Airflow stores them."""
        return f"{type(self).__module__}.{type(self).__qualname__}", self._arguments

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Check until the trigger fires."""
        while True:
            event = await self._look()
            if "exit_code" in event or self._milestone.is_reached(event):
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]  # Airflow gives it no types
                return
            await clock.sleep_async(self._poll_interval)

    async def _look(self) -> dict[str, Any]:
        """Return the job's status, or the reason why it cannot be read."""
        process = await asyncio.create_subprocess_exec(
            *("headrace", "status", self._job, "--json"),
            env={**os.environ, **task_environment(Path(self._home), self._python)},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            printed, _ = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            raise
        content: Any = None
        with contextlib.suppress(ValueError):
            content = json.loads(printed)
        if process.returncode or not isinstance(content, dict):
            error = content if isinstance(content, dict) and "error" in content else {}
            return {**error, "exit_code": process.returncode or EngineBug.exit_code}
        (status,) = content["jobs"]
        return {name: value for name, value in status.items() if name != "error"}


class HeadraceCheckpointSensor(BaseSensorOperator):
    """Wait until a job has made a checkpoint, has reached a watermark, or has taken in an interval.

    Give at least one of `checkpoint` (an id), `watermark` and `interval_end` (timestamps: a `datetime`, or ISO 8601, in UTC unless it
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


def _text(timestamp: datetime | str | None) -> str | None:
    return timestamp.isoformat() if isinstance(timestamp, datetime) else timestamp
