"""State of aggregates that can give the value before the last one back: all values, in order (Flink: `MinWithRetractAggFunction` and its kin).

An extreme, a first and a last value cannot be computed back from the result alone: when it is retracted, the next one takes its
place. So these accumulators keep all values of the records that were not taken back. A search takes log n steps; the state is
written as a whole, but for extremes of windows (`_window_pieces`). `_multisets` has extremes by entry.

They keep values, not records. So of several equal values at one event time, they cannot tell which one is retracted: they remove the one
that counts last, so that a result stays as long as one of its values does.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any, cast

from headrace.operators._accumulators import Accumulator, Change, CountedAccumulator, check_finite
from headrace.operators._value_types import are_equal, first_identical, reader

_value: Callable[[Any], Any] = itemgetter(0)
_time: Callable[[Any], int] = itemgetter(0)


class ExtremeOfAll(CountedAccumulator):
    """Smallest or largest of all values: pairs of a value and how often it occurs, sorted by value."""

    can_remove = True

    def __init__(self, name: str, value: Any, *, takes_larger: bool) -> None:
        """Take the type of the values."""
        self._name = name
        self.type = list[tuple[value, int]]
        self._takes_larger = takes_larger

    def create(self) -> list[Any]:
        """Return an empty state."""
        return []

    def add(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state with a value (never None) added."""
        del change
        self._count(state, self._checked(value), 1)
        return state

    def number(self, state: list[Any], value: Any, /) -> int:
        """Return how often a state has a value."""
        place = bisect_left(state, value, key=_value)
        return state[place][1] if place < len(state) and state[place][0] == value else 0

    def may_hold(self, state: list[Any], value: Any, change: Change, /) -> bool:
        """Return whether the state holds the value."""
        del change
        place = bisect_left(state, value, key=_value)
        return place < len(state) and bool(state[place][0] == value) and state[place][1] > 0

    def remove(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state with a value removed that it `may_hold`."""
        del change
        self._count(state, value, -1)
        return state

    def merge(self, one: list[Any], other: list[Any], /) -> list[Any]:
        """Return the state of the records of both accumulators; the records of `one` are earlier.

        Of equal values, such as 1.0 and 1.00, it has the later one, as with single records.
        """
        merged: list[Any] = []
        for value, number in sorted([*one, *other], key=_value):  # fast: both are sorted
            total = number + (merged.pop()[1] if merged and merged[-1][0] == value else 0)
            if total:
                merged.append((value, total))
        return merged

    def result(self, state: list[Any], /) -> Any:
        """Return the result."""
        return state[-1 if self._takes_larger else 0][0] if state else None

    def _checked(self, value: Any) -> Any:
        if isinstance(value, float):
            check_finite(self._name, value)
            return value + 0.0  # -0.0 and 0.0 are equal
        if isinstance(value, Decimal):
            check_finite(self._name, value)
        return value

    @staticmethod
    def _count(state: list[Any], value: Any, more: int) -> None:
        place = bisect_left(state, value, key=_value)
        is_known = place < len(state) and state[place][0] == value
        number = more + (state[place][1] if is_known else 0)
        state[place : place + is_known] = [(value, number)] if number else []


class FirstOfAll(Accumulator):
    """First value by event time, of several the first to arrive: pairs of a time (ms) and a value, in this order."""

    can_remove = True
    _counts_first, _counts_last = 0, -1

    def __init__(self, name: str, value: Any) -> None:
        """Take the type of the values."""
        self._name = name
        self.type = list[tuple[int, value]]

    def create(self) -> list[Any]:
        """Return an empty state."""
        return []

    def add(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state with a value (never None) added."""
        if isinstance(value, float):
            check_finite(self._name, value)
        state.insert(bisect_right(state, change.at, key=_time), (change.at, value))
        return state

    def may_hold(self, state: list[Any], value: Any, change: Change, /) -> bool:
        """Return whether the state holds the value."""
        del change
        return any(are_equal(other, value) for _, other in state)

    def remove(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state without a value that it `may_hold`: the identical one, the one of the change's event time, else the first one.

        Event times may differ: a function that retracts a record emits the retraction with the time of another record by
        default.
        """
        places = [place for place, (_, other) in enumerate(state) if are_equal(other, value)]
        del state[_taken_back(places, state.__getitem__, value, change, self._counts_last)]
        return state

    def merge(self, one: list[Any], other: list[Any], /) -> list[Any]:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return sorted([*one, *other], key=_time)

    def result(self, state: list[Any], /) -> Any:
        """Return the result."""
        return state[self._counts_first][1] if state else None


class LastOfAll(FirstOfAll):
    """Last value by event time, of several the last to arrive."""

    _counts_first, _counts_last = -1, 0


class ExtremeByOfAll(Accumulator):
    """Value of the record with the smallest or largest `by`: triples of `by`, event time (ms) and value, in the order of arrival for equal ones."""

    can_remove = True

    def __init__(
        self, name: str, by: Any, value: Any, read_by: str | Callable[[Any], Any], *, takes_larger: bool
    ) -> None:
        """Take the types of `by` and of the values; `read_by` reads `by` from a record."""
        self._name = name
        self.type = list[tuple[by, int, value]]
        self._by = reader(read_by)
        self._takes_larger = takes_larger

    def create(self) -> list[Any]:
        """Return an empty state."""
        return []

    def add(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state with a value (never None) added; a record without `by` is skipped."""
        by = self._by(change.record)
        if by is None:
            return state
        if isinstance(by, float):
            check_finite(self._name, by)
        state.insert(bisect_right(state, (by, change.at), key=_by_and_time), (by, change.at, value))
        return state

    def may_hold(self, state: list[Any], value: Any, change: Change, /) -> bool:
        """Return whether the state holds the value with the `by` of its record; True for a record without `by`, which is skipped."""
        by = self._by(change.record)
        return by is None or bool(self._places(state, by, value))

    def remove(self, state: list[Any], value: Any, change: Change, /) -> list[Any]:
        """Return the state without a value that it `may_hold`: the identical one, the one of the change's event time, else the first one with its `by`."""
        by = self._by(change.record)
        if by is not None:
            places = self._places(state, by, value)
            del state[_taken_back(places, lambda place: state[place][1:], value, change, -1)]
        return state

    @staticmethod
    def _places(state: list[Any], by: Any, value: Any) -> list[int]:
        """Return the places of the entries with this `by` and value."""
        first, behind = bisect_left(state, by, key=_value), bisect_right(state, by, key=_value)
        return [place for place in range(first, behind) if are_equal(state[place][2], value)]

    def merge(self, one: list[Any], other: list[Any], /) -> list[Any]:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return sorted([*one, *other], key=_by_and_time)

    def result(self, state: list[Any], /) -> Any:
        """Return the result."""
        if not state:
            return None
        return state[bisect_left(state, state[-1][0], key=_value) if self._takes_larger else 0][2]


def _taken_back(
    equal: Sequence[int], entry_at: Callable[[int], tuple[int, Any]], value: Any, change: Change, counts_last: int
) -> int:
    """Return the place of the value that a retraction takes back, of those with equal ones, at least one; an entry is an event time (ms) and a value.

    One that is written alike goes before others, then one of the change's event time; of several such, the one at `counts_last`, which
    counts last for the result. If none has the change's time, the first one goes.
    """
    timed = [place for place in equal if entry_at(place)[0] == change.at][:: counts_last or 1]
    return cast("int", first_identical([*timed, *equal], lambda place: entry_at(place)[1], value))


def _by_and_time(entry: Any) -> tuple[Any, int]:
    return entry[0], entry[1]
