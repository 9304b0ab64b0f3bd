"""Local time of time zones: the timestamp at which clocks of a zone show a local time first."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo


def first_timestamp(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first timestamp in a zone at which its clocks show a local time (without zone) or a later one, in UTC.

    Where clocks go forward over `local`, that is the timestamp of the change.
    """
    shown = local.replace(tzinfo=zone).astimezone(UTC)
    if shown.astimezone(zone).replace(tzinfo=None) == local:
        return shown
    return change_between(local.replace(tzinfo=zone, fold=1).astimezone(UTC), shown, zone)


def change_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the timestamp between two others, in UTC, from which on a zone has the offset that it has at `after`: a whole second."""
    offset = after.astimezone(zone).utcoffset()
    low, high = before.timestamp() // 1, -(-after.timestamp() // 1)
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)
