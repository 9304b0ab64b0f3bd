"""The order of a top-N: how many records, by which value, and as what they are emitted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec


@dataclass(frozen=True, slots=True)
class Ranks:
    """The first `n` records by `by`.

    `by` is a field, or a plain function of the record. `result` is the type of what is emitted; None: the records themselves, without
    a rank. Raises `ValueError` unless `n` is at least 1.
    """

    n: int
    by: str | Callable[[Any], Any]
    descending: bool = True
    result: type[msgspec.Struct] | None = None

    def __post_init__(self) -> None:
        """Check the number."""
        if self.n < 1:
            msg = f"the number of records must be a whole number of at least 1, not {self.n!r:.60}"
            raise ValueError(msg)
