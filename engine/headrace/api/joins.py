"""What the stream's method `join` takes, and the keyed functions that join two streams."""

from __future__ import annotations

import abc
import enum
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import msgspec

from headrace.api.functions import KeyedCoProcessFunction
from headrace.api.state_ttl import StateTtl, Visibility

In1 = TypeVar("In1", bound=msgspec.Struct)
In2 = TypeVar("In2", bound=msgspec.Struct)
Out = TypeVar("Out", bound=msgspec.Struct)


class JoinType(enum.Enum):
    """Which records of a regular join are in the result although nothing matches them, as in SQL."""

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
        """Whether a left record without a match is in the result."""
        return self in {JoinType.LEFT, JoinType.FULL}

    @property
    def keeps_right(self) -> bool:
        """Whether a right record without a match is in the result."""
        return self in {JoinType.RIGHT, JoinType.FULL}


class Lifetime(enum.Enum):
    """How long a join keeps a record, where no duration says it."""

    FOREVER = "forever"
    """Until it is taken back: for sides that stay small."""


Life = timedelta | StateTtl | Lifetime
"""How long a join keeps a record."""


class JoinFunction(KeyedCoProcessFunction[In1, In2, Out]):
    """A keyed function that joins records of two streams.

    `retracts` says that it may take a result back. `late` has the types of its side outputs for records that come too late, by
    name; such a record is dropped unless its side output is declared: `emits_late` has the names of those that are.
    """

    retracts: bool
    late: ClassVar[Mapping[str, type[msgspec.Struct]]] = {}
    emits_late: frozenset[str] = frozenset()

    @abc.abstractmethod
    def described(self) -> dict[str, Any]:
        """Return what `headrace explain` shows of it: texts, lists of them, and durations."""

    def open_side(self, operator: str, name: str, record: type[msgspec.Struct]) -> None:
        """Emit to side output `name` from now on. `operator` names the join in errors.

        Raises `ValueError` where the join has no such side output, `TypeError` where it has other records.
        """
        taken = self.late.get(name)
        if taken is None:
            known = ", ".join(f"'{each}'" for each in self.late) or "none"
            msg = f"join '{operator}' has no side output '{name}' (it has: {known})"
            raise ValueError(msg)
        if record is not taken:
            msg = f"side output '{name}' of '{operator}' has records of type {taken.__name__}, not {record!r:.60}"
            raise TypeError(msg)
        self.emits_late |= {name}


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
