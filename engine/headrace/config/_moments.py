"""Moments as people write them: a day or a time of ISO 8601, in UTC by default."""

from __future__ import annotations

from datetime import UTC, datetime


def parse_moment(text: str) -> int:
    """Return a moment, such as `2013-01-31` or `2013-01-31T05:00:00+00:00`, in milliseconds since the epoch.

    Raises `ValueError` for any other text.
    """
    moment = datetime.fromisoformat(text)
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
