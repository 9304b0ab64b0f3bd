"""Rows of one side of a regular join: a multiset, or one row for each unique key (Flink: `JoinRecordStateViews`)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, ClassVar, Final, Self, Union, get_args

import msgspec

from headrace.api.changelog import StreamChanges
from headrace.api.future import StateFuture
from headrace.api.graph import KeyBy
from headrace.api.options import JoinType
from headrace.api.records import Struct, canonical_encoder
from headrace.api.states import MapState, ValueState
from headrace.api.ttl import StateTtl
from headrace.api.types import check_key_field, key_types
from headrace.operators._value_types import are_equal, value_type

_encode = canonical_encoder("sorted")
_LONGEST_FIELDS: Final = 40
"""Most characters of the fields of a unique key in the name of a state."""
_WORD = re.compile(r"[a-z0-9]+(_[a-z0-9]+)*")


class CountedRow(Struct, frozen=True):
    """A record of a side with the number of its copies. The class of a join adds the `record`.

    `at` is its event time (ms). `copies` has the number of equal records for each number of matches on the other side. If
    a side appears only in pairs, all its copies count under 0.
    """

    at: int
    copies: dict[int, int]

    @classmethod
    def of(cls, record: Any, at: int, matches: int) -> Any:
        """Return the row of a first copy."""
        return cls(at=at, copies={matches: 1}, record=record)  # type: ignore[call-arg]  # the class of a join has it

    @property
    def total(self) -> int:
        """Return the number of copies."""
        return sum(self.copies.values())

    @property
    def matches(self) -> int:
        """Return the number of matches of the copy that is removed first.

        Copies have different numbers of matches only if a TTL removed partners of the earlier copies.
        """
        return min(self.copies)

    def number(self, matches: int) -> int:
        """Return how many copies have so many matches."""
        return self.copies.get(matches, 0)

    def matched(self, change: int) -> Self:
        """Return the row with `change` more matches of each copy."""
        copies: dict[int, int] = {}
        for matches, count in self.copies.items():
            place = max(matches + change, 0)
            copies[place] = copies.get(place, 0) + count
        return msgspec.structs.replace(self, copies=copies)

    def more(self, matches: int) -> Self:
        """Return the row with another copy."""
        return msgspec.structs.replace(self, copies={**self.copies, matches: self.number(matches) + 1})

    def fewer(self) -> Self | None:
        """Return the row without the copy that is removed first; None without any."""
        first = self.matches
        left = {matches: count for matches, count in self.copies.items() if matches != first}
        if self.copies[first] > 1:
            left[first] = self.copies[first] - 1
        return msgspec.structs.replace(self, copies=left) if left else None


class UniqueRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a unique key. The class of a join adds the `record`.

    `at` is its event time (ms), `matches` the number of matches on the other side: 0 if the side appears only in pairs.
    """

    at: int
    matches: int = 0

    total: ClassVar[int] = 1

    @classmethod
    def of(cls, record: Any, at: int, matches: int) -> Any:
        """Return the row of a record."""
        return cls(at=at, matches=matches, record=record)  # type: ignore[call-arg]  # the class of a join has it

    def number(self, matches: int) -> int:
        """Return whether the record has so many matches, as a number."""
        return int(self.matches == matches)

    def matched(self, change: int) -> Self:
        """Return the row with `change` more matches."""
        return msgspec.structs.replace(self, matches=max(self.matches + change, 0))

    def fewer(self) -> None:
        """Return None: there is no other copy."""


class SingleRow:
    """The one row of a key, read and written as a map with one entry."""

    def __init__(self, state: ValueState[Any]) -> None:
        """Take the state that holds the row."""
        self._state = state

    def get(self, _name: Any) -> StateFuture[Any]:
        """Read the row; None if there is none."""
        return self._state.value()

    def put(self, _name: Any, row: Any) -> StateFuture[None]:
        """Set the row."""
        return self._state.update(row)

    def remove(self, _name: Any) -> StateFuture[None]:
        """Remove the row."""
        return self._state.clear()

    async def values(self) -> AsyncIterator[Any]:
        """Yield the row, if there is one."""
        row = await self._state.value()
        if row is not None:
            yield row

    async def entries(self) -> AsyncIterator[tuple[str, Any]]:
        """Yield the row with a name, if there is one."""
        async for row in self.values():
            yield "", row


@dataclass(frozen=True, slots=True)
class RowForm:
    """How the rows of a side are stored: by the fields of a unique key, or as a multiset where there are none."""

    unique: tuple[str, ...] = ()
    is_single: bool = False
    """True: rows of one join key agree in these fields, so there is one row at most."""
    is_upsert: bool = False
    """True: updates come without their old rows, and of a deletion the unique key alone counts."""

    def __str__(self) -> str:
        """Return what is stored for a join key, for people."""
        if self.is_single:
            return "a row for each key"
        return f"a row for each key and {', '.join(self.unique) or 'different record'}"


MULTISET: Final = RowForm()


