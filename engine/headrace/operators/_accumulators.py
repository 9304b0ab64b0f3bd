"""State of aggregates, for single changes and for bundles of them.

State of one aggregate over some records: how values are added and removed, and how two states are merged.

Accumulators are stored as JSON. They may be changed in place. `merge` may return its first argument, but its result
never shares anything with the second.
"""

from __future__ import annotations

import abc
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_05UP, ROUND_HALF_EVEN, Context, Decimal, Inexact, InvalidOperation
from functools import partial, reduce
from operator import add
from typing import Any, Final
from uuid import UUID

import msgspec

from headrace.api.batches import Bundle, BundledRecord
from headrace.api.declared_values import Ends, form_of_results
from headrace.api.records import RowKind, Struct, canonical_encoder, shortest
from headrace.api.states import AggregateFunction, accumulator_type
from headrace.operators._normalize import IN_WINDOW, unmatched
from headrace.operators._value_types import BundledValues, reader

SMALLEST, LARGEST = -(1 << 63), (1 << 63) - 1
"""Range of integers of 64 bits."""

_canonical = canonical_encoder("deterministic")

_EXACT = frozenset({int, str, date, time, timedelta, UUID})
"""Types whose values have a total order, and are equal only to themselves: floats have neither."""


class Change(msgspec.Struct, frozen=True):
    """A record that is added or retracted: `sign` is 1 or -1. `at` is its event time (ms).

    `pieces` are those of its window (`_window_pieces`), if it is a retraction.
    """

    record: Any
    at: int
    sign: int = 1
    pieces: Collection[Any] = ()


def sign_of(kind: RowKind) -> int:
    """Return -1 for a retraction, 1 for other records."""
    return -1 if kind.is_retraction else 1


class StoredAggregate(abc.ABC):
    """State of one aggregate. `type` is the type of the state in the row of a key."""

    type: Any

    can_remove: bool = False
    """True: values can be removed again."""

    @abc.abstractmethod
    def create(self) -> Any:
        """Return an empty state."""

    @abc.abstractmethod
    def result(self, state: Any, /) -> Any:
        """Return the result of the state."""


class Accumulator(StoredAggregate):
    """State of one aggregate that is in the row of a key as a whole."""

    @abc.abstractmethod
    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value (never None) added."""

    def may_hold(self, state: Any, value: Any, change: Change, /) -> bool:
        """Return whether a value (never None) may have been added before: false only where it surely was not.

        Raises `NotImplementedError` where values cannot be removed.
        """
        raise NotImplementedError

    def remove(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value removed that it `may_hold`. Raises `NotImplementedError` where values cannot be removed."""
        raise NotImplementedError

    def together(self, state: Any, values: BundledValues, /) -> Callable[[], Any] | None:
        """Return what makes the state with values added (at least one), and cannot fail.

        The new state is the one that `add` would return after the last of them. None means that `add` must take one
        value after the other, as by default. Nothing changes before the returned function is called.
        """
        del state, values
        return None

    @abc.abstractmethod
    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""


class CountedAccumulator(Accumulator):
    """Numbers of different values. Those in one state may be negative where another state, which it is merged with, has the values."""

    @abc.abstractmethod
    def number(self, state: Any, value: Any, /) -> int:
        """Return how often a state has a value."""


class CountAccumulator(Accumulator):
    """Number of values."""

    can_remove = True

    type = int

    def create(self) -> int:
        """Return an empty state."""
        return 0

    def add(self, state: int, value: Any, change: Change, /) -> int:
        """Return the state with a value (never None) added."""
        del value, change
        return state + 1

    def may_hold(self, state: int, value: Any, change: Change, /) -> bool:
        """Return whether there are values."""
        del value, change
        return state > 0

    def remove(self, state: int, value: Any, change: Change, /) -> int:
        """Return the state with a value removed."""
        del value, change
        return state - 1

    def together(self, state: int, values: BundledValues, /) -> Callable[[], int]:
        """Return what makes the state with values added."""
        return partial(add, state, len(values.all))

    def merge(self, one: int, other: int, /) -> int:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return one + other

    def result(self, state: int, /) -> int:
        """Return the result."""
        return state


