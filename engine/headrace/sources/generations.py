"""Generations of files: the order of a folder with `order: first_seen`.

A generation is all names that one listing showed first. It is taken in to its end before the next listing makes another one, so a file
whose name sorts before others that were taken in comes after them:

    first listing    part-00000-9f1c.parquet    place 0000000001/part-00000-9f1c.parquet
    a later one      part-00000-1b2c.parquet    place 0000000002/part-00000-1b2c.parquet

Places are text that sorts like (generation, name), so a position compares places as it compares names. Checkpoints record which names a
generation has. A recorded name keeps its generation, on branches and after a restore as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

_DIGITS: Final = 10


class Generation(msgspec.Struct, frozen=True, array_like=True):
    """Files of one generation, by the digests of their names."""

    number: int
    """1 for the first one."""
    names: tuple[str, ...]


Generations = Mapping[str, int]
"""Generations of files, by the digests of their names."""


def place_of(name: str, generation: int) -> str:
    """Return the place of a file in the order of its source; its name where the order has no generations (0)."""
    return f"{generation:0{_DIGITS}d}/{name}" if generation else name


def generation_at(place: str) -> int:
    """Return the generation of the file at a place that has one."""
    return int(place[:_DIGITS])


def name_at(place: str) -> str:
    """Return the name of the file at a place that has a generation."""
    return place[_DIGITS + 1 :]
