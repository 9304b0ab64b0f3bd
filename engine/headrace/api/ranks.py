"""Order of a top-N: the number of records, the value that ranks them, and the type of the results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Ranks:
    """First `n` records by `by`.

    `by` is a field, or a plain function of the record. `result` is the type of the emitted records; None: the records
    themselves, without a rank. With `ties`, records whose value equals that of the n-th one belong to them. Raises `ValueError` unless `n` is a whole number of at least 1.
    """

    n: int
    by: str | Callable[[Any], Any]
    descending: bool = True
    result: type[msgspec.Struct] | None = None
    ties: bool = False

    def __post_init__(self) -> None:
        """Refuse an `n` that is not a whole number of at least 1."""
        if self.n < 1:
            msg = f"the number of records must be a whole number of at least 1, not {self.n!r:.60}"
            raise ValueError(msg)
