"""What asyncio's tasks do not tell by themselves."""

from __future__ import annotations

import asyncio
from typing import Any


def is_cancelled() -> bool:
    """Whether somebody has cancelled the task that this is called in."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def looked_at(task: asyncio.Task[Any]) -> None:
    """A done callback of a task that several may wait for.

    Whoever waited may have been cancelled since; then nobody else looks at the failure, and asyncio complains.
    """
    if not task.cancelled():
        task.exception()
