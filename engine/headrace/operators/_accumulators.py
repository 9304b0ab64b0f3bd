"""The state of one aggregate over some records: how values are added to it and taken off, and how two become one.

Accumulators are stored as JSON. They may be changed in place, and what `merge` gives may be the first of its two arguments, but
it never shares anything with the second.
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import msgspec

from headrace.api import AggregateFunction, Struct
from headrace.api.states import accumulator_type
from headrace.operators._value_types import reader


class Change(msgspec.Struct, frozen=True):
    """A record that is added, or taken back: `sign` is 1 or -1. `at` is its event time (ms)."""

    record: Any
    at: int
    sign: int = 1


class Accumulator(abc.ABC):
    """How one aggregate keeps its state. `type` is that of the state."""

    type: Any

    @abc.abstractmethod
    def create(self) -> Any:
        """Return the state of no records."""

    @abc.abstractmethod
    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value, which is not None, or without it."""

    @abc.abstractmethod
    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""

    @abc.abstractmethod
    def result(self, state: Any, /) -> Any:
        """Return the result."""


class CountAccumulator(Accumulator):
    """A number."""

    type = int

    def create(self) -> int:
        """Return the state of no records."""
        return 0

    def add(self, state: int, value: Any, change: Change, /) -> int:
        """Return the state with a value, which is not None, or without it."""
        del value
        return state + change.sign

    def merge(self, one: int, other: int, /) -> int:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        return one + other

    def result(self, state: int, /) -> int:
        """Return the result."""
        return state


class DistinctAccumulator(Accumulator):
    """The count of each value, by its JSON text. It is below 0 where a value was taken back before it came."""

    type = dict[str, int]

    def create(self) -> dict[str, int]:
        """Return the state of no records."""
        return {}

    def add(self, state: dict[str, int], value: Any, change: Change, /) -> dict[str, int]:
        """Return the state with a value, which is not None, or without it."""
        if isinstance(value, float):
            _check_finite("CountDistinct", value)
            value += 0.0  # -0.0 and 0.0 are equal, and must have one text
        _count(state, msgspec.json.encode(value, order="deterministic").decode(), change.sign)
        return state

    def merge(self, one: dict[str, int], other: dict[str, int], /) -> dict[str, int]:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        for text, count in other.items():
            _count(one, text, count)
        return one

    def result(self, state: dict[str, int], /) -> int:
        """Return the result."""
        return sum(count > 0 for count in state.values())


def _count(counts: dict[str, int], text: str, more: int) -> None:
    count = counts.get(text, 0) + more
    if count:
        counts[text] = count
    else:
        counts.pop(text, None)


class Total(Struct):
    """The sum of some values, and how many they are."""

    total: int | float = 0
    values: int = 0


class SumAccumulator(Accumulator):
    """A sum of int or float."""

    type = Total

    def __init__(self, name: str, result: Any) -> None:
        """`name` is the aggregate's, for errors; `result` the type of the result."""
        self._name = name
        self._result = result

    def create(self) -> Total:
        """Return the state of no records."""
        return Total()

    def add(self, state: Total, value: float, change: Change, /) -> Total:
        """Return the state with a value, which is not None, or without it."""
        return self._added(state, change.sign * value, change.sign)

    def merge(self, one: Total, other: Total, /) -> Total:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        return self._added(one, other.total, other.values)

    def _added(self, state: Total, value: Any, values: int) -> Total:
        total: Any = state.total + value
        if isinstance(total, float):
            _check_finite(self._name, total)
        elif not -(1 << 63) <= total < 1 << 63:
            msg = f"{self._name} is {total}, more than 64 bits can hold: make it a float, or smaller windows"
            raise OverflowError(msg)
        state.total, state.values = total, state.values + values
        return state

    def result(self, state: Total, /) -> Any:
        """Return the result."""
        if not state.values:
            return None
        return float(state.total) if self._result is float else state.total