class DistinctAccumulator(CountedAccumulator):
    """Counts of the distinct values, by their JSON text."""

    can_remove = True

    type = dict[str, int]

    def __init__(self, text: Callable[[Any], str]) -> None:
        """Take the function that makes the text of a value."""
        self._text = text

    def create(self) -> dict[str, int]:
        """Return an empty state."""
        return {}

    def add(self, state: dict[str, int], value: Any, change: Change, /) -> dict[str, int]:
        """Return the state with a value (never None) added."""
        del change
        _count(state, self._text(value), 1)
        return state

    def number(self, state: dict[str, int], value: Any, /) -> int:
        """Return how often a state has a value."""
        return state.get(self._text(value), 0)

    def may_hold(self, state: dict[str, int], value: Any, change: Change, /) -> bool:
        """Return whether the state holds the value."""
        del change
        return state.get(self._text(value), 0) > 0

    def remove(self, state: dict[str, int], value: Any, change: Change, /) -> dict[str, int]:
        """Return the state with a value removed."""
        del change
        _count(state, self._text(value), -1)
        return state

    def together(self, state: dict[str, int], values: BundledValues, /) -> Callable[[], dict[str, int]] | None:
        """Return what makes the state with values added."""
        if values.type not in _EXACT:
            return None
        more = {self._text(value): number for value, number in Counter(values.all).items()}
        if any(state.get(text, 0) < 0 for text in more):
            return None  # the order of the texts depends on where a count was 0
        return partial(_count_all, state, more)

    def merge(self, one: dict[str, int], other: dict[str, int], /) -> dict[str, int]:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        for text, count in other.items():  # takes a third less time than calls of `_count`
            if total := one.get(text, 0) + count:
                one[text] = total
            else:
                one.pop(text, None)
        return one

    def result(self, state: dict[str, int], /) -> int:
        """Return the result."""
        return sum(count > 0 for count in state.values())


def _unchanged(state: Any) -> Any:
    return state


def _count_all(counts: dict[str, int], more: Mapping[str, int]) -> dict[str, int]:
    for text, count in more.items():
        _count(counts, text, count)
    return counts


def distinct_text(value: Any) -> str:
    """Return the JSON text of a value, the same for equal values. Raises `ValueError` for NaN and infinity."""
    if type(value) in _EXACT:
        return msgspec.json.encode(value).decode()
    return _canonical(_one_form(value)).decode()


def text_of_results(function: Callable[..., Any]) -> Callable[[Any], str]:
    """Return what makes the texts of a function's results, which get the type that it declares to return."""
    form = form_of_results(function, Ends(_one_form, tuple))
    return lambda value: distinct_text(form(value))


def _one_form(value: Any) -> Any:
    """Return the form that a value has in common with all that are equal to it."""
    if isinstance(value, float):
        check_finite("CountDistinct", value)
        return value + 0.0  # -0.0 and 0.0 are equal
    if isinstance(value, Decimal):
        check_finite("CountDistinct", value)
        return shortest(value)  # 1.5 and 1.50 as well
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC)  # equal instants as well
    return value


def _count(counts: dict[str, int], text: str, more: int) -> None:
    count = counts.get(text, 0) + more
    if count:
        counts[text] = count
    else:
        counts.pop(text, None)


class Total(Struct):
    """Sum of some values, and their number."""

    total: int | float = 0
    values: int = 0


class SumAccumulator(Accumulator):
    """Sum of int or float values."""

    can_remove = True

    type = Total

    def __init__(self, name: str, result: Any) -> None:
        """Name the aggregate, for errors, and the type of the result."""
        self._name = name
        self.gives_float = result is float

    def create(self) -> Total:
        """Return an empty state."""
        return Total()

    def add(self, state: Total, value: float, change: Change, /) -> Total:
        """Return the state with a value (never None) added."""
        del change
        total = state.total + value
        if type(total) is not int or not SMALLEST <= total <= LARGEST:
            return self._added(state, value, 1)
        state.total, state.values = total, state.values + 1
        return state

    def may_hold(self, state: Total, value: float, change: Change, /) -> bool:
        """Return whether there are values."""
        del value, change
        return state.values > 0

    def remove(self, state: Total, value: float, change: Change, /) -> Total:
        """Return the state with a value removed. Without values the sum is exactly 0."""
        del change
        return Total() if state.values == 1 else self._added(state, -value, -1)

    def together(self, state: Total, values: BundledValues, /) -> Callable[[], Total] | None:
        """Return what makes the state with values added."""
        if type(state.total) is not int or values.type is not int:
            return None  # the sum of floats depends on their order
        if abs(state.total) + sum(map(abs, values.all)) > LARGEST:
            return None
        return partial(self._added, state, sum(values.all), len(values.all))

    def merge(self, one: Total, other: Total, /) -> Total:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return self._added(one, other.total, other.values)

    def _added(self, state: Total, value: Any, values: int) -> Total:
        total: Any = state.total + value
        if isinstance(total, float):
            check_finite(self._name, total)
        elif not SMALLEST <= total <= LARGEST:
            msg = f"{self._name} is {total}, more than 64 bits can hold: make it a float, or smaller windows"
            raise OverflowError(msg)
        state.total, state.values = total, state.values + values
        return state

    def result(self, state: Total, /) -> Any:
        """Return the result."""
        if not state.values:
            return None
        return float(state.total) if self.gives_float else state.total


