"""Hints for exceptions of user code whose own words do not say what to do."""

from __future__ import annotations

from typing import Final

_HINTS: Final = {
    "StateFuture": "Did you forget 'await'? A call of state, such as value(), returns a StateFuture: 'await self.n.value()' is the value.",
    "no running event loop": (
        "The code of keyed functions runs without asyncio's loop: sleep, timeouts, tasks and calls to the outside belong in an "
        "AsyncFunction, which the pipeline calls with async_wait()."
    ),
}
"""Hints by a part of the exception's text."""


def hint_at(error: BaseException) -> str:
    """Return a line for the end of an exception's traceback; empty if there is no hint."""
    text = str(error)
    return next((f"{hint}\n" for part, hint in _HINTS.items() if part in text), "")
