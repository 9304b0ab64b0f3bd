"""Strategies of the sink upsert materializer. Configuration needs them, and nothing else of the API, which takes 50 ms to import."""

from __future__ import annotations

import enum


class Strategy(enum.Enum):
    """Layouts of a materializer's history (FLIP-544, "Public Interfaces"). They do not change results, except LEGACY with a TTL."""

    LEGACY = "legacy"
    """A list, as in Flink's first materializer. A TTL applies to the key as a whole."""

    VALUE = "value"
    """A list; a TTL applies to each row."""

    MAP = "map"
    """Linked rows: a change costs as much in a history of a million rows as in one of ten."""

    ADAPTIVE = "adaptive"
    """A list while the history is short, linked rows when it is long."""
