"""Joins of two streams in windows: the results for the records that a key has in a window."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.api.join_type import JoinType

Results = Callable[[Sequence[Any], Sequence[Any]], Iterable[Any]]
"""Function from a key's left and right records in a window to their results; one of the two may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowJoin:
    """A join in windows: the types of left records, right records and results, and the function that makes results.

    `kind` is its name for people.
    """

    left: type[msgspec.Struct]
    right: type[msgspec.Struct]
    gives: type[msgspec.Struct]
    kind: str
    results: Results

    @property
    def keeps_records(self) -> bool:
        """Return whether results are left records, each at most once in a window."""
        return self.results in {matched, unmatched}


def pairs(emit: Callable[[Any, Any], Any], how: JoinType) -> Results:
    """Return the results function of an inner or outer join: one result per pair, or per record of the only side that has any."""

    def results(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
        if lefts and rights:
            return (emit(left, right) for left in lefts for right in rights)
        if lefts and how.keeps_left:
            return (emit(left, None) for left in lefts)
        if rights and how.keeps_right:
            return (emit(None, right) for right in rights)
        return ()

    return results


def matched(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
    """Return the results of a semi join: the left records, if there are right ones."""
    return lefts if rights else ()


def unmatched(lefts: Sequence[Any], rights: Sequence[Any]) -> Iterable[Any]:
    """Return the results of an anti join: the left records, if there are no right ones."""
    return () if rights else lefts