class AvgAccumulator(SumAccumulator):
    """A mean of int or float."""

    def __init__(self, name: str) -> None:
        """`name` is the aggregate's, for errors; `result` the type of the result."""
        super().__init__(name, float)

    def result(self, state: Total, /) -> float | None:
        """Return the result."""
        return state.total / state.values if state.values else None


class ExtremeAccumulator(Accumulator):
    """The smallest or the largest value."""

    def __init__(self, name: str, value: Any, *, takes_larger: bool) -> None:
        """`value` is the type of the values."""
        self._name = name
        self.type = value | None
        self._takes_larger = takes_larger

    def create(self) -> None:
        """Return the state of no records."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value, which is not None, or without it."""
        del change
        if isinstance(value, float):
            _check_finite(self._name, value)
        return self._better(state, value)

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        return one if other is None else self._better(one, other)

    def _better(self, state: Any, value: Any) -> Any:
        if state is None:
            return value
        return value if (value > state if self._takes_larger else value < state) else state

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        return state


class ExtremeByAccumulator(Accumulator):
    """The smallest or largest `by`, the event time of its record, and the value there."""

    def __init__(
        self, name: str, by: Any, value: Any, read_by: str | Callable[[Any], Any], *, takes_larger: bool
    ) -> None:
        """`by` and `value` are types; `read_by` says where a record has the first."""
        self._name = name
        self.type = tuple[by, int, value] | None
        self._by = reader(read_by)
        self._takes_larger = takes_larger

    def create(self) -> None:
        """Return the state of no records."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value, which is not None, or without it."""
        by = self._by(change.record)
        if by is None:
            return state
        if isinstance(by, float):
            _check_finite(self._name, by)
        return self._better(state, (by, change.at, value))

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        return one if other is None else self._better(one, other)

    def _better(self, state: Any, new: Any) -> Any:
        if state is None:
            return new
        if new[0] == state[0]:
            return new if new[1] < state[1] else state
        return new if (new[0] > state[0]) is self._takes_larger else state

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        return None if state is None else state[2]


class FirstAccumulator(Accumulator):
    """The earliest event time, and the value there."""

    def __init__(self, name: str, value: Any) -> None:
        """`value` is the type of the values."""
        self._name = name
        self.type = tuple[int, value] | None

    def create(self) -> None:
        """Return the state of no records."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value, which is not None, or without it."""
        if isinstance(value, float):
            _check_finite(self._name, value)
        return self._better(state, (change.at, value))

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        return one if other is None else self._better(one, other)

    def _better(self, state: Any, new: Any) -> Any:
        return new if state is None or new[0] < state[0] else state

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        return None if state is None else state[1]


class LastAccumulator(FirstAccumulator):
    """The latest event time, and the value there."""

    def _better(self, state: Any, new: Any) -> Any:
        return new if state is None or new[0] >= state[0] else state


class OwnAccumulator(Accumulator):
    """The accumulator of an `AggregateFunction` of yours."""

    def __init__(self, function: AggregateFunction[Any, Any, Any]) -> None:
        """Raises `TypeError` where the function does not name its types."""
        self.type = accumulator_type(function)
        self._function = function
        self._decoder = msgspec.json.Decoder(self.type)

    def create(self) -> Any:
        """Return the state of no records."""
        return self._function.create_accumulator()

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value, which is not None, or without it."""
        del change
        return self._function.add(value, state)

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of all that is in both. The records of `one` are the earlier ones."""
        # The function may change either of the two, or give the second one back: the state must not notice.
        return self._function.merge(one, self._copy(other))

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        # A result may be a part of the accumulator, which later records change.
        return self._function.get_result(self._copy(state))

    def _copy(self, state: Any) -> Any:
        return self._decoder.decode(msgspec.json.encode(state))


def _check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        msg = f"{name} met {value}, which can be neither compared nor stored: filter() such records, or give where=..."
        raise ValueError(msg)
