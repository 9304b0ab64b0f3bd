"""Directives of `strptime` that a file's name can give a time by: what text each stands for, and which part of a time it names.

Names of months and weekdays are English, whatever the locale of the process is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

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


def _milliseconds(text: str) -> int:
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
    "f": Directive("millisecond", "[0-9]{1,6}", _milliseconds, lambda time: time.microsecond // 1000),
    "z": Directive("offset", r"Z|[+-][0-9]{2}:?[0-5][0-9](?::?[0-5][0-9])?", _offset, _offset_of),
}
