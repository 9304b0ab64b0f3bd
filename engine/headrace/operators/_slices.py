"""Slices: the parts that windows share, so that a record is added to one accumulator and not to one for each window."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class Sliced(Protocol):
    """Windows that are made of slices, each as long as all others. Times are milliseconds; windows and slices half open."""

    @property
    def name(self) -> str:
        """Return what the state of these windows is called: other windows never read it."""
        ...

    @property
    def slice_length(self) -> int:
        """Return the length of a slice."""
        ...

    def slice_of(self, at: int) -> int:
        """Return the start of the slice of a moment."""
        ...

    def ends_of(self, start: int) -> list[int]:
        """Return the ends of the windows that a slice is in, the earliest first."""
        ...

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends there."""
        ...


def slices_between(windows: Sliced, end: int) -> Iterable[int]:
    """Return the starts of the slices of the window that ends at `end`, in order of time."""
    return range(windows.start_of(end), end, windows.slice_length)
