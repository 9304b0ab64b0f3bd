"""Columns that a column comes from, operator by operator: what each one reads of its inputs (OpenLineage: `columnLineage`).

A column is read *directly* where its value is copied, computed or aggregated, and *indirectly* where it decides on rows: by a
filter, a key, an order or a window. Functions of users are opaque: unless `reads=` says otherwise, they read every column.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

import msgspec


class Kind(enum.Enum):
    """How a column is read: the subtypes of OpenLineage's transformations."""

    IDENTITY = "identity"
    """Its value is copied."""

    TRANSFORMATION = "transformation"
    """Its value is computed from it."""

    AGGREGATION = "aggregation"
    """Its value is computed from those of several rows."""

    JOIN = "join"
    """It decides which rows meet."""

    GROUP_BY = "group by"
    """It is the key of the rows."""

    FILTER = "filter"
    """It decides whether there is a row."""

    SORT = "sort"
    """It orders the rows."""

    WINDOW = "window"
    """It decides in which window a row is."""

    CONDITIONAL = "conditional"
    """It decides which value is taken."""

    @property
    def is_direct(self) -> bool:
        """Return whether the value itself is taken."""
        return self in _DIRECT

    def after(self, before: Kind) -> Kind:
        """Return the kind of two direct steps together: that of the one which changes more."""
        return max(self, before, key=_DIRECT.index)


_DIRECT: Final = (Kind.IDENTITY, Kind.TRANSFORMATION, Kind.AGGREGATION)

TIME: Final = ""
"""Stands among the fields of a record for its event time, and its place in the order of arrival. No field has this name."""


class Read(NamedTuple):
    """Field of an input that is read. `by` names the function of a user that reads it: surely only where that is declared."""

    field: str
    kind: Kind
    input: int = 0
    by: str = ""
    is_sure: bool = True


Reads = frozenset[Read]


class ColumnReads(NamedTuple):
    """Fields that an operator reads: for each field of its results, and, in `rows`, to decide which rows there are.

    Without `TIME` among the columns, the time of a result depends on all that is read.
    """

    columns: Mapping[str, Reads]
    rows: Reads = frozenset()

    def time(self, inputs: int) -> Reads:
        """Return what the times of results read where nothing else is known: all that their columns do, and the times of the inputs."""
        times = [fields_read([TIME], Kind.IDENTITY, number=number) for number in range(inputs)]
        others = {reader._replace(kind=Kind.CONDITIONAL) for columns in self.columns.values() for reader in columns}
        return frozenset(others).union(*times)

    def of_changes(self) -> ColumnReads:
        """Return what changes read that are emitted only where a row differs from the one before: their times depend on all columns."""
        return self._replace(columns={name: reads for name, reads in self.columns.items() if name != TIME})


@runtime_checkable
class Readable(Protocol):
    """A keyed function that tells what it reads."""

    def column_reads(self) -> ColumnReads:
        """Return what the function reads of its inputs, apart from the keys of these."""
        ...


@dataclass(frozen=True, slots=True)
class DeclaredReads:
    """Declaration of a user by `reads=`: `fields` of the inputs, for the `columns` of the result that have none of their own.

    `fields` is None where these may read every field.
    """

    fields: tuple[str, ...] | None
    columns: tuple[tuple[str, tuple[str, ...]], ...] = ()
    deciding: tuple[str, ...] | None = None
    """Fields that decide whether there is a row; None: all that may be read."""

    @property
    def rows(self) -> tuple[str, ...] | None:
        """Return the fields that decide whether there is a row. None: every field."""
        if self.deciding is not None or self.fields is None:
            return self.deciding
        return (*self.fields, *(name for _, names in self.columns for name in names))


ROWS: Final = "*"
"""Stands in a declaration for the fields that decide whether there is a row."""

Declared = Iterable[str] | Mapping[str, Iterable[str]]
"""Fields that a function reads; or fields of its result, each with those that it comes from, and `"*"` with those that decide on rows."""


