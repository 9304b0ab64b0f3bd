"""How whoever opens a job is told what happens to it."""

from __future__ import annotations

from collections.abc import Callable

Notify = Callable[[str, str], None]
"""Told what happens: a kind of event and a sentence."""


def silent(kind: str, message: str) -> None:
    """Tell nobody."""
    del kind, message
