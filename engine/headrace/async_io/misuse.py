"""Mistakes of an async function that another call would not put right."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any


class MisuseError(Exception):
    """The function does not keep to its contract. It says nothing about the service, so it is no case for the retry strategy."""


def awaited(method: Callable[[Any], Any], name: str) -> Callable[[Any], Awaitable[Any]]:
    """`method`; if it is no `async def`, one that raises `MisuseError` where its answer cannot be awaited."""
    if inspect.iscoroutinefunction(method):
        return method

    async def checked(asked: Any) -> Any:
        made = method(asked)
        if not inspect.isawaitable(made):
            raise MisuseError(f"{name}() must be an 'async def' without a yield; it gave {made!r:.200}")
        return await made

    return checked


def contained(error: BaseException) -> Exception:
    """An exception that a call has raised in a task of its own, as one that may be handed to those who wait for its answer.

    SystemExit and the like would end the loop, and a CancelledError would look as if somebody had cancelled them.
    """
    if isinstance(error, Exception):
        return error
    found = MisuseError(f"it raised {type(error).__name__}: {error}")
    found.__cause__ = error
    return found
