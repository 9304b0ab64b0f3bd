"""Durations as people write them: `30m`, `1h30m`, `2d`, or a plain number of seconds."""

from __future__ import annotations

import re
from datetime import timedelta

_UNITS = {
    "w": timedelta(weeks=1),
    "d": timedelta(days=1),
    "h": timedelta(hours=1),
    "m": timedelta(minutes=1),
    "s": timedelta(seconds=1),
    "ms": timedelta(milliseconds=1),
}
PATTERN = r"^([0-9]+|([0-9]+w)?([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?([0-9]+ms)?)$"
_TEXT = re.compile(PATTERN)
_PART = re.compile(r"([0-9]+)(ms|[wdhms])")
# A century: a longer span is a typing error, and would overflow the arithmetic on timestamps.
_LONGEST = timedelta(days=36_500)

RULE = "a duration such as 30m, 5s, 1h30m or 2d, or a number of seconds"


def parse_duration(text: str) -> timedelta:
    """Return the span of a text such as `1h30m` or `5400` (seconds).

    Units are w, d, h, m, s and ms, largest first, each at most once. Raises `ValueError` for
    any other text, and for spans of more than a hundred years.
    """
    if not text or not _TEXT.fullmatch(text):
        msg = f"expected {RULE}, got '{text}'"
        raise ValueError(msg)
    amounts = [(text, "s")] if text.isdigit() else _PART.findall(text)
    try:
        span = sum((int(amount) * _UNITS[unit] for amount, unit in amounts), timedelta())
    except OverflowError:
        span = timedelta.max
    if span > _LONGEST:
        msg = f"'{text}' is longer than a hundred years"
        raise ValueError(msg)
    return span


def format_duration(span: timedelta) -> str:
    """Return the shortest text that `parse_duration` turns back into `span`; `0s` for a span of zero."""
    rest, parts = span, []
    for unit in ("d", "h", "m", "s", "ms"):
        amount, rest = divmod(rest, _UNITS[unit])
        if amount:
            parts.append(f"{amount}{unit}")
    return "".join(parts) or "0s"
