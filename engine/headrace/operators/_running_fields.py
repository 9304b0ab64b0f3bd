"""Running values over columns, and the layout of rows by key.

Running aggregates over columns: the results and the states of the accumulators, for records without retractions.

Each key begins with a row for its stored group. So a running aggregate is a running sum, or a running maximum, and the row
before a record has the result before it:

    place       0        1    2    3        4    5
    row         stored a a1   a2   stored b b1   b2
    number      5        1    1    0        1    1        what Count adds
    running     5        6    7    0        1    2        the sum so far, less the sum up to the key's first row
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, Final, get_args, get_origin

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.api.batches import KeyedColumns
from headrace.api.records import RowKind
from headrace.operators._accumulators import (
    Accumulator,
    AvgAccumulator,
    CountAccumulator,
    DecimalSum,
    DecimalTotal,
    ExtremeAccumulator,
    FirstAccumulator,
    LastAccumulator,
    SumAccumulator,
    Total,
)
from headrace.operators._result_record import AggregatedField
from headrace.operators._value_types import annotated_type

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LARGEST_SUM: Final = 1 << 62
"""Sums below it cannot leave 64 bits on their way."""


class NotInColumnsError(Exception):
    """These records have to be processed one by one."""


NOT_IN_COLUMNS: Final = (NotInColumnsError, ArithmeticError, TypeError, ValueError)
"""Errors of records that have to be processed one by one: some fails, and has to be named, or a stored value does not fit the columns."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows sorted by key: those of stored groups, and those of records."""

    order: Numbers
    """For each place, the number of the row: stored groups come first, one for each key, then the records."""
    segments: Numbers
    """For each place, the number of the key."""
    starts: Numbers
    """For each key, the place of its stored group."""

    @classmethod
    def of(cls, key_numbers: Numbers, keys: int) -> Layout:
        """Return the layout of records with these keys."""
        rows = np.concatenate([np.arange(keys), key_numbers])
        order = np.argsort(rows, kind="stable")
        segments = rows[order]
        return cls(order, segments, np.searchsorted(segments, np.arange(keys)))

    @property
    def ends(self) -> Numbers:
        """Return the place of each key's last row."""
        return np.append(self.starts, len(self.order))[1:] - 1

    @property
    def is_stored(self) -> Flags:
        """Return whether a place has a stored group."""
        return self.order < len(self.starts)

    def placed(self, stored: Sequence[Any], records: pa.Array) -> pa.Array:
        """Return the values of stored groups and of records, by place."""
        return pa.concat_arrays([pa.array(stored, records.type), records]).take(pa.array(self.order))

    def running_sum(self, numbers: Numbers) -> Numbers:
        """Return the sum of each key's numbers up to each place."""
        sums = np.cumsum(numbers)
        return sums - (sums[self.starts] - numbers[self.starts])[self.segments]

    def running_best(self, scores: Numbers, valid: Flags, *, takes_equal: bool) -> Numbers:
        """Return the place of each key's best row up to each place: the highest score, of equal ones the first or the last.

        It is the key's first row while no row is `valid`, and that row holds no value then. Scores are above 0.
        """
        largest = int(scores.max(initial=0)) + 1
        if largest * (len(self.starts) + 1) > LARGEST_SUM:
            scores = np.unique(scores, return_inverse=True)[1].astype(np.int64) + 1
            largest = len(scores) + 2
        scores = self.segments * largest + np.where(valid, scores, 0)
        before = np.concatenate([[-1], np.maximum.accumulate(scores)[:-1]])
        is_better = (scores >= before if takes_equal else scores > before) & valid
        is_better[self.starts] = True
        return np.maximum.accumulate(np.where(is_better, np.arange(len(scores)), 0))

    def replacing(self, best: Numbers) -> tuple[Flags, Numbers]:
        """Return for each place whether its record becomes its key's best row, and the place of the one before it. `best` is of `running_best`."""
        places = np.arange(len(best))
        replaces = (best == places) & ~self.is_stored
        return replaces, np.where(replaces, best[places - 1], 0)


_EXACT_FLOAT: Final = 1 << 53
"""Whole numbers below it are floats, so that a division of floats rounds as one of whole numbers does."""


