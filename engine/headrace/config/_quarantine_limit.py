"""Limit of the rows of a source that one micro-batch may put into the quarantine."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

_NUMBER: Final = re.compile(r"\d{1,18}")
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) *%")
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class QuarantineLimit:
    """Largest number, or share, of the rows that a micro-batch takes from a source; without both, any number."""

    rows: int | None = None
    share: Fraction | None = None

    def allows(self, refused: int, taken: int) -> bool:
        """Return whether `refused` of the `taken` rows are within the limit."""
        if self.share is not None:
            return refused <= self.share * taken
        return self.rows is None or refused <= self.rows


def parse_quarantine_limit(text: str) -> QuarantineLimit:
    """Return the limit that a job's file names under `max_quarantined`.

    Raises `ValueError` that names the expected forms.
    """
    if text == "none":
        return QuarantineLimit()
    if _NUMBER.fullmatch(text):
        return QuarantineLimit(rows=int(text))
    match = _SHARE.fullmatch(text)
    if match is None or Fraction(match[1]) > _WHOLE:
        msg = f"'{text}' is no limit: expected a number of rows such as 100, a share of them such as 5%, or none"
        raise ValueError(msg)
    return QuarantineLimit(share=Fraction(match[1]) / _WHOLE)
