"""Early results: the moments at which a window emits what it has so far."""

from __future__ import annotations

EARLY = "early "
"""The namespace of a timer that emits an early result begins with it; then comes what tells the window from others."""


def state_name(windows: str, early: int | None) -> str:
    """Return what the state of windows is called.

    The name says whether there are early results: without them, those of open windows would never be taken back.
    """
    return windows if early is None else f"{windows}_early"


def next_step(start: int, end: int, step: int, watermark: int) -> int | None:
    """Return the last moment of the step that the watermark is in; None where the window fires before. All are milliseconds.

    Steps count from the window's start. Before it, the first one is next.
    """
    steps = max(0, (watermark + 1 - start) // step) + 1
    at = start + steps * step - 1
    return at if at < end - 1 else None
