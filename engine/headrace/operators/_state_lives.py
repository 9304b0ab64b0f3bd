"""When the state of an operator is freed, in the words of `headrace explain`."""

from __future__ import annotations

from headrace.api import StateTtl


def freed_by(ttl: StateTtl | None) -> str:
    """Return when the state of a key is freed that only a TTL ends."""
    return "never: give a ttl to bound it" if ttl is None else "when its ttl is over"
