"""Early results: the moments at which a window emits its result so far."""

from __future__ import annotations

EARLY = "early "
"""Prefix of the namespace of a timer that emits an early result; the window's identifier follows."""


def state_name(windows: str, early: int | None) -> str:
    """Return the name of the windows' state.

    The name says whether there are early results: without them, early results of open windows would never be retracted.
    """
    return windows if early is None else f"{windows}_early"


def next_step(start: int, end: int, step: int, watermark: int) -> int | None:
    """Return the last moment of the step that contains the watermark; None if the window fires before. All times are ms.

    Steps count from the window's start. Before the start, the first step is next.
    """
    steps = max(0, (watermark + 1 - start) // step) + 1
    at = start + steps * step - 1
    return at if at < end - 1 else None
