"""Rows of a task sorted by key, so that running aggregates of all keys are computed together.

Each key begins with a row for its stored group. So a running aggregate is a running sum, or a running maximum, and the row
before a record has the result before it:

    place       0        1    2    3        4    5
    row         stored a a1   a2   stored b b1   b2
    number      5        1    1    0        1    1        what Count adds
    running     5        6    7    0        1    2        the sum so far, less the sum up to the key's first row
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LARGEST_SUM: Final = 1 << 62
"""Sums below it cannot leave 64 bits on their way."""


class NotInColumnsError(Exception):
    """These records have to be processed one by one."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Rows sorted by key: those of stored groups, and those of records."""

    order: Numbers
    """For each place, the number of the row: stored groups come first, one for each key, then the records."""
    segments: Numbers
    """For each place, the number of the key."""
    starts: Numbers
    """For each key, the place of its stored group."""

    @classmethod
    def of(cls, key_numbers: Numbers, keys: int) -> Layout:
        """Return the layout of records with these keys."""
        rows = np.concatenate([np.arange(keys), key_numbers])
        order = np.argsort(rows, kind="stable")
        segments = rows[order]
        return cls(order, segments, np.searchsorted(segments, np.arange(keys)))

    @property
    def ends(self) -> Numbers:
        """Return the place of each key's last row."""
        return np.append(self.starts[1:], len(self.order)) - 1

    @property
    def is_stored(self) -> Flags:
        """Return whether a place has a stored group."""
        return self.order < len(self.starts)

    def placed(self, stored: Sequence[Any], records: pa.Array) -> pa.Array:
        """Return the values of stored groups and of records, by place."""
        return pa.concat_arrays([pa.array(stored, records.type), records]).take(pa.array(self.order))

    def running_sum(self, numbers: Numbers) -> Numbers:
        """Return the sum of each key's numbers up to each place."""
        sums = np.cumsum(numbers)
        return sums - (sums[self.starts] - numbers[self.starts])[self.segments]

    def running_best(self, scores: Numbers, valid: Flags, *, takes_equal: bool) -> Numbers:
        """Return the place of each key's best row up to each place: the highest score, of equal ones the first or the last.

        It is the key's first row while no row is `valid`, and that row holds no value then. Scores are above 0.
        """
        largest = int(scores.max(initial=0)) + 1
        if largest * (len(self.starts) + 1) > LARGEST_SUM:
            scores = np.unique(scores, return_inverse=True)[1].astype(np.int64) + 1
            largest = len(scores) + 2
        scores = self.segments * largest + np.where(valid, scores, 0)
        before = np.concatenate([[-1], np.maximum.accumulate(scores)[:-1]])
        is_better = (scores >= before if takes_equal else scores > before) & valid
        is_better[self.starts] = True
        return np.maximum.accumulate(np.where(is_better, np.arange(len(scores)), 0))
