"""Mistakes in an async function that a retry cannot correct."""

from __future__ import annotations

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


def contained(error: BaseException) -> Exception:
    """Return an exception of a call's own task as one that can be raised in the tasks that wait for its answer.

    SystemExit and the like would end the loop, and a CancelledError would look like a cancellation of those tasks.
    """
    if isinstance(error, Exception):
        return error
    misuse = MisuseError(f"it raised {type(error).__name__}: {error}")
    misuse.__cause__ = error
    return misuse
