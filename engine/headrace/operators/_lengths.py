"""Lengths of event time, as names of states and explanations show them."""

from __future__ import annotations

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1))


def shown_length(milliseconds: int) -> str:
    """Return a length in its largest whole unit: `5m`. Names of states contain it, so the text must not change."""
    unit, size = next((unit, size) for unit, size in _UNITS if milliseconds % size == 0)
    return f"{milliseconds // size}{unit}"
