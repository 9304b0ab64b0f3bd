"""The last changes of keys with one row at most. What earlier ones do is undone by them, so no records are made of those.

Where the primary key includes the upsert key, a key has a row or none: an addition sets it, whatever came before, and a retraction
removes it. Only a retraction of no row is reported, too: it is the first change of its key, or follows another retraction.

    a key's changes     +a  -a  +b  -b  +c          -a  +b  -b  +c  -c          +a  -a  -a  +b
    those needed                        +c          -a          +c  -c          +a  -a  -a  +b
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from headrace.api import RowKind

Mask = npt.NDArray[np.bool_]

_RETRACTIONS = [int(kind) for kind in RowKind if kind.is_retraction]


@dataclass(frozen=True, slots=True)
class ChangedKeys:
    """Changes in arrival order, without their rows: `numbers` are places in `keys` (JSON), `kinds` are row kinds."""

    keys: Sequence[bytes]
    numbers: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.int32]

    def last_of_one_row(self) -> Mask:
        """Return which changes have an effect, where a key has one row at most."""
        order = np.argsort(self.numbers, kind="stable")
        key = self.numbers[order]
        retracts = np.isin(self.kinds[order], _RETRACTIONS)
        follows = np.zeros(len(key), bool)
        follows[1:] = key[1:] == key[:-1]
        last = np.ones(len(key), bool)
        last[:-1] = ~follows[1:]
        needed = last | (retracts & ~follows)
        needed[:-1] |= follows[1:] & last[1:] & retracts[1:]  # what the last retraction retracts
        twice = np.zeros(len(self.keys), bool)
        twice[key[1:][follows[1:] & retracts[1:] & retracts[:-1]]] = True
        return _in_place(needed | twice[key], order)

    def last_of_keys(self) -> Mask:
        """Return which change is the last one of its key."""
        count = len(self.numbers)
        last = np.empty(len(self.keys), np.int64)
        last[self.numbers] = np.arange(count)  # numpy assigns in order: the last place of a key stays
        needed = np.zeros(count, bool)
        needed[last] = True
        return needed


def _in_place(values: Mask, order: npt.NDArray[np.int64]) -> Mask:
    placed = np.empty_like(values)
    placed[order] = values
    return placed
