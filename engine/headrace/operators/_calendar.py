"""Days, weeks, months, quarters and years of a time zone: where they begin and end, in ms since 1970-01-01 00:00 UTC."""

from __future__ import annotations

import enum
import re
from bisect import bisect_right
from datetime import UTC, date, datetime, time, timedelta
from functools import cache
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from headrace.names import did_you_mean
from headrace.zones import first_timestamp

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY: Final = date.min.toordinal()
_LAST_DAY: Final = date.max.toordinal()
_DAY: Final = 86_400_000
_MILLISECOND: Final = timedelta(milliseconds=1)
_BEFORE: Final = -(1 << 63)
_AFTER: Final = 1 << 63
"""Bounds of periods that begin before the year 1 or end after the year 9999: they lie outside of all timestamps."""
_MOST: Final = 100_000
"""Number of periods that are remembered: those of 270 years of days."""


WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


class CalendarUnit(enum.Enum):
    """Length of the windows of a `Calendar`."""

    DAY = "day"
    WEEK = "week"
    MONTH = "month"
    QUARTER = "quarter"
    YEAR = "year"


_MONTHS: Final = {CalendarUnit.MONTH: 1, CalendarUnit.QUARTER: 3, CalendarUnit.YEAR: 12}


class Period(NamedTuple):
    """A period from `start` up to `end`. `label` is its first date, as the ms of that date's midnight in UTC."""

    start: int
    end: int
    label: int


class Periods:
    """Periods of one unit in a zone: they follow each other without gaps. Each is computed once.

    A period begins with the first timestamp at which clocks of the zone show its first date. So a date that a zone skips has
    no period, and where clocks go back over midnight, the hour that comes twice is in the later period as a whole.
    """

    def __init__(self, unit: CalendarUnit, zone: ZoneInfo, first_weekday: int) -> None:
        """Take the zone; `first_weekday` is the one of weeks, 0 for Monday."""
        self._zone = zone
        self._months = _MONTHS.get(unit)
        self._days = 7 if unit is CalendarUnit.WEEK else 1
        self._first_weekday = first_weekday
        self._known: list[Period] = []  # in order of time
        self._last = Period(0, 0, 0)

    def label_at(self, at: int) -> int:
        """Return the label of the period that contains a timestamp."""
        return self.at(at).label

    def at(self, at: int) -> Period:
        """Return the period that contains a timestamp."""
        last = self._last
        if last.start <= at < last.end:
            return last
        known = self._known
        place = bisect_right(known, (at, _AFTER, _AFTER))
        period = known[place - 1] if place else last
        if not period.start <= at < period.end:
            period = self._computed(at)
            if len(known) >= _MOST:
                known.clear()
            known.insert(place, period)
        self._last = period
        return period

    def of(self, label: int) -> Period:
        """Return the period with a label."""
        return self._on(_EPOCH.toordinal() + label // _DAY)

    def ending_at(self, end: int) -> Period:
        """Return the period whose end is nearest to `end`: the one that ends there, unless rules of the zone have changed."""
        period = self.at(end - 1)
        if period.end - end <= end - period.start:
            return period
        return self.at(period.start - 1)

    def _computed(self, at: int) -> Period:
        period = self._on(self._local_day(at))
        while period.end <= at < _AFTER:  # clocks went back over midnight
            period = self._on(self._first_day_after(_EPOCH.toordinal() + period.label // _DAY))
        return period

    def _on(self, day: int) -> Period:
        """Return the period that contains a local date; dates are numbers as in `date.toordinal`."""
        first = self._first_day(day)
        start, end = self._first_timestamp(first), self._first_timestamp(self._first_day_after(first))
        return Period(start, end, (first - _EPOCH.toordinal()) * _DAY)

    def _local_day(self, at: int) -> int:
        try:
            return (_EPOCH + timedelta(milliseconds=at)).astimezone(self._zone).toordinal()
        except OverflowError:
            return _FIRST_DAY - 1 if at < 0 else _LAST_DAY

    def _first_day(self, day: int) -> int:
        if self._months is None:
            return day - (day - 1 - self._first_weekday) % self._days
        if not _FIRST_DAY <= day <= _LAST_DAY:
            return day
        months = _months_of(day)
        return _first_of_month(months - months % self._months)

    def _first_day_after(self, first: int) -> int:
        if self._months is None:
            return first + self._days
        if not _FIRST_DAY <= first <= _LAST_DAY:
            return first + 1
        return _first_of_month(_months_of(first) + self._months)

    def _first_timestamp(self, day: int) -> int:
        if day > _LAST_DAY:
            return _AFTER
        if day < _FIRST_DAY:
            return _BEFORE
        midnight = datetime.combine(date.fromordinal(day), time())
        try:
            return (first_timestamp(midnight, self._zone) - _EPOCH) // _MILLISECOND
        except OverflowError:  # the first or the last midnight of the calendar, in a zone where it is outside in UTC
            return _BEFORE if midnight < datetime(5000, 1, 1) else _AFTER  # noqa: DTZ001 - a local time


@cache
def periods_of(unit: CalendarUnit, zone: str, first_weekday: int) -> Periods:
    """Return the periods of a unit in a zone: the same object for all windows that have them."""
    return Periods(unit, ZoneInfo(zone), first_weekday)


def check_calendar(unit: object, zone: object, first_weekday: object) -> None:
    """Check the options of a `Calendar`, which says what is raised."""
    if not isinstance(unit, CalendarUnit):
        units = ", ".join(member.name for member in CalendarUnit)
        msg = f"unit must be a CalendarUnit ({units}), not {unit!r:.60}"
        raise TypeError(msg)
    if not isinstance(zone, str):
        msg = f"zone must be the name of a time zone, such as 'Europe/Berlin', not {zone!r:.60}"
        raise TypeError(msg)
    _check_zone(zone)
    if not isinstance(first_weekday, int) or isinstance(first_weekday, bool) or first_weekday not in range(7):
        msg = f"first_weekday must be from 0 (Monday) to 6 (Sunday), not {first_weekday!r:.60}"
        raise ValueError(msg)
    if first_weekday and unit is not CalendarUnit.WEEK:
        msg = f"first_weekday is an option of weeks, and the unit is {unit.name}"
        raise ValueError(msg)


def _check_zone(zone: str) -> None:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError) as error:
        msg = (
            f"this machine knows no time zone '{zone}'{did_you_mean(zone, available_timezones())}: give a name of "
            "the IANA database that the system or the package tzdata has, such as Europe/Berlin or UTC"
        )
        raise ValueError(msg) from error


def zone_word(zone: str) -> str:
    """Return the part of a state's name that stands for a zone: `etc_gmt_minus_1` for `Etc/GMT-1`. Other zones have other words."""
    signed = re.sub(r"-(?=\d)", "_minus_", zone.replace("+", "_plus_"))
    return re.sub(r"[^a-z0-9]", "_", signed.lower())


def _months_of(day: int) -> int:
    """Return the number of the month of a date, counted from the year 0."""
    of_day = date.fromordinal(day)
    return of_day.year * 12 + of_day.month - 1


def _first_of_month(months: int) -> int:
    year, month = divmod(months, 12)
    return date(year, month + 1, 1).toordinal() if year <= date.max.year else _LAST_DAY + 1