@dataclass(frozen=True, slots=True)
class RunningField:
    """One field by place: its result, and what makes the state of each key at these places."""

    values: pa.Array
    states: Callable[[Numbers], list[Any]]
    best: Numbers | None = None
    """For each place, the place of its result in `values`; None: the same place."""

    always_changes: bool = False
    """True: no two results of a key that follow each other are equal."""

    def results(self, places: Numbers) -> pa.Array:
        """Return the results at some places. Only these are copied: a long text may be the result of many places."""
        return self.values.take(pa.array(places if self.best is None else self.best[places]))


MergedField = Callable[[Layout, Sequence[Any], pa.Array, pa.DataType], pa.Array]
"""Function of a layout of states by key, of different states, of their places in the order of arrival, and of the results' type.

It returns the result of each key's states, merged in this order.
"""
FieldInColumns = Callable[[Layout, Sequence[Any], pa.Array | None, pa.Array], RunningField]
"""Function of the layout, the stored states, the records' values and their times."""


def _count(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
    ones = np.ones(len(times), np.int64) if values is None else values.is_valid().to_numpy(zero_copy_only=False)
    numbers = layout.placed(stored, pa.array(ones.astype(np.int64))).to_numpy()
    running = layout.running_sum(numbers)
    return RunningField(pa.array(running), lambda places: running[places].tolist(), always_changes=values is None)


def _merged_counts(layout: Layout, states: Sequence[Any], places: pa.Array, kind: pa.DataType) -> pa.Array:
    return _sums(layout, pa.array(states, kind).take(places))


def _sums(layout: Layout, numbers: pa.Array) -> pa.Array:
    """Return the sum of the numbers of each key. Raises `NotInColumnsError` where it might leave 64 bits on its way."""
    _check_sum(numbers.to_numpy())
    nothing = [0] * len(layout.starts)
    return pa.array(layout.running_sum(layout.placed(nothing, numbers).to_numpy())[layout.ends])


def _check_sum(numbers: Numbers) -> None:
    if float(np.abs(numbers.astype(np.float64)).sum()) >= LARGEST_SUM:
        raise NotInColumnsError


def _total(layout: Layout, stored: Sequence[Any], values: pa.Array, *, as_float: bool) -> tuple[Any, Numbers, pa.Array]:
    """Return the running totals as a list or an array, the numbers of values, and the totals as the result shows them."""
    counts = layout.placed([total.values for total in stored], values.is_valid().cast(pa.int64())).to_numpy()
    number = layout.running_sum(counts)
    totals = [total.total for total in stored]
    if pa.types.is_integer(values.type):
        if any(type(total) is not int for total in totals):
            raise NotInColumnsError
        added = layout.placed(totals, pc.fill_null(values, 0)).to_numpy()
        _check_sum(added)
        running = layout.running_sum(added)
        return running, number, pa.array(running.astype(np.float64) if as_float else running)
    summed = _summed_in_order(layout, totals, values)
    return summed, number, pa.array(summed, pa.float64())


def _summed_in_order(layout: Layout, totals: Sequence[Any], values: pa.Array) -> list[Any]:
    """Return the running totals of floats, which depend on the order in which they are added."""
    given = [*totals, *values.to_pylist()]
    result: list[Any] = []
    total: Any = 0
    for row in layout.order.tolist():
        value = given[row]
        if row < len(totals):
            total = value
        elif value is not None:
            total += value
        result.append(total)
    if not np.isfinite(np.array(result, np.float64)).all():
        raise NotInColumnsError
    return result


def _states_of_totals(totals: Any, number: Numbers) -> Callable[[Numbers], list[Any]]:
    def states(places: Numbers) -> list[Any]:
        chosen = totals[places].tolist() if isinstance(totals, np.ndarray) else [totals[place] for place in places]
        return list(map(Total, chosen, number[places].tolist()))

    return states


def _sum(*, as_float: bool) -> FieldInColumns:
    def running(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
        del times
        assert values is not None  # noqa: S101 - a sum needs a field
        totals, number, shown = _total(layout, stored, values, as_float=as_float)
        results = pc.if_else(pa.array(number != 0), shown, pa.scalar(None, shown.type))
        return RunningField(results, _states_of_totals(totals, number))

    return running


def _decimal_sum(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
    del times
    assert values is not None  # noqa: S101 - a sum needs a field
    scale = values.type.scale
    counts = layout.placed([total.values for total in stored], values.is_valid().cast(pa.int64())).to_numpy()
    number = layout.running_sum(counts)
    added = layout.placed(
        [_unscaled_total(total, scale) for total in stored], pc.fill_null(_unscaled(values), 0)
    ).to_numpy()
    _check_sum(added)
    running = layout.running_sum(added)
    shown = _scaled(running, scale)
    results = pc.if_else(pa.array(number != 0), shown, pa.scalar(None, shown.type))

    def states(places: Numbers) -> list[Any]:
        pairs = zip(running[places].tolist(), number[places].tolist(), strict=True)
        return [
            DecimalTotal(Decimal(total).scaleb(-scale), values) if values else DecimalTotal() for total, values in pairs
        ]

    return RunningField(results, states)


def _merged_totals(layout: Layout, states: Sequence[Any], places: pa.Array, kind: pa.DataType) -> pa.Array:
    totals = _totals(layout, states, places)
    shown = totals.cast(
        _whole_float(kind), safe=pa.types.is_integer(kind)
    )  # a sum beyond the field is refused, record by record
    return _where_any(_merged_values(layout, states, places), shown)


def _whole_float(kind: pa.DataType) -> pa.DataType:
    """Return the type of a result. Raises `NotInColumnsError` for floats of 32 bits, to which records round once, at the end."""
    if pa.types.is_float32(kind):
        raise NotInColumnsError
    return kind


def _totals(layout: Layout, states: Sequence[Any], places: pa.Array) -> pa.Array:
    """Return the merged totals of each key, also where they have no values."""
    totals = [total.total for total in states]
    if all(type(total) is int for total in totals):
        return _sums(layout, pa.array(totals, pa.int64()).take(places))
    if any(type(total) is int and total for total in totals):
        raise NotInColumnsError
    return _merged_in_order(layout, pa.array(totals, pa.float64()).take(places))


def _merged_in_order(layout: Layout, totals: pa.Array) -> pa.Array:
    """Return the sum of each key's floats, which depends on the order in which they are added."""
    placed = layout.placed([0.0] * len(layout.starts), totals).to_numpy()
    numbers = layout.ends - layout.starts
    sums = np.zeros(len(numbers))
    with np.errstate(over="ignore", invalid="ignore"):
        for number in range(1, int(numbers.max(initial=0)) + 1):
            has = numbers >= number
            sums[has] += placed[layout.starts[has] + number]
    if not np.isfinite(sums).all():
        raise NotInColumnsError
    return pa.array(np.where(numbers == 1, placed[layout.ends], sums))  # a sum of -0.0 alone is no 0.0


def _merged_means(layout: Layout, states: Sequence[Any], places: pa.Array, kind: pa.DataType) -> pa.Array:
    totals, numbers = _totals(layout, states, places), _merged_values(layout, states, places)
    if pa.types.is_integer(totals.type) and np.abs(totals.to_numpy()).max(initial=0) >= _EXACT_FLOAT:
        raise NotInColumnsError
    kind = _whole_float(kind)
    return pc.divide(_where_any(numbers, totals.cast(kind)), numbers.cast(kind))


def _merged_values(layout: Layout, states: Sequence[Any], places: pa.Array) -> pa.Array:
    """Return the number of values of each key."""
    return _sums(layout, pa.array([total.values for total in states], pa.int64()).take(places))


def _where_any(numbers: pa.Array, results: pa.Array) -> pa.Array:
    """Return results, null where they have no values."""
    return pc.if_else(pc.not_equal(numbers, 0), results, pa.scalar(None, results.type))


def _unscaled_total(total: DecimalTotal, scale: int) -> int:
    """Return a stored sum in units of the last place. Raises `NotInColumnsError` for one of another scale."""
    if not total.values:
        return 0
    if total.total.as_tuple().exponent != -scale:
        raise NotInColumnsError
    return int(total.total.scaleb(scale))


def _unscaled(values: pa.Array) -> pa.Array:
    """Return decimals in units of the last place. Raises `pa.ArrowInvalid`, a `ValueError`, beyond 64 bits."""
    return pa.Array.from_buffers(pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset).cast(
        pa.int64()
    )


def _scaled(numbers: Numbers, scale: int) -> pa.Array:
    """Return numbers of units of the last place as decimals, which are numbers of 128 bits."""
    words = np.stack([numbers, numbers >> 63], axis=1).astype("<i8")
    return pa.Array.from_buffers(pa.decimal128(38, scale), len(numbers), [None, pa.py_buffer(words.tobytes())])


def _avg(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
    del times
    assert values is not None  # noqa: S101 - a mean needs a field
    totals, number, shown = _total(layout, stored, values, as_float=True)
    exact = np.abs(shown.to_numpy())
    if isinstance(totals, np.ndarray) and exact.max(initial=0) >= _EXACT_FLOAT:
        raise NotInColumnsError
    means = pc.divide(shown, pa.array(np.where(number == 0, 1, number).astype(np.float64)))
    results = pc.if_else(pa.array(number != 0), means, pa.scalar(None, pa.float64()))
    return RunningField(results, _states_of_totals(totals, number))


def _extreme(*, takes_larger: bool) -> FieldInColumns:
    def running(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
        del times
        assert values is not None  # noqa: S101 - an extreme needs a field
        placed = layout.placed(stored, values)
        valid = placed.is_valid().to_numpy(zero_copy_only=False)
        best = layout.running_best(_scores(placed, takes_larger=takes_larger), valid, takes_equal=False)
        return RunningField(placed, lambda places: placed.take(pa.array(best[places])).to_pylist(), best)

    return running


def _merged_extremes(*, takes_larger: bool) -> MergedField:
    def merged(layout: Layout, states: Sequence[Any], places: pa.Array, kind: pa.DataType) -> pa.Array:
        nothing = [None] * len(layout.starts)
        values = pa.array(states, kind).take(places)
        return _extreme(takes_larger=takes_larger)(layout, nothing, values, places).results(layout.ends)

    return merged


def _merged_by_time(*, takes_later: bool) -> MergedField:
    def merged(layout: Layout, states: Sequence[Any], places: pa.Array, kind: pa.DataType) -> pa.Array:
        nothing = [None] * len(layout.starts)
        times = pa.array([0 if state is None else state[0] for state in states], pa.int64()).take(places)
        values = pa.array([None if state is None else state[1] for state in states], kind).take(places)
        return _by_time(takes_later=takes_later)(layout, nothing, values, times).results(layout.ends)

    return merged


def _by_time(*, takes_later: bool) -> FieldInColumns:
    def running(layout: Layout, stored: Sequence[Any], values: pa.Array | None, times: pa.Array) -> RunningField:
        assert values is not None  # noqa: S101 - a value by time needs a field
        _check_finite(values)
        placed = layout.placed([None if state is None else state[1] for state in stored], values)
        placed_times = layout.placed([0 if state is None else state[0] for state in stored], times)
        valid = placed.is_valid().to_numpy(zero_copy_only=False)
        scores = _scores(placed_times, takes_larger=takes_later)
        best = layout.running_best(scores, valid, takes_equal=takes_later)

        def states(places: Numbers) -> list[Any]:
            chosen = pa.array(best[places])
            pairs = zip(placed_times.take(chosen).to_pylist(), placed.take(chosen).to_pylist(), strict=True)
            return [None if value is None else (time, value) for time, value in pairs]

        return RunningField(placed, states, best)

    return running


def _scores(values: pa.Array, *, takes_larger: bool) -> Numbers:
    """Return numbers above 0 in the order of the values, equal for equal values; of null they mean nothing."""
    _check_finite(values)
    if pa.types.is_boolean(values.type):
        values = values.cast(pa.int8())
    elif pa.types.is_date(values.type):
        values = values.cast(pa.int32())
    elif pa.types.is_decimal(values.type):
        values = _unscaled(values)
    if pa.types.is_integer(values.type):
        numbers: Numbers = pc.fill_null(values.cast(pa.int64()), 0).to_numpy()
        least, largest = int(numbers.min(initial=0)), int(numbers.max(initial=0))
        if largest - least >= LARGEST_SUM:
            raise NotInColumnsError
        return numbers - least + 1 if takes_larger else largest - numbers + 1
    if pa.types.is_floating(values.type):
        ranks: Numbers
        _, ranks = np.unique(pc.fill_null(values, 0.0).to_numpy() + 0.0, return_inverse=True)
        ranks = ranks.astype(np.int64)
    else:
        ranks = pc.fill_null(pc.rank(values, tiebreaker="dense"), 0).cast(pa.int64()).to_numpy()
    return ranks + 1 if takes_larger else int(ranks.max(initial=0)) - ranks + 1


def _check_finite(values: pa.Array) -> None:
    if pa.types.is_floating(values.type) and pc.all(pc.is_finite(values)).as_py() not in {True, None}:
        raise NotInColumnsError


def running_field(field: AggregatedField) -> FieldInColumns | None:
    """Return what computes a field from columns; None for functions of records, and other aggregates."""
    accumulator = field.accumulator
    counts_records = field.value is None and type(accumulator) is CountAccumulator
    if field.where is not None or not (counts_records or isinstance(field.value, str)):
        return None
    if type(accumulator) is SumAccumulator:
        return _sum(as_float=accumulator.gives_float)
    if type(accumulator) is ExtremeAccumulator:
        return _extreme(takes_larger=accumulator.takes_larger)
    return _MAKERS.get(type(accumulator))


_MAKERS: dict[type[Accumulator], FieldInColumns] = {
    CountAccumulator: _count,
    AvgAccumulator: _avg,
    DecimalSum: _decimal_sum,
    FirstAccumulator: _by_time(takes_later=False),
    LastAccumulator: _by_time(takes_later=True),
}


def merged_field(field: AggregatedField) -> MergedField | None:
    """Return what merges the states of a field as columns; None for aggregates, or values, where columns would not give the same bits."""
    accumulator = field.accumulator
    if type(accumulator) is ExtremeAccumulator:
        return _merged_extremes(takes_larger=accumulator.takes_larger)
    return _MERGING.get(type(accumulator))


_MERGING: dict[type[Accumulator], MergedField] = {
    CountAccumulator: _merged_counts,
    SumAccumulator: _merged_totals,
    AvgAccumulator: _merged_means,
    FirstAccumulator: _merged_by_time(takes_later=False),
    LastAccumulator: _merged_by_time(takes_later=True),
}


def retractions(columns: KeyedColumns) -> Flags:
    """Return for each record whether it is a retraction."""
    added: Flags = pc.is_in(columns.kinds, _ADDED).to_numpy(zero_copy_only=False)
    return ~added


def keys_with(marked: Flags, columns: KeyedColumns) -> Flags | None:
    """Return for each key whether one of its records is marked; None if no record is."""
    if not marked.any():
        return None
    keys = np.zeros(len(columns.keys), bool)
    keys[columns.key_numbers.to_numpy()[marked]] = True
    return keys


def of_type(results: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return results in the type of their field, which may declare other digits than the values have."""
    return results.cast(kind) if pa.types.is_decimal(kind) and pa.types.is_decimal(results.type) else results


def is_plain(field: msgspec.structs.FieldInfo) -> bool:
    """Return whether columns hold the values of a field as records do, and a record takes any value of its type."""
    return annotated_type(field.type).type in _PLAIN and not has_limits(field.type)


def has_limits(annotation: Any) -> bool:
    """Return whether an annotation limits its values, as `msgspec.Meta` does."""
    return any(getattr(mark, limit, None) is not None for mark in _metadata(annotation) for limit in _LIMITS)


def _metadata(annotation: Any) -> Iterator[Any]:
    """Yield the metadata of an annotation and of its parts."""
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    for part in get_args(annotation):
        yield from _metadata(part)


_PLAIN: Final = (int, float, str, bool, bytes, Decimal, date)
_LIMITS: Final = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
"""Attributes of `msgspec.Meta` that limit values."""
_ADDED = pa.array([int(RowKind.INSERT), int(RowKind.UPDATE_AFTER)], pa.int32())
