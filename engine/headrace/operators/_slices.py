"""Slices: parts that windows share, so that a record is added to one accumulator and not to one for each window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


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
