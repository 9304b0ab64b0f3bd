"""Lifetimes of an operator's state, as `headrace explain` shows it."""

from __future__ import annotations

from headrace.api import StateTtl
from headrace.operators._lengths import shown_length


def freed_by(ttl: StateTtl | None) -> str:
    """Return the text that says when a TTL frees the state of a key."""
    if ttl is None or not ttl.is_active:
        return "never (Lifetime.FOREVER)"
    return f"when its state_ttl of {shown_length(ttl.milliseconds)} is over"
