"""Windows of a calendar, found by trying each minute."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

from headrace.operators import Calendar, CalendarUnit

MONTHS = {CalendarUnit.MONTH: 1, CalendarUnit.QUARTER: 3, CalendarUnit.YEAR: 12}


@cache
def first_minute(zone, day):
    """Return the first minute at which clocks of a zone show a date or a later one (ms)."""
    minute = datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(days=1)
    while minute.astimezone(ZoneInfo(zone)).date() < day:
        minute += timedelta(minutes=1)
    return round(minute.timestamp() * 1000)


@dataclass(frozen=True)
class CalendarByHand:
    """The windows of a `Calendar`."""

    windows: Calendar

    def windows_at(self, at):
        """Return the window that contains a time: the last one whose first minute has come."""
        day = (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at, days=2)).date()
        while True:
            first, later = self._first_dates(day)
            start = first_minute(self.windows.zone, first)
            if start <= at:
                return {(start, first_minute(self.windows.zone, later))}
            day = first - timedelta(days=1)

    def _first_dates(self, day):
        """Return the first date of the period that contains a date, and that of the next one."""
        months = MONTHS.get(self.windows.unit)
        if months is None:
            length = timedelta(days=7 if self.windows.unit is CalendarUnit.WEEK else 1)
            first = date(1900, 1, 1) + timedelta(days=self.windows.first_weekday)  # 1900 begins with a Monday
            first += (day - first) // length * length
            return first, first + length
        first = date(day.year, (day.month - 1) // months * months + 1, 1)
        return first, (first + timedelta(days=31 * months)).replace(day=1)
