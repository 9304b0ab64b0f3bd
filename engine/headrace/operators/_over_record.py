"""Results of `Stream.over`: records whose annotations define each field, one for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

import msgspec

from headrace.api.column_reads import Kind, fields_read
from headrace.api.graph import KeyBy
from headrace.api.records import Struct
from headrace.api.states import AggregateFunction
from headrace.operators._accumulators import Change
from headrace.operators._aggregates import Aggregate
from headrace.operators._result_record import KEY, ResultRecord
from headrace.operators._row_functions import Lag, Lead, RowFunction, RowNumber
from headrace.operators._value_types import annotated_type, reader, value_type


class Row(Struct, frozen=True, omit_defaults=True):
    """A row of a key: its event time (ms), its place among rows of this time as a text that sorts, and its record.

    `result` is its result, if a later row may change it. `emitted` tells that a result of the row was emitted.
    """

    at: int
    order: str
    record: Any
    result: Any = None
    emitted: bool = False


@dataclass(frozen=True, slots=True)
class ShiftedField:
    """Field of the result that another row makes, `offset` places away. `read` takes that row's record."""

    name: str
    read: Callable[[Any], Any]
    offset: int
    default: Any


class OverRecord(ResultRecord):
    """Makes the result of a row: of its own record, the records of its frame, and its place.

    Raises `TypeError` for a field that nothing defines, or that has another type than its definition gives;
    `ValueError` for a field that the records lack.
    """

    def __init__(self, takes: type[Struct], gives: type[Struct], key: KeyBy) -> None:
        """Read the annotations of `gives`."""
        self.copied: list[str] = []
        self.numbers: list[str] = []
        self.lags: list[ShiftedField] = []
        self.leads: list[ShiftedField] = []
        self.functions: list[str] = []
        """Fields of row functions, with the functions, for people."""
        for field in msgspec.structs.fields(gives):
            marks = [mark for mark in _metadata(field.type) if isinstance(mark, _MARKS)]
            if len(marks) > 1:
                msg = f"field '{field.name}' of {gives.__name__} has {len(marks)} aggregates or functions: make a field for each"
                raise TypeError(msg)
        super().__init__(takes, gives, key, retracting=False, windowed=False)
        own = {*self.copied, *self.numbers, *(shifted.name for shifted in (*self.lags, *self.leads))}
        self.makers = [maker for maker in self.makers if maker[0] not in own]
        self._results = [(field.name, field.accumulator.result) for field in self.fields]

    def _maker(self, name: str, annotation: Any, key: KeyBy) -> Callable[[Any, int, int], Any]:
        """Define a field without an aggregate: of a row function, of the record, or the key."""
        wanted = annotated_type(annotation)
        function = next((mark for mark in _metadata(annotation) if isinstance(mark, RowFunction)), None)
        if function is not None:
            self._check_type(name, wanted, function.type_of(self.takes), str(function))
            self.columns[name] = function.column_reads(self.takes)
            self._take(name, function)
        elif name in self.takes.__struct_fields__:
            self._check_type(name, wanted, value_type(self.takes, name), f"field '{name}'")
            self.copied.append(name)
            self.columns[name] = fields_read([name], Kind.IDENTITY)
        elif name == KEY and (key.function is not None or len(key.fields) == 1):
            return super()._maker(name, annotation, key)
        else:
            msg = (
                f"field '{name}' of {self.gives.__name__} does not say how it is made: annotate it with an aggregate or a "
                f"function, as in Annotated[int, Count()]; fields without one are those of {self.takes.__name__}, and '{KEY}' for the key"
            )
            raise TypeError(msg)
        return _nothing

    def _take(self, name: str, function: RowFunction) -> None:
        self.functions.append(f"{name} = {function}")
        if isinstance(function, RowNumber):
            self.numbers.append(name)
        elif isinstance(function, Lag | Lead):
            shifted = ShiftedField(name, reader(function.value), function.offset, function.default)
            (self.lags if isinstance(function, Lag) else self.leads).append(shifted)

    @property
    def farthest_lag(self) -> int:
        """Return how many rows before a row its result needs, whatever the frame."""
        return max((lag.offset for lag in self.lags), default=0)

    @property
    def farthest_lead(self) -> int:
        """Return how many rows behind a row its result needs."""
        return max((lead.offset for lead in self.leads), default=0)

    # ---------------------------------------------------------------------------------------------------- results

    def add_rows(self, part: Any, rows: Sequence[Row]) -> Any:
        """Return `part` with rows added, in their order; nothing is added where no field is an aggregate."""
        for row in rows if self.fields else ():
            part = self.add(Change(row.record, row.at), part)
        return part

    def result_of(self, rows: Sequence[Row], place: int, *, number: int, part: Any, key: Any) -> Any:
        """Return the result of the row at a place, with the defaults of `Lead`; `number` is its number, `part` its frame."""
        # Called for each row: a loop over nothing costs a fifth of a generator over nothing.
        record = rows[place].record
        values = {name: getattr(record, name) for name in self.copied}
        for name, make in self.makers:
            values[name] = make(key, 0, 0)
        for name in self.numbers:
            values[name] = number
        for lag in self.lags:
            values[lag.name] = _value(lag, rows, place - lag.offset)
        for lead in self.leads:
            values[lead.name] = lead.default
        states = part.aggregates if self._results else None
        for name, result in self._results:
            values[name] = result(getattr(states, name))
        return self.gives(**values)

    def with_leads(self, result: Any, rows: Sequence[Row], place: int) -> Any:
        """Return the result of the row at a place with the values of the rows behind it, as far as there are such rows."""
        leads = {lead.name: _value(lead, rows, place + lead.offset) for lead in self.leads}
        return msgspec.structs.replace(result, **leads)

    def described(self) -> dict[str, Any]:
        """Return the aggregates and functions, for people."""
        aggregates = super().described() if self.fields else {}
        return {**aggregates, "functions": self.functions} if self.functions else aggregates


_MARKS = (Aggregate, AggregateFunction, RowFunction)


def _metadata(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation)[1:] if get_origin(annotation) is Annotated else ()


def _nothing(key: Any, start: int, end: int) -> None:
    """Stand for a field that `OverRecord` fills by itself."""
    del key, start, end


def _value(shifted: ShiftedField, rows: Sequence[Row], place: int) -> Any:
    return shifted.read(rows[place].record) if 0 <= place < len(rows) else shifted.default
