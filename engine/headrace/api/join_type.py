"""Kinds of joins."""

from __future__ import annotations

import enum


class JoinType(enum.Enum):
    """Which records of a join are in the result although nothing matches them, as in SQL."""

    INNER = "inner"
    """None: the result has pairs alone."""

    LEFT = "left"
    """Those of the stream on which `join` was called."""

    RIGHT = "right"
    """Those of the other stream."""

    FULL = "full"
    """Those of both."""

    @property
    def keeps_left(self) -> bool:
        """Tell whether a left record without a match is in the result."""
        return self in {JoinType.LEFT, JoinType.FULL}

    @property
    def keeps_right(self) -> bool:
        """Tell whether a right record without a match is in the result."""
        return self in {JoinType.RIGHT, JoinType.FULL}
