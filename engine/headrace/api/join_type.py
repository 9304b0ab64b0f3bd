"""Kinds of joins."""

from __future__ import annotations

from enum import Enum


class JoinType(Enum):
    """Which records a join keeps that have no partner: none, those of the left stream, of the right one, or of both."""

    INNER = "inner"
    LEFT = "left"
    RIGHT = "right"
    FULL = "full"
