"""Multisets of all values of a key by entry: state of `CountDistinct`, and of `Min` and `Max` over retractions.

A few values are in the row of the key; the others are entries of a map. So a change reads and writes what it changes, however
many values there are.
"""

from __future__ import annotations

import abc
from bisect import bisect_left
from typing import Any, Final

import msgspec

from headrace.api.records import Struct
from headrace.api.states import MapState
from headrace.operators._accumulators import StoredAggregate, check_finite, distinct_text
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType

MOST_DISTINCT: Final = 256
"""Number of different values up to which they are in the row of their key: to write so many takes no longer than to write two entries."""
MOST_FIRST: Final = 64
"""Number of first values in the row of their key, which is written with each change."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """How often a value occurs; with the value itself, unless the text of the entry is enough."""

    number: int
    value: Any = None


Entries = MapState[str, Entry]
"""Entries of one multiset of the key whose code runs, by the texts of their values."""


class Values(Struct):
    """Part of a multiset in the row of its key. The class of a multiset adds its values; `others` is the number of entries."""

    others: int


class Multiset(StoredAggregate):
    """State of an aggregate that knows how often each value occurs. Equal values have the same text."""

    can_remove = True

    @abc.abstractmethod
    def text(self, value: Any) -> str:
        """Return the text of a value (never None). Raises `ValueError` for one that has none."""

    @abc.abstractmethod
    def holds(self, state: Any, text: str) -> bool | None:
        """Return whether the value of a text is there; None where its entry tells."""

    @abc.abstractmethod
    async def count(self, state: Any, text: str, value: Any, more: int, entries: Entries) -> None:
        """Add a value (1), or remove one that is there (-1). Before the first entry, it removes those of an expired row."""

    @staticmethod
    async def count_entry(state: Values, text: str, value: Any, more: int, entries: Entries) -> None:
        """Change the number of an entry."""
        stored = await entries.get(text)
        number = more + (0 if stored is None else stored.number)
        state.others += bool(number) - (stored is not None)
        await (entries.put(text, Entry(number, value)) if number else entries.remove(text))


class DistinctValues(Values):
    """Numbers of all values by their texts, while none is an entry."""

    values: dict[str, int]


class DistinctMultiset(Multiset):
    """Number of different values. Either all of them are entries, or none."""

    type = DistinctValues

    def create(self) -> DistinctValues:
        """Return an empty state."""
        return DistinctValues(0, {})

    def result(self, state: DistinctValues, /) -> int:
        """Return the number of different values."""
        return state.others or len(state.values)

    def text(self, value: Any) -> str:
        """Return the text of a value (never None). Raises `ValueError` for NaN and infinity."""
        return distinct_text(value)

    def holds(self, state: DistinctValues, text: str) -> bool | None:
        """Return whether the value of a text is there; None where its entry tells."""
        return None if state.others else text in state.values

    async def count(self, state: DistinctValues, text: str, value: Any, more: int, entries: Entries) -> None:
        """Add a value (1), or remove one that is there (-1)."""
        del value
        if state.others:
            await self.count_entry(state, text, None, more, entries)
            return
        values = state.values
        if number := values.get(text, 0) + more:
            values[text] = number
        else:
            del values[text]
        if len(values) > MOST_DISTINCT:
            await entries.clear()
            await entries.put_all({text: Entry(number) for text, number in values.items()})
            state.others, state.values = len(values), {}


class ExtremeValues(Values):
    """First values in order, each with its text and how often it occurs. All entries come behind them; there are none before the row is full."""

    first: list[Any]


class ExtremeMultiset(Multiset):
    """Smallest or largest value: texts have the order of the values, largest first if it `takes_larger`.

    The row has the first values. When all of them are removed, the first entries take their place: half a row of them, so that
    few removals have to look for the next value.
    """

    def __init__(self, name: str, value: ValueType, *, takes_larger: bool) -> None:
        """Take the type of the values. `name` is that of the aggregate, for errors. Raises `TypeError` for values without an order."""
        self._name = name
        self._value = value.type
        self._sort_text = sort_text(name, value, descending=takes_larger)
        # Texts of other values, or in another order, are in another field: a change of the aggregate refuses the stored state.
        of_type = "_".join([value.type.__name__, *map(str, value.digits or ())])
        self.type: Any = msgspec.defstruct(
            f"{'Largest' if takes_larger else 'Smallest'}Values",
            [("first", list[tuple[str, value.type, int]])],  # type: ignore[name-defined]  # known when it is called
            bases=(ExtremeValues,),
            rename={"first": f"{'largest' if takes_larger else 'smallest'}_{of_type}"},
        )

    def create(self) -> Any:
        """Return an empty state."""
        return self.type(0, [])

    def result(self, state: ExtremeValues, /) -> Any:
        """Return the first value; None without values."""
        return state.first[0][1] if state.first else None

    def text(self, value: Any) -> str:
        """Return the text of a value (never None). Raises `ValueError` for one that has none, such as NaN."""
        if isinstance(value, float):
            check_finite(self._name, value)
        return self._sort_text(value)

    def holds(self, state: ExtremeValues, text: str) -> bool | None:
        """Return whether the value of a text is there; None where its entry tells."""
        place = bisect_left(state.first, (text,))
        if place < len(state.first):
            return bool(state.first[place][0] == text)
        return None if state.others else False

    async def count(self, state: ExtremeValues, text: str, value: Any, more: int, entries: Entries) -> None:
        """Add a value (1), or remove one that is there (-1)."""
        if isinstance(value, float):
            value += 0.0  # -0.0 and 0.0 are equal
        first = state.first
        place = bisect_left(first, (text,))
        if place == len(first) and state.others:
            await self.count_entry(state, text, value, more, entries)
            return
        is_known = place < len(first) and first[place][0] == text
        number = more + (first[place][2] if is_known else 0)
        first[place : place + is_known] = [(text, value, number)] if number else []
        if len(first) > MOST_FIRST:
            await self._move_last(state, entries)
        elif not first and state.others:
            await self._fill(state, entries)

    @staticmethod
    async def _move_last(state: ExtremeValues, entries: Entries) -> None:
        """Make entries of the last half of the row."""
        last = state.first[MOST_FIRST // 2 :]
        del state.first[MOST_FIRST // 2 :]
        if not state.others:
            await entries.clear()
        await entries.put_all({text: Entry(number, value) for text, value, number in last})
        state.others += len(last)

    async def _fill(self, state: ExtremeValues, entries: Entries) -> None:
        """Move the first entries to the empty row."""
        async for text, entry in entries.entries():
            state.first.append((text, msgspec.convert(entry.value, self._value), entry.number))
            if len(state.first) == MOST_FIRST // 2:
                break
        for text, _, _ in state.first:
            await entries.remove(text)
        state.others -= len(state.first)
