"""Mistakes in an async function that a retry cannot correct."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any


class MisuseError(Exception):
    """A violation of the function's contract. This is no failure of the service, so the retry strategy does not apply."""


def awaited(method: Callable[[Any], Any], name: str) -> Callable[[Any], Awaitable[Any]]:
    """Return `method`; if it is no `async def`, a wrapper that raises `MisuseError` where its result cannot be awaited."""
    if inspect.iscoroutinefunction(method):
        return method

    async def checked(asked: Any) -> Any:
        result = method(asked)
        if not inspect.isawaitable(result):
            raise MisuseError(f"{name}() must be an 'async def' without a yield; it gave {result!r:.200}")
        return await result

    return checked


class CallCancelledError(Exception):
    """A call that was cancelled by its own code: it raised `CancelledError`, or cancelled its task. A failed call like another."""


def cancelled(error: asyncio.CancelledError) -> CallCancelledError:
    """Return the failure of a call that raised `CancelledError`."""
    failure = CallCancelledError("the function's own code cancelled the call")
    failure.__cause__ = error
    return failure


def contained(error: BaseException) -> BaseException:
    """Return an exception of a call's own task as one that can be raised in the tasks that wait for its answer.

    SystemExit and the like would end the loop, and StopIteration cannot be raised by a future. A CancelledError stays: it is a failed call.
    """
    if isinstance(error, asyncio.CancelledError) or (
        isinstance(error, Exception) and not isinstance(error, StopIteration)
    ):
        return error
    misuse = MisuseError(f"it raised {type(error).__name__}: {error}")
    misuse.__cause__ = error
    return misuse
