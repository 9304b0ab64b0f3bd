"""Processes that die at a place of the protocol."""

from __future__ import annotations

from contextlib import AbstractContextManager

from headrace import crash_points
from headrace.testing._runs import at


class Killed(BaseException):
    """The process is gone."""


def dying_at(place: str | None, visit: int = 1, error: type[BaseException] = Killed) -> AbstractContextManager[None]:
    """Raise an error when the block reaches a place for the given time; it never does for None."""

    def die() -> None:
        raise error

    return crash_points.observed(at(place and f"{place}:{visit}", die))
