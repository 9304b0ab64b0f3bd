"""Periods of local time, from a year to a millisecond, and the moments at which they begin in a time zone."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from enum import Enum
from typing import Final
from zoneinfo import ZoneInfo


class Unit(Enum):
    """Kind of a period of local time."""

    YEAR = "year"
    MONTH = "month"
    ISO_WEEK = "ISO week"
    WEEK_FROM_SUNDAY = "week from Sunday"
    """A week that also ends with its year: the days before its first Sunday are week 0."""
    WEEK_FROM_MONDAY = "week from Monday"
    DAY = "day"
    HOUR = "hour"
    MINUTE = "minute"
    SECOND = "second"
    MILLISECOND = "millisecond"

    @property
    def longest(self) -> timedelta:
        """Return the length of the longest such period."""
        return _LONGEST[self]

    @property
    def is_part_of_a_day(self) -> bool:
        """Return whether such a period is shorter than a day."""
        return self.longest < timedelta(days=1)

    @property
    def ends_with_its_year(self) -> bool:
        """Return whether such a week ends with its year, so that the week of a New Year's Day is often two periods."""
        return self in {Unit.WEEK_FROM_SUNDAY, Unit.WEEK_FROM_MONDAY}

    def floor(self, local: datetime) -> datetime:
        """Return the start of the period that holds a local time (without zone)."""
        midnight = datetime.combine(local.date(), time())
        if self.is_part_of_a_day:
            return midnight + (local - midnight) // self.longest * self.longest
        if self is Unit.DAY:
            return midnight
        if self in _FIRST_WEEKDAYS:
            monday = midnight - timedelta(days=(midnight.weekday() - _FIRST_WEEKDAYS[self]) % 7)
            return max(monday, midnight.replace(month=1, day=1)) if self.ends_with_its_year else monday
        return midnight.replace(day=1) if self is Unit.MONTH else midnight.replace(month=1, day=1)

    def after(self, start: datetime) -> datetime:
        """Return the start of the period behind the one that begins at `start`. Raises `OverflowError` behind the year 9999."""
        beyond = start + self.longest
        new_year = beyond.replace(month=1, day=1)
        if self.ends_with_its_year and new_year > start:
            return new_year
        return self.floor(beyond)


_LONGEST: Final = {
    Unit.YEAR: timedelta(days=366),
    Unit.MONTH: timedelta(days=31),
    Unit.ISO_WEEK: timedelta(days=7),
    Unit.WEEK_FROM_SUNDAY: timedelta(days=7),
    Unit.WEEK_FROM_MONDAY: timedelta(days=7),
    Unit.DAY: timedelta(days=1),
    Unit.HOUR: timedelta(hours=1),
    Unit.MINUTE: timedelta(minutes=1),
    Unit.SECOND: timedelta(seconds=1),
    Unit.MILLISECOND: timedelta(milliseconds=1),
}
_FIRST_WEEKDAYS: Final = {Unit.ISO_WEEK: 0, Unit.WEEK_FROM_MONDAY: 0, Unit.WEEK_FROM_SUNDAY: 6}


def first_moment(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment in a zone at which its clocks show a local time (without zone) or a later one, in UTC.

    Where clocks go forward over `local`, that is the moment of the change.
    """
    shown = local.replace(tzinfo=zone).astimezone(UTC)
    if shown.astimezone(zone).replace(tzinfo=None) == local:
        return shown
    return change_between(local.replace(tzinfo=zone, fold=1).astimezone(UTC), shown, zone)


def change_between(before: datetime, after: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment between two others, in UTC, from which on a zone has the offset that it has at `after`: a whole second."""
    offset = after.astimezone(zone).utcoffset()
    low, high = before.timestamp() // 1, -(-after.timestamp() // 1)
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)