class AvgAccumulator(SumAccumulator):
    """Mean of int or float values."""

    def __init__(self, name: str) -> None:
        """Name the aggregate, for errors."""
        super().__init__(name, float)

    def result(self, state: Total, /) -> float | None:
        """Return the result."""
        return state.total / state.values if state.values else None


class DecimalTotal(Struct):
    """Sum of some decimals, and their number."""

    total: Decimal = Decimal(0)
    values: int = 0


class DecimalSum(Accumulator):
    """Sum of decimals. It is exact: Python's own context would round sums to 28 digits."""

    can_remove = True

    type = DecimalTotal

    def create(self) -> DecimalTotal:
        """Return an empty state."""
        return DecimalTotal()

    def add(self, state: DecimalTotal, value: Decimal, change: Change, /) -> DecimalTotal:
        """Return the state with a value (never None) added."""
        del change
        check_finite("a sum of decimals", value)
        return self._added(state, value, 1)

    def may_hold(self, state: DecimalTotal, value: Decimal, change: Change, /) -> bool:
        """Return whether there are values."""
        del value, change
        return state.values > 0

    def remove(self, state: DecimalTotal, value: Decimal, change: Change, /) -> DecimalTotal:
        """Return the state with a value removed. Without values the sum is exactly 0."""
        del change
        return DecimalTotal() if state.values == 1 else self._added(state, value.copy_negate(), -1)

    def together(self, state: DecimalTotal, values: BundledValues, /) -> Callable[[], DecimalTotal] | None:
        """Return what makes the state with values added."""
        if values.type is not Decimal or not all(map(math.isfinite, values.all)):
            return None  # one by one, for the error
        return partial(self._added, state, reduce(_EXACT_SUMS.add, values.all, Decimal(0)), len(values.all))

    def merge(self, one: DecimalTotal, other: DecimalTotal, /) -> DecimalTotal:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return self._added(one, other.total, other.values)

    def _added(self, state: DecimalTotal, value: Decimal, values: int) -> DecimalTotal:
        state.total, state.values = _EXACT_SUMS.add(state.total, value), state.values + values
        return state

    def result(self, state: DecimalTotal, /) -> Decimal | None:
        """Return the result."""
        return state.total if state.values else None


class DecimalAvg(DecimalSum):
    """Mean of decimals, rounded to declared digits."""

    def __init__(self, digits: tuple[int, int] | None) -> None:
        """Take the digits of the result: all, and those behind the point; None where the record has no such column."""
        self._last_place = Decimal(1).scaleb(-(0 if digits is None else digits[1]))

    def result(self, state: DecimalTotal, /) -> Decimal | None:
        """Return the result."""
        if not state.values:
            return None
        # One digit more than needed, and that is odd where the division goes on: so rounding twice equals rounding once.
        return _MEANS.divide(state.total, state.values).quantize(self._last_place, ROUND_HALF_EVEN, _MEANS)


_EXACT_SUMS: Final = Context(prec=400, traps=[Inexact, InvalidOperation])
"""Context of sums: 38 digits, and as many values as one may add up, are exact in it."""
_MEANS: Final = Context(prec=400, rounding=ROUND_05UP)


class ExtremeAccumulator(Accumulator):
    """Smallest or largest value."""

    def __init__(self, name: str, value: Any, *, takes_larger: bool) -> None:
        """Take the type of the values."""
        self._name = name
        self.type = value | None
        self.takes_larger = takes_larger

    def create(self) -> None:
        """Return an empty state."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value (never None) added."""
        del change
        if isinstance(value, float):
            check_finite(self._name, value)
        if state is None or (value > state if self.takes_larger else value < state):
            return value
        return state

    def together(self, state: Any, values: BundledValues, /) -> Callable[[], Any] | None:
        """Return what makes the state with values added."""
        if values.type not in _EXACT:
            return None
        return partial(self._better, state, max(values.all) if self.takes_larger else min(values.all))

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return one if other is None else self._better(one, other)

    def _better(self, state: Any, value: Any) -> Any:
        if state is None:
            return value
        return value if (value > state if self.takes_larger else value < state) else state

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        return state


