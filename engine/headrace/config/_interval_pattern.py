"""Pattern by which a file's name gives its interval, with the directives of `strptime` that it knows.

The interval is a *period* of a time zone: all timestamps that the pattern gives the same name. So the periods of a pattern follow each other
without gap and overlap, and each timestamp belongs to one of them. A pattern for which that cannot be is refused when the job's file is loaded;
a name that no timestamp has, when the file is listed.

    %Y-%m-%d in America/New_York   2026-03-08 is 2026-03-08T05:00Z to 2026-03-09T04:00Z: clocks go forward, the day has 23 hours
    %Y-%W                          2026-05 is 2 February (a Monday) to 9 February; 2026-00 is 1 to 5 January

A pattern with a `/` is one of paths from the source's folder, and has wildcards for what gives no time:

    day=%Y-%m-%d/*.parquet         day=2026-03-02/part-00000.parquet

Directives of `strptime` that a file's name can give a time by: what text each stands for, and which part of a time it names.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from headrace.config._file_pattern import wildcards
from headrace.config._values import Unit
from headrace.zones import change_between, first_timestamp

_MONTHS: Final = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")  # fmt: skip
_WEEKDAYS: Final = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_FIRST_YEAR_OF_TWO_DIGITS: Final = 69
"""`%y` is POSIX's: 69 to 99 are years of the 20th century, 00 to 68 of the 21st."""
_NOON: Final = 12


@dataclass(frozen=True, slots=True)
class Directive:
    """One directive: the `part` of a time that it names, the expression of its texts, and the value of a text and of a local time.

    Two directives with the same part have comparable values: `%b` and `%m` both count months from 1.
    """

    part: str
    expression: str
    read: Callable[[str], int]
    of: Callable[[datetime], int]


def week_from(start: int, day: datetime) -> int:
    """Return the number of a day's week in its year, by weeks that begin on a weekday (0: Monday, 6: Sunday); week 0 is before the first."""
    return (day.timetuple().tm_yday + 6 - (day.weekday() - start) % 7) // 7


def _digits(most: int) -> str:
    """Return the expression of a number with leading zeros, which only a number that touches no other digit may lack."""
    return rf"(?<![0-9])[0-9]{{1,{most - 1}}}(?![0-9])|[0-9]{{{most}}}"


def _number(part: str, most: int, of: Callable[[datetime], int]) -> Directive:
    return Directive(part, _digits(most), int, of)


def _name(
    part: str, names: tuple[str, ...], length: int | None, first: int, of: Callable[[datetime], int]
) -> Directive:
    values = {name[:length]: number for number, name in enumerate(names, first)}
    return Directive(part, "|".join(sorted(values, key=len, reverse=True)), lambda text: values[text.lower()], of)


def _year_of_two_digits(text: str) -> int:
    return int(text) + (1900 if int(text) >= _FIRST_YEAR_OF_TWO_DIGITS else 2000)


def _fraction(text: str) -> int:
    return int(text.ljust(6, "0")) // 1000


def _offset(text: str) -> int:
    """Return the distance from UTC in seconds; `text` is Z or such as +0100, +01:00 or +010030."""
    if text in {"Z", "z"}:
        return 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:4]) * 60 + int(digits[4:])
    return -seconds if text[0] == "-" else seconds


def _offset_of(time: datetime) -> int:
    return round((time.utcoffset() or timedelta()).total_seconds())


