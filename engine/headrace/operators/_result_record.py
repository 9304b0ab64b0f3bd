"""Results of windows: records whose annotations define each field."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_args, get_origin

import msgspec

from headrace.api.batches import BundledRecord
from headrace.api.column_reads import TIME, Kind, fields_read, read_by_user
from headrace.api.functions import Context
from headrace.api.graph import KeyBy
from headrace.api.records import Struct
from headrace.api.states import AggregateFunction
from headrace.operators._accumulators import (
    Accumulator,
    BundledChanges,
    Change,
    CountedAccumulator,
    OwnAccumulator,
    StoredAggregate,
)
from headrace.operators._aggregates import Aggregate
from headrace.operators._multisets import Multiset
from headrace.operators._value_types import BundledValues, ValueType, annotated_type, reader, value_type
from headrace.operators._window_results import WINDOW_END, WINDOW_START, PartPieces, WindowResult, emit_change

KEY = "key"


State = TypeVar("State", bound=StoredAggregate)


@dataclass(frozen=True, slots=True)
class StoredField(Generic[State]):
    """Field of the result that an aggregate makes. `read` and `where` take a record."""

    name: str
    aggregate: str
    accumulator: State
    value: Any
    """The field of the record, or the function of it, that `read` reads."""
    read: Callable[[Any], Any]
    where: Callable[[Any], object] | None


AggregatedField = StoredField[Accumulator]
MultisetField = StoredField[Multiset]

Additions = list[
    tuple[Callable[[Any], object] | None, list[tuple[Callable[[Any], Any], list[tuple[str, Accumulator]]]]]
]
_kind_of = attrgetter("kind")
_FEWEST_TOGETHER = 4
"""Number of records from which adding them field by field takes less time than one by one (Nexmark's q16: 12 % less CPU)."""


class _Rows(Struct):
    """Stored part of some records of a key: their number, and the accumulators of all aggregates."""

    rows: int


class _DividedRows(_Rows):
    """Part that may be divided. `moved` counts the moves of its values, `removed` the records that were taken back, both behind the aggregates."""

    if TYPE_CHECKING:
        removed: int

    @property
    def changes(self) -> int:
        """Return the number of records that were added, or taken back."""
        return self.rows + 2 * self.removed


class ResultRecord(WindowResult):
    """Makes results of records. `takes` is the type of the records, `gives` the type of the result; `key` is the key of the records.

    With `windowed`, results may have the fields `window_start` and `window_end`. With `retracting`, records may be taken back.
    With `by_entry`, `multisets` has the fields whose values are stored one by one, which `add` leaves to its caller.
    With `in_pieces`, large parts are divided.

    Raises `TypeError` for a field that nothing defines, or that has another type than its definition gives;
    `ValueError` for a field that the records lack.
    """

    def __init__(
        self,
        takes: type[Struct],
        gives: type[Struct],
        key: KeyBy,
        *,
        retracting: bool,
        windowed: bool = True,
        by_entry: bool = False,
        in_pieces: bool = False,
    ) -> None:
        """Read the annotations of `gives`."""
        self._retracting = retracting
        self._windowed = windowed
        self._by_entry = by_entry
        self.takes, self.gives = takes, gives
        self.columns = {}
        self._stored: list[StoredField[Any]] = []
        self.makers: list[tuple[str, Callable[[Any, int, int], Any]]] = []
        """Fields without an aggregate, and functions of key, start and end (ms) that return their values."""
        for field in msgspec.structs.fields(gives):
            metadata = get_args(field.type)[1:] if get_origin(field.type) is Annotated else ()
            aggregates_of_field = [mark for mark in metadata if isinstance(mark, Aggregate | AggregateFunction)]
            if len(aggregates_of_field) > 1:
                msg = f"field '{field.name}' of {gives.__name__} has {len(aggregates_of_field)} aggregates: make a field for each"
                raise TypeError(msg)
            if aggregates_of_field:
                self._stored.append(self._aggregated(field.name, annotated_type(field.type), aggregates_of_field[0]))
            else:
                self.makers.append((field.name, self._maker(field.name, field.type, key)))
        self.multisets: list[MultisetField] = [
            field for field in self._stored if isinstance(field.accumulator, Multiset)
        ]
        self.fields: list[AggregatedField] = [
            field for field in self._stored if isinstance(field.accumulator, Accumulator)
        ]
        self._additions = grouped(self.fields)
        aggregates = msgspec.defstruct(
            f"{gives.__name__}Accumulators", [(field.name, field.accumulator.type) for field in self._stored]
        )
        self._aggregates = aggregates
        self._counted: list[StoredField[CountedAccumulator]] = [
            field for field in self._stored if isinstance(field.accumulator, CountedAccumulator)
        ]
        if in_pieces and self._counted:
            self.pieces = _Pieces(self.create, self._counted)
        self.counts_moves = in_pieces
        """Whether parts have the numbers of `_DividedRows`: also without values that move, which an earlier version of the result may have had."""
        fields: list[Any] = [("aggregates", aggregates)]
        if self.counts_moves:
            fields += [("moved", int, 0), ("removed", int, 0)]
        base = _DividedRows if self.counts_moves else _Rows
        self.slice: Any = msgspec.defstruct(
            f"{gives.__name__}Slice", fields, bases=(base,), omit_defaults=self.counts_moves
        )

    # -------------------------------------------------------------------------------------------------- annotations

    def _aggregated(
        self, name: str, wanted: ValueType, aggregate: Aggregate | AggregateFunction[Any, Any, Any]
    ) -> StoredField[Any]:
        if isinstance(aggregate, AggregateFunction):
            shown = f"{type(aggregate).__name__}()"
            self._check_type(name, wanted, result_of(aggregate), shown)
            every = read_by_user(type(aggregate).__name__, Kind.AGGREGATION, [self.takes])
            self.columns[name] = every | fields_read([TIME], Kind.SORT)
            return StoredField(name, shown, OwnAccumulator(aggregate), None, reader(None), None)
        shown = str(aggregate)
        self._check_type(name, wanted, aggregate.type_of(self.takes), shown)
        self.columns[name] = aggregate.column_reads(self.takes)
        return StoredField(
            name,
            shown,
            self._state_of(aggregate, wanted),
            aggregate.value,
            reader(aggregate.value),
            aggregate.where,
        )

    def _state_of(self, aggregate: Aggregate, wanted: ValueType) -> StoredAggregate:
        """Return the state of an aggregate, by entry where that is wanted and it can be."""
        by_entry = aggregate.multiset(self.takes, wanted, retracting=self._retracting) if self._by_entry else None
        if by_entry is not None:
            return by_entry
        accumulator_of = aggregate.retractable if self._retracting else aggregate.accumulator
        return accumulator_of(self.takes, wanted)

    def _check_type(self, name: str, wanted: ValueType, given: ValueType, shown: str) -> None:
        known = given if given.type is not None else replace(given, type=wanted.type)
        if not wanted.takes(known):
            msg = f"field '{name}' of {self.gives.__name__} is {wanted}, but {shown} gives {given}: correct the annotation"
            raise TypeError(msg)

    def _maker(self, name: str, annotation: Any, key: KeyBy) -> Callable[[Any, int, int], Any]:
        """Return a function of key, start and end (ms), which returns the value of a field without an aggregate."""
        wanted = annotated_type(annotation)
        if self._windowed and name in {WINDOW_START, WINDOW_END}:
            self._check_type(name, wanted, ValueType(int, may_be_none=False, unit="ms"), name)
            self.columns[name] = fields_read([TIME], Kind.TRANSFORMATION)
            return _start if name == WINDOW_START else _end
        if name in key.fields:
            given = value_type(self.takes, name)
            self._check_type(name, wanted, replace(given, may_be_none=False), f"key_by('{name}')")
            place = key.fields.index(name) if len(key.fields) > 1 else None
            self.columns[name] = fields_read([name], Kind.IDENTITY)
            return partial(_key_part, annotation, place)
        if name == KEY and (key.function is not None or len(key.fields) == 1):
            self.columns[name] = key.column_reads(
                self.takes, Kind.IDENTITY if key.function is None else Kind.TRANSFORMATION
            )
            return partial(_key_part, annotation, None)
        plain = [f"'{name_of_field}'" for name_of_field in key.fields] or [f"'{KEY}' for the key"]
        if self._windowed:
            plain += [f"'{WINDOW_START}'", f"'{WINDOW_END}'"]
        msg = (
            f"field '{name}' of {self.gives.__name__} does not say how it is made: annotate it with an aggregate, as in "
            f"Annotated[int, Count()]; fields without one are {', '.join(plain[:-1])}{' and ' if plain[1:] else ''}{plain[-1]}"
        )
        raise TypeError(msg)

    def key_of_results(self, fields: tuple[str, ...]) -> tuple[str, ...]:
        """Return the fields of a result that hold the key; after `key_by` with a function, `key` does. None if it has not all of them."""
        plain = {name for name, _ in self.makers}
        if fields and {*fields} <= plain:
            return fields
        return (KEY,) if KEY in plain else ()

    def has_bound(self, name: str) -> bool:
        """Return whether a field of the result holds this bound of the window."""
        return self._windowed and any(name == maker for maker, _ in self.makers)

    # ------------------------------------------------------------------------------------------------------ records

    def create(self) -> Any:
        """Return an empty part."""
        return self.slice(rows=0, aggregates=self._aggregates(*(field.accumulator.create() for field in self._stored)))

    def add(self, change: Change, part: Any) -> Any:
        """Return `part` with a change applied."""
        if change.sign < 0:
            return self._remove(change, part)
        part.rows += 1
        states, record = part.aggregates, change.record
        # Called for each record of each window: fields with the same `where`, and the same value, share its calls.
        for where, reads in self._additions:
            for read, fields in reads if where is None or where(record) else ():
                value = read(record)
                for name, accumulator in fields if value is not None else ():
                    setattr(states, name, accumulator.add(getattr(states, name), value, change))
        return part

    def may_hold(self, change: Change, part: Any) -> bool:
        """Return whether the part may have the record of a retraction: false without records, or where one aggregate can tell."""
        if part is None or part.rows <= 0:
            return False
        states = part.aggregates
        if change.pieces and part.moved:
            return self._may_hold_with_pieces(change, states)
        return all(
            accumulator.may_hold(getattr(states, name), value, change)
            for name, accumulator, value in self._read(change.record)
        )

    def _may_hold_with_pieces(self, change: Change, states: Any) -> bool:
        """Return whether a row with its pieces may have the record of a retraction."""
        of_parts = [states, *(piece.aggregates for piece in change.pieces)]
        return all(
            accumulator.may_hold(getattr(states, name), value, change)
            or (
                isinstance(accumulator, CountedAccumulator)
                and sum(accumulator.number(getattr(of_part, name), value) for of_part in of_parts) > 0
            )
            for name, accumulator, value in self._read(change.record)
        )

    def _remove(self, change: Change, part: Any) -> Any:
        """Return `part` without a record that it may hold. Without records, all aggregates are empty."""
        part.rows -= 1
        if part.rows <= 0:
            part.rows, part.aggregates = 0, self.create().aggregates
            if self.pieces is not None:
                part.moved = part.removed = 0
            return part
        if self.pieces is not None:
            part.removed += 1
        states = part.aggregates
        for name, accumulator, value in self._read(change.record):
            setattr(states, name, accumulator.remove(getattr(states, name), value, change))
        return part

    def _read(self, record: Any) -> Iterator[tuple[str, Accumulator, Any]]:
        """Yield the aggregates that take a value of the record, by name, and the value."""
        for where, reads in self._additions:
            for read, fields in reads if where is None or where(record) else ():
                value = read(record)
                for name, accumulator in fields if value is not None else ():
                    yield name, accumulator, value

    def add_together(self, changes: BundledChanges, part: Any) -> Any:
        """Return `part` with the changes applied, field by field where no field has to take one after the other."""
        records = changes.records
        added = None
        if len(records) >= _FEWEST_TOGETHER and not any(map(_kind_of, records)):
            # An error is raised again below, where the bundle's current record is the one that it belongs to.
            with contextlib.suppress(Exception):
                added = self._added_together(records, part.aggregates)
        if added is None:
            return super().add_together(changes, part)
        part.rows += len(records)
        for name, state in added:
            setattr(part.aggregates, name, state())
        changes.end()
        return part

    @property
    def takes_columns(self) -> bool:
        """Return whether no user code adds the records, which may change a state in place."""
        return not any(isinstance(field.accumulator, OwnAccumulator | Multiset) for field in self._stored)

    def _added_together(
        self, records: Sequence[BundledRecord], states: Any
    ) -> list[tuple[str, Callable[[], Any]]] | None:
        """Return what makes the states of all fields; None if some field has to take one record after the other."""
        added = []
        for where, reads in self._additions:
            chosen = records if where is None else [record for record in records if where(record.record)]
            for read, fields in reads:
                values = BundledValues(read, chosen)
                for name, accumulator in fields if values.all else ():
                    state = accumulator.together(getattr(states, name), values)
                    if state is None:
                        return None
                    added.append((name, state))
        return added

    def merge(self, one: Any, other: Any) -> Any:
        """Return `one` with the records of `other` merged in. `other` does not change; the records of `one` are earlier."""
        one.rows += other.rows
        if self.counts_moves:
            one.moved += other.moved
        mine, others = one.aggregates, other.aggregates
        # Without records, as in a piece, the other aggregates are empty.
        for field in self.fields if other.rows or self.pieces is None else self._counted:
            merged = field.accumulator.merge(getattr(mine, field.name), getattr(others, field.name))
            setattr(mine, field.name, merged)
        return one

    def result(self, part: Any, key: Any, start: int, end: int) -> Any:
        """Return the record of a key's window; None if it has no records."""
        if part is None or part.rows <= 0:
            return None
        values = {name: make(key, start, end) for name, make in self.makers}
        for field in self._stored:
            values[field.name] = field.accumulator.result(getattr(part.aggregates, field.name))
        return self.gives(**values)

    def emit(self, ctx: Context, before: Any, after: Any, *, at: int) -> None:
        """Emit the change of a result from `before` to `after`; None means no result. `at` is the event time of both (ms)."""
        emit_change(ctx, before, after, at=at)

    # -------------------------------------------------------------------------------------------------- retractions

    def retraction_refused_by(self) -> list[str]:
        """Return the aggregates that cannot remove a record again."""
        return [f"{field.name} = {field.aggregate}" for field in self._stored if not field.accumulator.can_remove]

    def described(self) -> dict[str, Any]:
        """Return the aggregates, for people."""
        return {"aggregates": [f"{field.name} = {field.aggregate}" for field in self._stored]}


MOST_IN_ROW = 256
"""Number of different values up to which they are in the row of their part: it is written with each change."""


class _Pieces(PartPieces):
    """Divides the parts of results."""

    def __init__(self, create: Callable[[], Any], counted: Sequence[StoredField[CountedAccumulator]]) -> None:
        """Take the function that returns an empty part, and the fields whose values move."""
        self._create = create
        self._fields = [(field.name, field.accumulator) for field in counted]

    def is_full(self, part: Any) -> bool:
        """Return whether a row has too many values."""
        states = part.aggregates
        for name, _ in self._fields:  # noqa: SIM110 - called for each record: `any` takes twice as long
            if len(getattr(states, name)) > MOST_IN_ROW:
                return True
        return False

    def piece_of(self, part: Any) -> Any:
        """Return a piece with the values of a row. It may share them with the row."""
        piece = self._create()
        for name, _ in self._fields:
            setattr(piece.aggregates, name, getattr(part.aggregates, name))
        return piece

    def rest_of(self, part: Any) -> Any:
        """Return a row without its values, after one more move. It is the given one, changed in place."""
        part.moved += 1
        for name, accumulator in self._fields:
            setattr(part.aggregates, name, accumulator.create())
        return part

    def whole_of(self, part: Any, pieces: Collection[Any]) -> Any:
        """Return a row with the values of its pieces, which are in the order of their values' arrival. None of them changes."""
        whole = copy(part)
        whole.aggregates = copy(part.aggregates)
        for name, accumulator in self._fields:
            first, *others = (getattr(piece.aggregates, name) for piece in (*pieces, part))
            merged = copy(first)
            for other in others:
                merged = accumulator.merge(merged, other)
            setattr(whole.aggregates, name, merged)
        return whole


def grouped(fields: Sequence[AggregatedField]) -> Additions:
    """Return the fields, by `where` and by what they read."""
    wheres = {id(field.where): field.where for field in fields}
    groups: dict[int, dict[Any, tuple[Callable[[Any], Any], list[tuple[str, Accumulator]]]]] = {}
    for field in fields:
        value = field.value if isinstance(field.value, str) else id(field.value)
        reads = groups.setdefault(id(field.where), {})
        reads.setdefault(value, (field.read, []))[1].append((field.name, field.accumulator))
    return [(wheres[where], [*reads.values()]) for where, reads in groups.items()]


def result_of(function: AggregateFunction[Any, Any, Any]) -> ValueType:
    """Return the type of a function's results, as its class names it."""
    for cls in type(function).__mro__:
        for base in getattr(cls, "__orig_bases__", ()):
            if get_origin(base) is AggregateFunction and not isinstance(get_args(base)[2], TypeVar):
                return annotated_type(get_args(base)[2])
    return ValueType(None, may_be_none=False)


def _start(key: Any, start: int, end: int) -> int:
    del key, end
    return start


def _end(key: Any, start: int, end: int) -> int:
    del key, start
    return end


def _key_part(annotation: Any, place: int | None, key: Any, start: int, end: int) -> Any:
    del start, end
    part = key if place is None else key[place]
    return part if type(part) is annotation else msgspec.convert(part, annotation)
