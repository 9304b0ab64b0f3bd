"""Kinds of joins."""

from __future__ import annotations

import enum
from collections.abc import Sequence


class JoinType(enum.Enum):
    """Records of a join that are in the result although nothing matches them, as in SQL."""

    INNER = "inner"
    """None: the result has only pairs."""

    LEFT = "left"
    """Records of the stream on which `join` was called."""

    RIGHT = "right"
    """Records of the other stream."""

    FULL = "full"
    """Records of both streams."""

    @property
    def keeps_left(self) -> bool:
        """Return whether a left record without a match is in the result."""
        return self in {JoinType.LEFT, JoinType.FULL}

    @property
    def keeps_right(self) -> bool:
        """Return whether a right record without a match is in the result."""
        return self in {JoinType.RIGHT, JoinType.FULL}


def check_how(join: str, how: object, allowed: Sequence[JoinType] = tuple(JoinType)) -> None:
    """Check the kind of a join, which `join` names. Raises `TypeError` for another type, `ValueError` for a kind not allowed."""
    if not isinstance(how, JoinType):
        msg = f"{join}: how must be a JoinType, such as JoinType.LEFT, not {how!r:.60}"
        raise TypeError(msg)
    if how not in allowed:
        msg = f"{join}: how must be {' or '.join(map(str, allowed))}, not {how}"
        raise ValueError(msg)
