"""Trigger of the sensor: checks a job from Airflow's triggerer."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from headrace import clock
from headrace.airflow._environment import task_environment
from headrace.airflow._milestone import Milestone
from headrace.errors import EngineBug


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
