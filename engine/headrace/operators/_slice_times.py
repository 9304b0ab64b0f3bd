"""Windows that consist of slices, and their times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final, Protocol

_MOST: Final = 100_000
"""Number of times that are remembered of each kind: those of 10,000 windows of ten slices, but of ten windows of 10,000."""


class Sliced(Protocol):
    """Windows that consist of slices. Times are ms; windows and slices are half open.

    A slice is known by a number that its timestamps share: its start, or a label. Numbers follow the order of time.
    """

    @property
    def name(self) -> str:
        """Return the name of these windows' state: other windows never read it."""
        ...

    def slice_of(self, at: int) -> int:
        """Return the slice that contains a timestamp."""
        ...

    def slicer(self) -> Callable[[int], int]:
        """Return `slice_of` as a function that takes less time."""
        ...

    def slices_at(self, times: Any, /) -> Any:
        """Return the slices that contain timestamps, an array of NumPy."""
        ...

    def slices_of(self, end: int) -> Sequence[int]:
        """Return the slices of the window that ends at `end`, in order of time."""
        ...

    def ends_of(self, slice_: int, /) -> list[int]:
        """Return the ends of the windows that contain a slice, the earliest first."""
        ...

    def start_of(self, end: int) -> int:
        """Return the start of the window that ends at `end`."""
        ...


def last_slices(slices: Sequence[int], end: int, ends_of: Callable[[int], Sequence[int]]) -> Sequence[int]:
    """Return those slices of the window that ends at `end` that are in no later one; `ends_of` is that of the windows.

    A slice of one window is always its last: also where rules of a time zone have moved its end since it was stored.
    """
    if len(slices) == 1 and len(ends_of(slices[0])) == 1:
        return slices
    return [slice_ for slice_ in slices if ends_of(slice_)[-1] == end]


class SliceTimes:
    """Times of windows and their slices, computed once: they are the same for all keys, and computing them costs as much as a read.

    Slices have names: their numbers as texts, which are the namespaces of their state.
    """

    def __init__(self, windows: Sliced) -> None:
        """Take the windows."""
        self._windows = windows
        self.slice_of, self.slices_at = windows.slicer(), windows.slices_at
        ends = windows.ends_of(self.slice_of(0))
        slices = len(windows.slices_of(ends[-1]))
        remembered = lru_cache(maxsize=max(_MOST // max(slices, len(ends)), 1))
        self.ends_of = remembered(windows.ends_of)
        self.start_of = remembered(windows.start_of)
        self.names_of = remembered(self._names_of)
        self.last_names_of = remembered(self._last_names_of)

    def _names_of(self, end: int) -> tuple[str, ...]:
        """Return the names of the slices of the window that ends at `end`, in order of time."""
        return tuple(map(str, self._windows.slices_of(end)))

    def _last_names_of(self, end: int) -> tuple[str, ...]:
        """Return the names of the slices that are in no later window than the one that ends at `end`."""
        return tuple(map(str, last_slices(self._windows.slices_of(end), end, self.ends_of)))
