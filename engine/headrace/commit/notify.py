"""Callback for events of an open job."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str, str], None]
"""Function that takes the kind of an event and a sentence."""


def silent(kind: str, message: str) -> None:
    """Ignore the event."""
    del kind, message