DIRECTIVES: Final[Mapping[str, Directive]] = {
    "Y": Directive("year", "[0-9]{4}", int, lambda time: time.year),
    "y": Directive("year", "[0-9]{2}", _year_of_two_digits, lambda time: time.year),
    "m": _number("month", 2, lambda time: time.month),
    "b": _name("month", _MONTHS, 3, 1, lambda time: time.month),
    "B": _name("month", _MONTHS, None, 1, lambda time: time.month),
    "d": _number("day", 2, lambda time: time.day),
    "j": _number("day of the year", 3, lambda time: time.timetuple().tm_yday),
    "U": _number("week from Sunday", 2, lambda time: week_from(6, time)),
    "W": _number("week from Monday", 2, lambda time: week_from(0, time)),
    "G": Directive("ISO year", "[0-9]{4}", int, lambda time: time.isocalendar().year),
    "V": _number("ISO week", 2, lambda time: time.isocalendar().week),
    "a": _name("weekday", _WEEKDAYS, 3, 0, datetime.weekday),
    "A": _name("weekday", _WEEKDAYS, None, 0, datetime.weekday),
    "w": Directive("weekday", "[0-6]", lambda text: (int(text) - 1) % 7, datetime.weekday),
    "u": Directive("weekday", "[1-7]", lambda text: int(text) - 1, datetime.weekday),
    "H": _number("hour", 2, lambda time: time.hour),
    "I": _number("hour of 12", 2, lambda time: (time.hour - 1) % _NOON + 1),
    "p": _name("half of the day", ("am", "pm"), None, 0, lambda time: time.hour // _NOON),
    "M": _number("minute", 2, lambda time: time.minute),
    "S": _number("second", 2, lambda time: time.second),
    "f": Directive("millisecond", "[0-9]{1,6}", _fraction, lambda time: time.microsecond // 1000),
    "z": Directive("offset", r"Z|[+-][0-9]{2}:?[0-5][0-9](?::?[0-5][0-9])?", _offset, _offset_of),
}


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
TOKEN: Final = re.compile(r"%(.?)|\s+|[^%\s]+", re.DOTALL)

DAYS: Final = (
    {"year", "month", "day"},
    {"year", "day of the year"},
    {"ISO year", "ISO week", "weekday"},
    {"year", Unit.WEEK_FROM_SUNDAY.value, "weekday"},
    {"year", Unit.WEEK_FROM_MONDAY.value, "weekday"},
)
"""Parts of a time that name a day together."""
_LONGER: Final = {
    frozenset({"year"}): Unit.YEAR,
    frozenset({"year", "month"}): Unit.MONTH,
    frozenset({"ISO year", "ISO week"}): Unit.ISO_WEEK,
    frozenset({"year", Unit.WEEK_FROM_SUNDAY.value}): Unit.WEEK_FROM_SUNDAY,
    frozenset({"year", Unit.WEEK_FROM_MONDAY.value}): Unit.WEEK_FROM_MONDAY,
}
_TIMES: Final = ("hour", "hour of 12", "half of the day", "minute", "second", "millisecond", "offset")
_BY_LOCALE: Final = {"c": "%Y-%m-%dT%H%M%S", "x": "%Y-%m-%d", "X": "%H%M%S"}


@dataclass(frozen=True, slots=True)
class IntervalPattern:
    """A pattern of file names in a time zone. `interval_pattern` makes it."""

    text: str
    zone: ZoneInfo
    unit: Unit
    expression: re.Pattern[str]
    directives: tuple[str, ...]

    @property
    def is_of_paths(self) -> bool:
        """Return whether the pattern is one of paths from the source's folder; else of names, whatever folder they are in."""
        return "/" in self.text

    def interval_of(self, name: str) -> tuple[int, int] | None:
        """Return start and end (ms) of the interval in a file's name or path, as the pattern has it; None if no timestamp has this name.

        Raises `OverflowError` where the interval begins or ends beyond the years 1 to 9999.
        """
        match = self.expression.fullmatch(name)
        if match is None:
            return None
        try:
            values = [DIRECTIVES[name].read(text) for name, text in zip(self.directives, match.groups(), strict=True)]
            parts = {DIRECTIVES[name].part: value for name, value in zip(self.directives, values, strict=True)}
            local = local_time(parts)
        except ValueError:
            return None
        offset = timedelta(seconds=parts["offset"]) if "offset" in parts else None
        if offset is None and self.unit.is_part_of_a_day and _is_changed(local, self.zone):
            return None
        start, end = self._period(local, offset)
        shown = start.astimezone(self.zone)
        if start >= end or values != [DIRECTIVES[name].of(shown) for name in self.directives]:
            return None
        return _milliseconds(start), _milliseconds(end)

    def period_at(self, timestamp: int) -> tuple[int, int]:
        """Return start and end (ms) of the period that holds a timestamp (ms)."""
        shown = (_EPOCH + timestamp * _MILLISECOND).astimezone(self.zone)
        start, end = self._period(
            self.unit.floor(shown.replace(tzinfo=None)), shown.utcoffset() if "z" in self.directives else None
        )
        return _milliseconds(start), _milliseconds(end)

    def begins_in(self, start: int, end: int) -> bool:
        """Return whether a period begins in the interval from `start` to `end` (ms)."""
        first = self.period_at(start)
        return first[0] == start or first[1] < end

    def is_whole(self, start: int, end: int) -> bool:
        """Return whether the interval from `start` to `end` (ms) is made of whole periods."""
        return all(self.period_at(timestamp)[0] == timestamp for timestamp in (start, end))

    def _period(self, local: datetime, offset: timedelta | None) -> tuple[datetime, datetime]:
        """Return start and end, in UTC, of the period that begins at a local time; with an `offset`, the part of it that has the offset."""
        after = self.unit.after(local)
        if offset is None:
            return first_timestamp(local, self.zone), first_timestamp(after, self.zone)
        start, end = ((time - offset).replace(tzinfo=UTC) for time in (local, after))
        last = end - _MILLISECOND
        at_start, at_end = (time.astimezone(self.zone).utcoffset() == offset for time in (start, last))
        if at_start == at_end:
            return (start, end) if at_start else (start, start)
        change = change_between(start, last, self.zone)
        return (start, change) if at_start else (change, end)


@lru_cache(maxsize=256)
def interval_pattern(text: str, timezone: str = "UTC") -> IntervalPattern:
    """Return the pattern of a text.

    Raises `ValueError` that says what is wrong and what to write, if the periods of the pattern would have gaps, overlaps, or names that
    several of them share; `KeyError` or `ValueError` for a time zone that does not exist.
    """
    zone = ZoneInfo(timezone)
    names = tuple(match[1] for match in TOKEN.finditer(text) if match[0][0] == "%" and match[0] != "%%")
    known = {DIRECTIVES[name].part: name for name in names if name in DIRECTIVES}
    for problem in (*problems_of_directives(names), *problems_of_the_day(known), *problems_of_the_time(known)):
        raise ValueError(problem)
    unit = _unit(set(known))
    if unit.is_part_of_a_day and "offset" not in known and _changes_its_offset(zone):
        raise ValueError(
            f"clocks in {timezone} go back once a year, and the same {unit.value} then comes twice: add %z, the offset from UTC, "
            "or write the names in UTC, and timezone: UTC"
        )
    expression = "".join(expression_of(match, wildcards) for match in TOKEN.finditer(text))
    try:
        return IntervalPattern(text, zone, unit, re.compile(expression, re.IGNORECASE), names)
    except re.error as error:
        msg = (
            f"its wildcards cannot be read ({error}): write a range from the lower to the higher character, as in [0-9]"
        )
        raise ValueError(msg) from error


def expression_of(token: re.Match[str], of_text: Callable[[str], str] = re.escape) -> str:
    if token[0][0] != "%":
        return r"\s+" if token[0].isspace() else of_text(token[0])
    return "%" if token[1] == "%" else f"({DIRECTIVES[token[1]].expression})"


def problems_of_directives(names: tuple[str, ...]) -> Iterator[str]:
    """Yield why directives cannot be read at all."""
    for name in names:
        if name in _BY_LOCALE:
            yield f"%{name} depends on the locale: write {_BY_LOCALE[name]}"
        elif name == "Z":
            yield "names of time zones are ambiguous: write %z, the offset from UTC, or set timezone"
        elif name not in DIRECTIVES:
            yield (
                f"%{name} is no directive: write one such as %Y-%m-%d" if name else "it ends with a single %: write %%"
            )
        elif names.count(name) > 1:
            yield f"%{name} is there twice: write it once, and * in the other place"


def problems_of_the_day(parts: Mapping[str, str]) -> Iterator[str]:
    """Yield why parts of a time, given with the directives that name them, name no day, nor a longer period."""
    date = parts.keys() - set(_TIMES)
    if not parts:
        yield "it has no date field such as %Y-%m-%d"
        return
    if not {"year", "ISO year"} & date:
        yield f"it has no year: add {'%G' if 'ISO week' in date else '%Y'}"
    if ("ISO week" in date) != ("ISO year" in date):
        yield "%G, the ISO year, and %V, the ISO week, go together: write %G-W%V"
    names_a_day = any(day <= date for day in DAYS)
    if not names_a_day and frozenset(date) not in _LONGER:
        listed = ", ".join(sorted(f"%{parts[part]}" for part in date))
        yield f"{listed} name no year, month, week or day together: write %Y, %Y-%m, %G-W%V or %Y-%m-%d"
    if not names_a_day and (times := [part for part in _TIMES if part in parts]):
        yield f"%{parts[times[0]]} belongs to a day, and none is named: write %Y-%m-%d before it"


def problems_of_the_time(parts: Mapping[str, str]) -> Iterator[str]:
    """Yield why parts of a time, given with the directives that name them, leave the time of day open."""
    has_hour = "hour" in parts or "hour of 12" in parts
    if "hour of 12" in parts and "half of the day" not in parts:
        yield "%I counts to 12 twice a day: write %H, or add %p"
    if "half of the day" in parts and not has_hour:
        yield "%p needs the hour: write %H"
    for coarser, part in itertools.pairwise(("hour", "minute", "second", "millisecond")):
        if part in parts and coarser not in parts and not (coarser == "hour" and has_hour):
            yield f"%{parts[part]} needs the {coarser}: write %Y-%m-%dT%H%M%S as far as you need it"
    if "offset" in parts and not has_hour:
        yield "%z needs the hour, since the offset may change within a day: write %H before it, or set timezone in place of it"


def _unit(parts: set[str]) -> Unit:
    """Return the unit of the finest part."""
    for unit in (Unit.MILLISECOND, Unit.SECOND, Unit.MINUTE, Unit.HOUR):
        if unit.value in parts or (unit is Unit.HOUR and "hour of 12" in parts):
            return unit
    return _LONGER.get(frozenset(parts), Unit.DAY)


def local_time(parts: Mapping[str, int]) -> datetime:
    """Return the local time of these parts. Raises `ValueError` if there is no such day."""
    hour = parts["hour"] if "hour" in parts else parts.get("hour of 12", 0) % 12 + 12 * parts.get("half of the day", 0)
    day = _day(parts)
    return day.replace(
        hour=hour,
        minute=parts.get("minute", 0),
        second=parts.get("second", 0),
        microsecond=parts.get("millisecond", 0) * 1000,
    )


def _day(parts: Mapping[str, int]) -> datetime:
    """Return the midnight at which a period begins, or the day that holds it. Raises `ValueError` if there is no such day."""
    if {"year", "month", "day"} <= parts.keys():
        return datetime(parts["year"], parts["month"], parts["day"])  # noqa: DTZ001 - local times; the zone comes later
    if "ISO week" in parts and ("weekday" in parts or "year" not in parts):
        return datetime.fromisocalendar(parts["ISO year"], parts["ISO week"], parts.get("weekday", 0) + 1)
    new_year = datetime(parts["year"], 1, 1)  # noqa: DTZ001
    if "day of the year" in parts:
        return new_year + timedelta(days=parts["day of the year"] - 1)
    for unit, first in ((Unit.WEEK_FROM_SUNDAY, 6), (Unit.WEEK_FROM_MONDAY, 0)):
        if unit.value in parts:
            start = new_year + timedelta(days=(first - new_year.weekday()) % 7, weeks=parts[unit.value] - 1)
            return (
                start + timedelta(days=(parts["weekday"] - first) % 7) if "weekday" in parts else max(start, new_year)
            )
    return new_year.replace(month=parts.get("month", 1))


def _is_changed(local: datetime, zone: ZoneInfo) -> bool:
    """Return whether a local time comes twice, or never."""
    return local.replace(tzinfo=zone).utcoffset() != local.replace(tzinfo=zone, fold=1).utcoffset()


@lru_cache(maxsize=256)
def _changes_its_offset(zone: ZoneInfo) -> bool:
    """Return whether a zone has changed its offset from UTC since 2000, or will."""
    months = (datetime(year, month, 1, tzinfo=zone) for year in range(2000, 2038) for month in range(1, 13))
    return len({timestamp.utcoffset() for timestamp in months}) > 1


def _milliseconds(timestamp: datetime) -> int:
    return (timestamp - _EPOCH) // _MILLISECOND
