"""Multisets of all values of a key by entry: state of `CountDistinct`, and of `Min` and `Max` over retractions.

A few values are in the row of the key; the others are entries of a map. So a change reads and writes what it changes, however
many values there are.
"""

from __future__ import annotations

import abc
from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

import msgspec

from headrace.api.records import Struct
from headrace.api.states import MapState
from headrace.operators._accumulators import LARGEST, SMALLEST, StoredAggregate, check_finite
from headrace.operators._ranking import sort_text
from headrace.operators._value_types import ValueType

MOST_DISTINCT: Final = 256
"""Number of different values up to which they are in the row of their key: to write so many takes no longer than to write two entries."""
MOST_FIRST: Final = 64
"""Number of first values in the row of their key, which is written with each change."""

_value_of: Callable[[Any], Any] = itemgetter(0)


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
    """State of an aggregate that knows how often each value occurs. Equal values have equal items, and entries with the same text."""

    can_remove = True

    @abc.abstractmethod
    def item(self, value: Any) -> Any:
        """Return a value (never None) as a row has it. Raises `ValueError` for one that cannot be there, such as NaN."""

    @abc.abstractmethod
    def text(self, item: Any) -> str:
        """Return the text of an item's entry."""

    @abc.abstractmethod
    def entry(self, item: Any, number: int) -> Entry:
        """Return the entry of an item."""

    @abc.abstractmethod
    def holds(self, state: Any, item: Any) -> bool | None:
        """Return whether an item is there; None where its entry tells."""

    @abc.abstractmethod
    def count_in_row(self, state: Any, item: Any, more: int) -> bool:
        """Add an item to the row (1), or remove one that is there (-1); return False, and do nothing, if its entry counts it."""

    @abc.abstractmethod
    def is_out_of_bounds(self, state: Any) -> bool:
        """Return whether the row has too many items, or too few of those that are there."""

    @abc.abstractmethod
    async def balance(self, state: Any, entries: Entries) -> None:
        """Move items from a row that is out of bounds to entries, or back. Before the first entry, remove those of an expired row."""

    async def count_entry(self, state: Values, item: Any, more: int, entries: Entries) -> None:
        """Change the number of an entry."""
        text = self.text(item)
        stored = await entries.get(text)
        number = more + (0 if stored is None else stored.number)
        state.others += bool(number) - (stored is not None)
        await (entries.put(text, self.entry(item, number)) if number else entries.remove(text))


class DistinctValues(Values):
    """Numbers of all values by their texts, while none is an entry."""

    values: dict[str, int]


class DistinctMultiset(Multiset):
    """Number of different values. Either all of them are entries, or none."""

    type = DistinctValues

    def __init__(self, text: Callable[[Any], str]) -> None:
        """Take the function that makes the text of a value."""
        self._text = text

    def create(self) -> DistinctValues:
        """Return an empty state."""
        return DistinctValues(0, {})

    def result(self, state: DistinctValues, /) -> int:
        """Return the number of different values."""
        return state.others or len(state.values)

    def item(self, value: Any) -> str:
        """Return the text of a value (never None). Raises `ValueError` for NaN and infinity."""
        return self._text(value)

    def text(self, item: str) -> str:
        """Return the text of an item's entry."""
        return item

    def entry(self, item: str, number: int) -> Entry:
        """Return the entry of an item."""
        del item
        return Entry(number)

    def holds(self, state: DistinctValues, item: str) -> bool | None:
        """Return whether an item is there; None where its entry tells."""
        return None if state.others else item in state.values

    def count_in_row(self, state: DistinctValues, item: str, more: int) -> bool:
        """Add an item to the row (1), or remove one that is there (-1); return False, and do nothing, if its entry counts it."""
        if state.others:
            return False
        values = state.values
        if number := values.get(item, 0) + more:
            values[item] = number
        else:
            del values[item]
        return True

    def is_out_of_bounds(self, state: DistinctValues) -> bool:
        """Return whether the row has too many items."""
        return len(state.values) > MOST_DISTINCT

    async def balance(self, state: DistinctValues, entries: Entries) -> None:
        """Make entries of all items. It first removes those of an expired row."""
        await entries.clear()
        await entries.put_all({text: Entry(number) for text, number in state.values.items()})
        state.others, state.values = len(state.values), {}


