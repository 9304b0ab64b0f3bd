"""Helpers for asyncio's tasks."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
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


@types.coroutine
def continued(call: Coroutine[Any, Any, Any], waits_for: Any) -> Generator[Any, Any, Any]:
    """Await a coroutine that has been started with `send(None)`, which returned `waits_for`; return its result."""
    try:
        yield waits_for
    except BaseException as error:  # noqa: BLE001 - cancellations above all: they are the coroutine's, as in an await
        try:
            waits_for = call.throw(error)
        except StopIteration as answer:
            return answer.value
        return (yield from continued(call, waits_for))
    return (yield from call.__await__())


async def own_cancellation(task: asyncio.Task[Any]) -> None:
    """Take back what the current task's own code has cancelled it for. Raises the `CancelledError` if it was not raised yet."""
    await _turn()
    while task.uncancel():
        pass


@types.coroutine
def _turn() -> Generator[None, None, None]:
    """Give the loop a turn: a task that is to be cancelled gets its `CancelledError`."""
    yield


async def returned(result: Any) -> Any:
    """Return the result of a coroutine that has ended."""
    return result


async def raised(error: BaseException) -> Any:
    """Raise the error of a coroutine that has ended."""
    raise error
