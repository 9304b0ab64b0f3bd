"""Key groups: the units in which keys are assigned to tasks (only `headrace rescale` changes their number)."""

from __future__ import annotations

from collections.abc import Collection
from itertools import repeat
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

_SEED = 42  # Spark's seed for xxhash64, so `pmod(xxhash64(key), n)` in SQL gives the same group.
_SIGN = 1 << 63


def key_group(key_json: bytes, max_parallelism: int) -> int:
    """Return the key group of a key: `pmod(xxhash64(key), max_parallelism)` of its JSON text."""
    digest = xxhash.xxh64_intdigest(key_json, _SEED)
    signed = digest - (1 << 64) if digest & _SIGN else digest
    return signed % max_parallelism


def key_groups_of(keys: Collection[bytes], max_parallelism: int) -> npt.NDArray[np.int64]:
    """Return the key group of each key, as `key_group` does, in a third of the time."""
    digests = np.fromiter(map(xxhash.xxh64_intdigest, keys, repeat(_SEED)), np.uint64, len(keys))
    return digests.view(np.int64) % max_parallelism


class KeyGroupRange(NamedTuple):
    """Key groups `first` to `last`, both included."""

    first: int
    last: int

    @classmethod
    def all_of(cls, max_parallelism: int) -> KeyGroupRange:
        """Return all key groups of a job."""
        return cls(0, max_parallelism - 1)

    def __str__(self) -> str:
        """Return the range as it stands in paths and checkpoints: `0-63`."""
        return f"{self.first}-{self.last}"

    def __contains__(self, group: object) -> bool:
        """Return whether a key group is in the range."""
        return isinstance(group, int) and self.first <= group <= self.last


def task_of(group: int, max_parallelism: int, parallelism: int) -> int:
    """Return the number of the task that owns a key group."""
    return group * parallelism // max_parallelism


def key_group_range(task: int, max_parallelism: int, parallelism: int) -> KeyGroupRange:
    """Return the key groups that `task` owns: exactly those for which `task_of` returns `task`."""
    first = -(-task * max_parallelism // parallelism)
    last = -(-(task + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(first, last)