class ExtremeValues(Values):
    """First values, sorted, each with how often it occurs. All entries come behind them; there are none before the row is full."""

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
        self._takes_larger = takes_larger
        self._sort_text = sort_text(name, value, descending=takes_larger)
        # Texts of other values, or in another order, are in another field: a change of the aggregate refuses the stored state.
        of_type = "_".join([value.type.__name__, *map(str, value.digits or ())])
        self.type: Any = msgspec.defstruct(
            f"{'Largest' if takes_larger else 'Smallest'}Values",
            [("first", list[tuple[value.type, int]])],  # type: ignore[name-defined]  # known when it is called
            bases=(ExtremeValues,),
            rename={"first": f"{'largest' if takes_larger else 'smallest'}_{of_type}"},
        )

    def create(self) -> Any:
        """Return an empty state."""
        return self.type(0, [])

    def result(self, state: ExtremeValues, /) -> Any:
        """Return the first value; None without values."""
        return state.first[-1 if self._takes_larger else 0][0] if state.first else None

    def item(self, value: Any) -> Any:
        """Return a value (never None). Raises `ValueError` for one that has no text, such as NaN."""
        if type(value) is int and self._value is int and SMALLEST <= value <= LARGEST:
            return value
        if isinstance(value, float):
            check_finite(self._name, value)
        self._sort_text(value)
        return float(value) + 0.0 if self._value is float else value  # -0.0 and 0.0 are equal

    def text(self, item: Any) -> str:
        """Return the text of an item's entry."""
        return self._sort_text(item)

    def entry(self, item: Any, number: int) -> Entry:
        """Return the entry of an item."""
        return Entry(number, item)

    def holds(self, state: ExtremeValues, item: Any) -> bool | None:
        """Return whether an item is there; None where its entry tells."""
        place, is_known = self._place(state, item)
        return None if state.others and not is_known and self._is_behind(state, place) else is_known

    def count_in_row(self, state: ExtremeValues, item: Any, more: int) -> bool:
        """Add an item to the row (1), or remove one that is there (-1); return False, and do nothing, if its entry counts it."""
        first = state.first
        place, is_known = self._place(state, item)
        if state.others and not is_known and self._is_behind(state, place):
            return False
        number = more + (first[place][1] if is_known else 0)
        first[place : place + is_known] = [(item, number)] if number else []
        return True

    @staticmethod
    def _place(state: ExtremeValues, item: Any) -> tuple[int, bool]:
        """Return the place of an item in the row, and whether it is there."""
        place = bisect_left(state.first, item, key=_value_of)
        return place, place < len(state.first) and bool(state.first[place][0] == item)

    def _is_behind(self, state: ExtremeValues, place: int) -> bool:
        """Return whether an item that is not in the row comes behind all of its values."""
        return place == (0 if self._takes_larger else len(state.first))

    def is_out_of_bounds(self, state: ExtremeValues) -> bool:
        """Return whether the row has too many values, or none of those that are there."""
        return len(state.first) > MOST_FIRST or (state.others > 0 and not state.first)

    async def balance(self, state: ExtremeValues, entries: Entries) -> None:
        """Make entries of the last half of a row, or fill an empty one. Before the first entry, remove those of an expired row."""
        await (self._move_last(state, entries) if state.first else self._fill(state, entries))

    async def _move_last(self, state: ExtremeValues, entries: Entries) -> None:
        """Make entries of the last half of the row."""
        if not state.others:
            await entries.clear()
        kept = MOST_FIRST // 2
        moved = slice(None, -kept) if self._takes_larger else slice(kept, None)
        last = state.first[moved]
        del state.first[moved]
        await entries.put_all({self.text(item): self.entry(item, number) for item, number in last})
        state.others += len(last)

    async def _fill(self, state: ExtremeValues, entries: Entries) -> None:
        """Move the first entries to the empty row."""
        texts = []
        async for text, entry in entries.entries():
            texts.append(text)
            state.first.append((msgspec.convert(entry.value, self._value), entry.number))
            if len(texts) == MOST_FIRST // 2:
                break
        for text in texts:
            await entries.remove(text)
        state.others -= len(texts)
        if self._takes_larger:
            state.first.reverse()