class Side:
    """One side of a join: its number, its name for people, and whether its unmatched records are in the result.

    `type` is the class in which its records are stored, `name_of` gives a record the name of its entry.
    """

    def __init__(
        self, number: int, record: type[Struct], form: RowForm, ttl: StateTtl | None, *, is_kept: bool
    ) -> None:
        """Take the type of the records, and the form and the TTL of their state."""
        self.number = number
        self.name = ("left", "right")[number]
        self.is_kept = is_kept
        self.ttl = ttl
        self.form = form
        self.is_unique = bool(form.unique)
        self.fields = record.__struct_fields__
        self.is_single = form.is_single
        base, prefix = (UniqueRow, "Unique") if form.unique else (CountedRow, "Joined")
        self.type: Any = msgspec.defstruct(
            f"{prefix}{record.__name__}", [("record", record)], bases=(base,), frozen=True
        )
        self.name_of: Callable[[Any], Any] = _digest
        if form.is_single:
            self.name_of = _no_name
        elif form.unique:
            self.name_of = attrgetter(*form.unique)
        self._record = record

    def state(self, name: str) -> Any:
        """Return the state of the side. Its name says the form: rows that were stored in another one are not read by this one."""
        unique = self.form.unique
        if self.form.is_single:
            return ValueState(f"{name}_single", self.type, ttl=self.ttl)
        if unique:
            return MapState(f"{name}_by_{_named(unique)}", _entry_type(self._record, unique), self.type, ttl=self.ttl)
        return MapState(name, str, self.type, ttl=self.ttl)


def sides_of(
    records: tuple[type[Struct], type[Struct]],
    forms: tuple[RowForm, RowForm],
    lifetimes: tuple[StateTtl | None, StateTtl | None],
    how: JoinType,
) -> tuple[Side, Side]:
    """Return the left and the right side of a join."""
    return (
        Side(0, records[0], forms[0], lifetimes[0], is_kept=how.keeps_left),
        Side(1, records[1], forms[1], lifetimes[1], is_kept=how.keeps_right),
    )


def row_form(record: type[Struct], key: KeyBy, changes: StreamChanges, *, takes_null_keys: bool) -> RowForm:
    """Return the form in which a join keeps the rows of a stream, by its key and its changes.

    Rows that are never removed stay a multiset. So do rows whose order is not kept: a later row would take the place of the earlier
    one, and the retraction of the earlier one would find another row.

    Raises `ValueError` for upserts that may move a row to another key, or whose key cannot name an entry.
    """
    mode = changes.mode
    if mode.is_upsert:
        return _form_of_upserts(record, key, mode.key, takes_null_keys=takes_null_keys)
    if mode.is_insert:
        return MULTISET
    known = [fields for fields in changes.unique if changes.keeps_order_of(fields)]
    forms = [_form(record, key, fields, takes_null_keys=takes_null_keys) for fields in known]
    return next((form for form in forms if form.is_single), next((form for form in forms if form.unique), MULTISET))


def _form_of_upserts(record: type[Struct], key: KeyBy, fields: tuple[str, ...], *, takes_null_keys: bool) -> RowForm:
    if not fields:
        return MULTISET  # of an unknown key: refused where the graph is checked
    named = ", ".join(fields)
    if not key.fields or not {*key.fields} <= {*fields}:
        msg = (
            f"its stream is upsert({named}), and the join key is {key}: an update of {named} may change the join key, and nothing would "
            f"take the old row away there. Join by fields of {named}, or call normalize() before key_by(), which makes whole updates"
        )
        raise ValueError(msg)
    form = _form(record, key, fields, takes_null_keys=takes_null_keys)
    if not form.unique:
        msg = (
            f"its stream is upsert({named}), and rows cannot be stored by {named}: that takes texts, whole numbers, truth values, times "
            "or decimals. Call normalize() before key_by()"
        )
        raise ValueError(msg)
    return replace(form, is_upsert=True)


def _form(record: type[Struct], key: KeyBy, fields: tuple[str, ...], *, takes_null_keys: bool) -> RowForm:
    """Return the form for a unique key: a multiset where its values cannot name entries."""
    # All records with a null key have the same key: its other parts do not tell their rows apart.
    may_be_null = takes_null_keys and any(value_type(record, name).may_be_none for name in key.fields)
    if {*fields} <= {*key.fields} and not may_be_null:
        return RowForm(fields, is_single=True)
    return RowForm(fields) if all(_names_entries(record, name) for name in fields) else MULTISET


def _names_entries(record: type[Struct], field: str) -> bool:
    """Return whether equal values of a field have one text: -0.0 and 0.0 have not."""
    try:
        check_key_field(record, field)
    except ValueError:
        return False
    held = value_type(record, field).type
    return float not in {held, *get_args(held)}


def _entry_type(record: type[Struct], fields: tuple[str, ...]) -> Any:
    """Return the type of the values, or of the tuples of values, that name entries."""
    parts = key_types(record, KeyBy(fields)) or ()
    held = [
        Union[part, None] if value_type(record, name).may_be_none else part  # noqa: UP007 - of types known at run time
        for name, part in zip(fields, parts, strict=True)
    ]
    return held[0] if len(held) == 1 else tuple[tuple(held)]  # type: ignore[misc]  # known when it is called


def _named(fields: tuple[str, ...]) -> str:
    """Return fields as a part of a state's name: different fields have different texts."""
    text = "__".join(fields)
    is_clear = len(text) <= _LONGEST_FIELDS and all(map(_WORD.fullmatch, fields))
    return text if is_clear else hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def is_same(left: Any, right: Any) -> bool:
    """Return whether two records are equal; a number that is NaN is equal to itself, and to null."""
    return are_equal(left, right) or _encode(left) == _encode(right)


def _no_name(_record: Any) -> str:
    return ""


def _digest(record: Struct) -> str:
    return hashlib.blake2b(_encode(record), digest_size=16).hexdigest()
