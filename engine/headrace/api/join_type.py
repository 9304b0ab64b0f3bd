"""Kinds of joins."""

from __future__ import annotations

import enum
from collections.abc import Sequence


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


def check_how(join: str, how: object, allowed: Sequence[JoinType] = tuple(JoinType)) -> None:
    """Raise `TypeError` unless `how` is a kind of join, and `ValueError` unless `join`, which errors name, can be of that kind."""
    if not isinstance(how, JoinType):
        msg = f"{join}: how must be a JoinType, such as JoinType.LEFT, not {how!r:.60}"
        raise TypeError(msg)
    if how not in allowed:
        msg = f"{join}: how must be {' or '.join(map(str, allowed))}, not {how}"
        raise ValueError(msg)
