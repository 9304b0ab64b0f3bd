"""Helpers for asyncio's tasks."""

from __future__ import annotations

import asyncio
from typing import Any


def is_cancelled() -> bool:
    """Return whether the current task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def looked_at(task: asyncio.Task[Any]) -> None:
    """Retrieve the exception of a task that several others may wait for; use it as a done callback.

    If all waiting tasks were cancelled, nothing else retrieves the exception, and asyncio reports that.
    """
    if not task.cancelled():
        task.exception()
