"""Lifetime of state that only a duration can free: `state_ttl=` of joins, rankings, and first and last records."""

from __future__ import annotations

import enum
from datetime import timedelta

from headrace.api.state_ttl import StateTtl, Visibility


class Lifetime(enum.Enum):
    """How long an operator keeps a record when no duration limits it."""

    FOREVER = "forever"
    """Until the record is retracted or replaced: for state that stays small."""


Life = timedelta | StateTtl | Lifetime
"""How long an operator keeps a record."""


def ttl_of(state_ttl: Life | None, *, kept: str, after: str) -> StateTtl | None:
    """Return the TTL of an operator's state; None for `Lifetime.FOREVER`.

    `kept` and `after` complete the error of a state without any limit: the records that would be kept for ever, and the
    effect of the TTL. Raises `ValueError` for such a state and for a TTL that shows expired entries, `TypeError` for
    anything else that is no `Life`.
    """
    if state_ttl is None:
        msg = (
            f"nothing bounds the state, so {kept} would be kept for good: give state_ttl=timedelta(...), the time after which {after}; "
            "or state_ttl=Lifetime.FOREVER, if the keys stay few"
        )
        raise ValueError(msg)
    return _ttl(state_ttl)


def ttls_of_sides(state_ttl: Life | tuple[Life, Life]) -> tuple[StateTtl | None, StateTtl | None]:
    """Return the TTLs of the left and the right side of a join; None for a side that is kept until it is retracted.

    Raises `TypeError` for anything that is no `Life`, `ValueError` unless there are one or two, and for a TTL that
    shows expired entries.
    """
    lives = state_ttl if isinstance(state_ttl, tuple) else (state_ttl, state_ttl)
    if len(lives) != len(("left", "right")):
        msg = f"state_ttl takes one duration, or two (left, right), not {len(lives)}"
        raise ValueError(msg)
    left, right = map(_ttl, lives)
    return left, right


def _ttl(given: object) -> StateTtl | None:
    if given is Lifetime.FOREVER:
        return None
    if isinstance(given, timedelta):
        return StateTtl(given)
    if not isinstance(given, StateTtl):
        msg = f"state_ttl must be a timedelta, a StateTtl or Lifetime.FOREVER, not {given!r:.60}"
        raise TypeError(msg)
    if given.visibility is not Visibility.NEVER_RETURN_EXPIRED:
        msg = "state_ttl: nothing uses a record that has expired, so `visibility` must be NEVER_RETURN_EXPIRED"
        raise ValueError(msg)
    return given
