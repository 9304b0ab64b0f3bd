"""Length of a file's interval, from the strptime pattern of its name."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

_FIXED: Final = (
    (("%f",), timedelta(microseconds=1)),
    (("%S", "%c", "%X"), timedelta(seconds=1)),
    (("%M",), timedelta(minutes=1)),
    (("%H", "%I"), timedelta(hours=1)),
    (("%d", "%j", "%x", "%a", "%A", "%w", "%u"), timedelta(days=1)),
    (("%U", "%W", "%V"), timedelta(weeks=1)),
)
"""Directives and their periods, finest first."""

_DECEMBER: Final = 12


def end_of_period(start: datetime, pattern: str) -> datetime:
    """Return the end of the interval that begins at `start`: one unit of the pattern's finest directive later."""
    directives = pattern.replace("%%", "")
    for names, period in _FIXED:
        if any(name in directives for name in names):
            return start + period
    is_month = any(name in directives for name in ("%m", "%b", "%B"))
    if is_month and start.month < _DECEMBER:
        return start.replace(month=start.month + 1)
    return start.replace(year=start.year + 1, month=1) if is_month else start.replace(year=start.year + 1)
