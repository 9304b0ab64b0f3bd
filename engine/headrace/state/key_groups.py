"""Key groups: the unit in which keys are given to tasks (their number changes by `headrace rescale` alone)."""

from __future__ import annotations

from typing import NamedTuple

import xxhash

_SEED = 42  # Spark's seed for xxhash64, so `pmod(xxhash64(key), n)` in SQL gives the same group.
_SIGN = 1 << 63


def key_group(key_json: bytes, max_parallelism: int) -> int:
    """The key group of a key: `pmod(xxhash64(key), max_parallelism)` of its JSON text."""
    digest = xxhash.xxh64_intdigest(key_json, _SEED)
    signed = digest - (1 << 64) if digest & _SIGN else digest
    return signed % max_parallelism


class KeyGroupRange(NamedTuple):
    """Key groups `first` to `last`, both included."""

    first: int
    last: int

    def __str__(self) -> str:
        """`0-63`, as it is written in paths and checkpoints."""
        return f"{self.first}-{self.last}"

    def __contains__(self, group: object) -> bool:
        """Whether a key group belongs to the range."""
        return isinstance(group, int) and self.first <= group <= self.last


def task_of(group: int, max_parallelism: int, parallelism: int) -> int:
    """The task that owns a key group."""
    return group * parallelism // max_parallelism


def key_group_range(task: int, max_parallelism: int, parallelism: int) -> KeyGroupRange:
    """The key groups that `task` owns: just those for which `task_of` answers `task`."""
    first = -(-task * max_parallelism // parallelism)
    last = -(-(task + 1) * max_parallelism // parallelism) - 1
    return KeyGroupRange(first, last)
