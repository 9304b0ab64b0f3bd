"""Slices: parts that windows share, so that a record is added to one accumulator and not to one for each window."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final, Protocol

_MOST: Final = 100_000
"""Number of times that are remembered of each kind: those of 10,000 windows of ten slices, but of ten windows of 10,000."""


class Sliced(Protocol):
    """Windows that consist of slices of equal length. Times are ms; windows and slices are half open."""

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        ...

    @property
    def slice_length(self) -> int:
        """Return the length of a slice."""
        ...

    def slice_of(self, at: int) -> int:
        """Return the start of the slice that contains a moment."""
        ...

    def ends_of(self, start: int) -> list[int]:
        """Return the ends of the windows that contain a slice, the earliest first."""
        ...

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        ...


def slices_between(windows: Sliced, end: int) -> Iterable[int]:
    """Return the starts of the slices of the window that ends at `end`, in order of time."""
    return range(windows.start_of(end), end, windows.slice_length)


class SliceTimes:
    """Times of windows and their slices, computed once: they are the same for all keys, and computing them costs as much as a read.

    Slices have names: their starts as texts, which are the namespaces of their state.
    """

    def __init__(self, windows: Sliced) -> None:
        """Take the windows."""
        self._windows = windows
        self._length, self._first = windows.slice_length, windows.slice_of(0)
        ends = windows.ends_of(self._first)
        slices = (ends[-1] - windows.start_of(ends[-1])) // self._length
        remembered = lru_cache(maxsize=max(_MOST // max(slices, len(ends)), 1))
        self.ends_of = remembered(windows.ends_of)
        self.start_of = remembered(windows.start_of)
        self.names_of = remembered(self._names_of)
        self.last_names_of = remembered(self._last_names_of)

    def slice_of(self, at: int) -> int:
        """Return the start of the slice that contains a moment."""
        return at - (at - self._first) % self._length

    def _names_of(self, end: int) -> tuple[str, ...]:
        """Return the names of the slices of the window that ends at `end`, in order of time."""
        return tuple(map(str, slices_between(self._windows, end)))

    def _last_names_of(self, end: int) -> tuple[str, ...]:
        """Return the names of the slices that are in no later window than the one that ends at `end`."""
        return tuple(str(start) for start in slices_between(self._windows, end) if self.ends_of(start)[-1] == end)