def declared_reads(
    taker: str, reads: Declared | None, takes: Sequence[type[msgspec.Struct]], gives: type[msgspec.Struct] | None = None
) -> DeclaredReads | None:
    """Return what `reads=` of a function declares; None without. `gives` is the type of its results, None if it has no columns.

    Raises `TypeError` for another form, `ValueError` for a field that no input has, and one that the result lacks.
    """
    if reads is None:
        return None
    if not isinstance(reads, Mapping):
        return DeclaredReads(_known(taker, reads, takes))
    if gives is None:
        msg = f"{taker}: reads takes names of fields, as in reads=('amount',), not a mapping: nothing of it is a column"
        raise TypeError(msg)
    unknown = [name for name in reads if name not in {ROWS, *gives.__struct_fields__}]
    if unknown:
        msg = f"{taker}: reads has {unknown[0]!r:.60}, and {gives.__name__} has no such field; it has {', '.join(gives.__struct_fields__)}"
        raise ValueError(msg)
    columns = {name: _known(taker, fields, takes) for name, fields in reads.items()}
    deciding = columns.pop(ROWS, None)
    return DeclaredReads(() if {*columns} == {*gives.__struct_fields__} else None, tuple(columns.items()), deciding)


def _known(taker: str, fields: object, takes: Sequence[type[msgspec.Struct]]) -> tuple[str, ...]:
    """Return names of fields. Raises `TypeError` for anything else, `ValueError` for a field that no input has."""
    if isinstance(fields, str) or not isinstance(fields, Iterable):
        msg = f"{taker}: reads takes several names, as in reads=('amount',), not {fields!r:.60}"
        raise TypeError(msg)
    names = tuple(fields)
    own = {name for record in takes for name in record.__struct_fields__}
    for name in names:
        if name not in own:
            records = " and ".join(record.__name__ for record in takes)
            known = ", ".join(dict.fromkeys(field for record in takes for field in record.__struct_fields__))
            msg = f"{taker}: reads has {name!r:.60}, and {records} has no such field; it has {known}"
            raise ValueError(msg)
    return names


def fields_read(fields: Iterable[str], kind: Kind, *, number: int = 0, by: str = "") -> Reads:
    """Return fields of the input `number`, read in one way."""
    return frozenset(Read(field, kind, number, by) for field in fields)


def copied(fields: Iterable[str], *, number: int = 0) -> dict[str, Reads]:
    """Return fields of a result that have the values of the input's fields of the same names."""
    return {field: fields_read([field], Kind.IDENTITY, number=number) for field in fields}


def read_by_user(
    by: str, kind: Kind, takes: Sequence[type[msgspec.Struct]], names: Iterable[str] | None = None
) -> Reads:
    """Return what a function of a user reads: the fields `names` of all inputs that have them; None: every field of them."""
    wanted = None if names is None else {*names}
    return frozenset(
        Read(field, kind, number, by, is_sure=names is not None)
        for number, record in enumerate(takes)
        for field in record.__struct_fields__
        if wanted is None or field in wanted
    )


def read_of_value(value: str | Callable[..., Any] | None, kind: Kind, takes: type[msgspec.Struct]) -> Reads:
    """Return what a value reads: a field, a function of the record, or None for the whole record."""
    if isinstance(value, str):
        return fields_read([value], kind)
    if value is None:
        return fields_read(takes.__struct_fields__, kind)
    return read_by_user(getattr(value, "__name__", type(value).__name__), kind, [takes])


def results_of_user(
    by: str,
    takes: Sequence[type[msgspec.Struct]],
    gives: type[msgspec.Struct],
    declared: DeclaredReads | None = None,
    keeps: Iterable[str] = (),
) -> dict[str, Reads]:
    """Return what the columns of a user's results read. `keeps` are fields that have the values of the first input."""
    others = read_by_user(by, Kind.TRANSFORMATION, takes, None if declared is None else declared.fields)
    columns = dict.fromkeys(gives.__struct_fields__, others)
    for name, fields in () if declared is None else declared.columns:
        columns[name] = read_by_user(by, Kind.TRANSFORMATION, takes, fields)
    return columns | copied(keeps)


def rows_of_user(by: str, takes: Sequence[type[msgspec.Struct]], declared: DeclaredReads | None = None) -> Reads:
    """Return what a function of a user reads to decide which rows there are."""
    return read_by_user(by, Kind.FILTER, takes, None if declared is None else declared.rows)