class ExtremeByAccumulator(Accumulator):
    """Smallest or largest `by`, with the event time and the value of its record."""

    def __init__(
        self, name: str, by: Any, value: Any, read_by: str | Callable[[Any], Any], *, takes_larger: bool
    ) -> None:
        """Take the types of `by` and of the values; `read_by` reads `by` from a record."""
        self._name = name
        self.type = tuple[by, int, value] | None
        self._by = reader(read_by)
        self._takes_larger = takes_larger

    def create(self) -> None:
        """Return an empty state."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value (never None) added."""
        by = self._by(change.record)
        if by is None:
            return state
        if isinstance(by, float):
            check_finite(self._name, by)
        return self._better(state, (by, change.at, value))

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
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
    """Earliest event time, and the value at that time."""

    def __init__(self, name: str, value: Any) -> None:
        """Take the type of the values."""
        self._name = name
        self.type = tuple[int, value] | None

    def create(self) -> None:
        """Return an empty state."""

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value (never None) added."""
        if isinstance(value, float):
            check_finite(self._name, value)
        return self._better(state, (change.at, value))

    def together(self, state: Any, values: BundledValues, /) -> Callable[[], Any] | None:
        """Return what makes the state with values added."""
        if any(isinstance(value, float) for value in values.all):
            return None
        for value, at in zip(values.all, values.times, strict=True):
            state = self._better(state, (at, value))
        return partial(_unchanged, state)

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        return one if other is None else self._better(one, other)

    def _better(self, state: Any, new: Any) -> Any:
        return new if state is None or new[0] < state[0] else state

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        return None if state is None else state[1]


class LastAccumulator(FirstAccumulator):
    """Latest event time, and the value at that time."""

    def _better(self, state: Any, new: Any) -> Any:
        return new if state is None or new[0] >= state[0] else state


class OwnAccumulator(Accumulator):
    """Accumulator of a user's `AggregateFunction`."""

    def __init__(self, function: AggregateFunction[Any, Any, Any]) -> None:
        """Take the function. Raises `TypeError` where it does not name its types."""
        self.type = accumulator_type(function)
        self._function = function
        self._decoder = msgspec.json.Decoder(self.type)
        self.can_remove = type(function).retract is not AggregateFunction.retract

    def create(self) -> Any:
        """Return an empty state."""
        return self._function.create_accumulator()

    def add(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value (never None) added."""
        del change
        return self._function.add(value, state)

    def may_hold(self, state: Any, value: Any, change: Change, /) -> bool:
        """Return True: only the function could tell."""
        del state, value, change
        return True

    def remove(self, state: Any, value: Any, change: Change, /) -> Any:
        """Return the state with a value removed."""
        del change
        return self._function.retract(value, state)

    def merge(self, one: Any, other: Any, /) -> Any:
        """Return the state of the records of both accumulators; the records of `one` are earlier."""
        # The function may change either argument, or return the second one: the stored state must not notice.
        return self._function.merge(one, self._copy(other))

    def result(self, state: Any, /) -> Any:
        """Return the result."""
        # A result may share parts with the accumulator, which later records change.
        return self._function.get_result(self._copy(state))

    def _copy(self, state: Any) -> Any:
        return self._decoder.decode(msgspec.json.encode(state))


def check_finite(name: str, value: float | Decimal) -> None:
    """Raise `ValueError` for a value of the aggregate `name` that can be neither compared nor stored."""
    if not math.isfinite(value):
        msg = f"{name} met {value}, which can be neither compared nor stored: filter() such records, or give where=..."
        raise ValueError(msg)


_SIGNS = tuple(sign_of(kind) for kind in RowKind)


class BundledChanges:
    """Some records of a bundle as changes. While one is applied, it is the bundle's current record."""

    __slots__ = ("_bundle", "_pieces", "records")

    def __init__(self, bundle: Bundle, records: Sequence[BundledRecord], pieces: Collection[Any] = ()) -> None:
        """Take the records, at least one, in arrival order, and the pieces of their window for retractions."""
        self._bundle = bundle
        self._pieces = pieces
        self.records = records

    def __iter__(self) -> Iterator[Change]:
        """Yield the changes, each as the current one."""
        work_on = self._bundle.work_on
        for record in self.records:
            work_on(record)
            yield Change(record.record, record.timestamp, _SIGNS[record.kind], self._pieces)

    def set_aside(self) -> None:
        """Move the current record to the quarantine: a retraction that matches nothing."""
        self._bundle.quarantine(unmatched(RowKind(self._bundle.current.kind), IN_WINDOW))

    def end(self) -> None:
        """Make the last record the current one, as after an iteration."""
        self._bundle.work_on(self.records[-1])
