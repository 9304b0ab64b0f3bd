"""How long a join keeps the records of its sides."""

from __future__ import annotations

import enum
from datetime import timedelta
from typing import TypeVar

import msgspec

from headrace.api.state_ttl import StateTtl, Visibility

In1 = TypeVar("In1", bound=msgspec.Struct)
In2 = TypeVar("In2", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class Lifetime(enum.Enum):
    """How long a join keeps a record, where no duration says it."""

    FOREVER = "forever"
    """Until it is taken back: for sides that stay small."""


Life = timedelta | StateTtl | Lifetime
"""How long a join keeps a record."""


def lives_of(state_ttl: Life | tuple[Life, Life]) -> tuple[StateTtl | None, StateTtl | None]:
    """Return the TTL of the left and of the right side; None for one that is kept until it is taken back.

    Raises `TypeError` for anything else, `ValueError` for a TTL that shows the dead.
    """
    lives = state_ttl if isinstance(state_ttl, tuple) else (state_ttl, state_ttl)
    if len(lives) != len(("left", "right")):
        msg = f"state_ttl takes one duration, or two (left, right), not {len(lives)}"
        raise ValueError(msg)
    left, right = map(_life, lives)
    return left, right


def _life(given: object) -> StateTtl | None:
    if given is Lifetime.FOREVER:
        return None
    if isinstance(given, timedelta):
        return StateTtl(given)
    if not isinstance(given, StateTtl):
        msg = f"state_ttl must be a timedelta, a StateTtl, Lifetime.FOREVER, or two of them for left and right, not {given!r:.60}"
        raise TypeError(msg)
    if given.visibility is not Visibility.NEVER_RETURN_EXPIRED:
        msg = "state_ttl: a record that has expired joins nothing, so `visibility` must be NEVER_RETURN_EXPIRED"
        raise ValueError(msg)
    return given
