"""Frames of `Stream.over`: which rows a row's aggregates see. Rows are those of one key, in order."""

from __future__ import annotations

import abc
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, repeat
from operator import attrgetter
from typing import Any

from headrace.operators._event_time import shown_length
from headrace.operators._over_record import OverRecord, Row

time_of = attrgetter("at")
place_of = attrgetter("at", "order")


class Frame(abc.ABC):
    """The rows that an aggregate of a row sees: its own, and rows before it."""

    context = 0
    """How many rows before a row its frame has, whatever their times."""
    reach = 0
    """How long before a row its frame begins (ms)."""
    is_unbounded = False
    """True: the frame begins with the first row of the key."""

    @abc.abstractmethod
    def parts(self, record: OverRecord, rows: Sequence[Row], first: int, before: Any, settled: int) -> Iterator[Any]:
        """Yield the accumulated frame of each row from place `first` on, where a new event time begins.

        An unbounded frame adds to `before`, which has the first `settled` rows and all before them. A yielded frame is
        read before the next one is asked for.
        """

    @abc.abstractmethod
    def __str__(self) -> str:
        """Return the frame as SQL writes it."""


@dataclass(frozen=True)
class Unbounded(Frame):
    """All rows up to the current one and its peers: those of equal event time and equal `order_by`."""

    is_unbounded = True

    def parts(self, record: OverRecord, rows: Sequence[Row], first: int, before: Any, settled: int) -> Iterator[Any]:
        """Yield the accumulated frame of each row."""
        part = record.add_rows(before, rows[settled:first])
        for _, group in groupby(rows[first:], place_of):
            peers = list(group)
            part = record.add_rows(part, peers)
            yield from repeat(part, len(peers))

    def __str__(self) -> str:
        """Return the frame as SQL writes it."""
        return "range between unbounded preceding and current row"


@dataclass(frozen=True)
class LastRows(Frame):
    """The current row and the rows before it, `number` in all."""

    number: int

    @property
    def context(self) -> int:  # type: ignore[override]  # a constant of the others
        """Return how many rows before a row its frame has."""
        return self.number - 1

    def parts(self, record: OverRecord, rows: Sequence[Row], first: int, before: Any, settled: int) -> Iterator[Any]:
        """Yield the accumulated frame of each row."""
        del before, settled
        for end in range(first + 1, len(rows) + 1):
            yield record.add_rows(record.create(), rows[max(0, end - self.number) : end])

    def __str__(self) -> str:
        """Return the frame as SQL writes it."""
        return f"rows between {self.number - 1} preceding and current row"


@dataclass(frozen=True)
class Within(Frame):
    """The rows whose event time lies at most `reach` before that of the current one (ms), peers included."""

    reach: int

    def parts(self, record: OverRecord, rows: Sequence[Row], first: int, before: Any, settled: int) -> Iterator[Any]:
        """Yield the accumulated frame of each row."""
        del before, settled
        end = first
        for at, group in groupby(rows[first:], time_of):
            peers = len(list(group))
            end += peers
            begin = bisect_left(rows, at - self.reach, key=time_of)
            yield from repeat(record.add_rows(record.create(), rows[begin:end]), peers)

    def __str__(self) -> str:
        """Return the frame as SQL writes it."""
        return f"range between {shown_length(self.reach)} preceding and current row"
