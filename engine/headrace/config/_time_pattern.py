"""Pattern by which a text gives a day, or a day and a time of day, with the directives of `strptime`.

`strptime` itself takes names of months by the locale of the process, and takes a missing year for 1900. So a pattern is an expression, and
one that does not name a day is refused when the job's file is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from headrace.config._interval_pattern import (
    DAYS,
    DIRECTIVES,
    TOKEN,
    expression_of,
    local_time,
    problems_of_directives,
    problems_of_the_day,
    problems_of_the_time,
)

_OF_DAYS: Final = frozenset().union(*DAYS)
_SIMPLE: Final = frozenset({"year", "month", "day", "hour", "minute", "second", "millisecond", "offset"})
"""Parts of which none can contradict the others, if each of them is named once."""
_FRACTION: Final = "f"
_OFFSET: Final = "z"
_MINUTE: Final = 60


@dataclass(frozen=True, slots=True)
class TimePattern:
    """A pattern of days or times. `time_pattern` makes it."""

    text: str
    expression: re.Pattern[str]
    directives: tuple[str, ...]
    checked: tuple[str, ...]
    """Directives that may contradict each other, such as that of the weekday."""

    @property
    def has_time(self) -> bool:
        """Return whether the pattern names more than a day."""
        return not {DIRECTIVES[name].part for name in self.directives} <= _OF_DAYS

    def iso_day(self, text: str) -> str | None:
        """Return the day of a text in ISO 8601; None for a text that is no day of this pattern."""
        local = self._local(text)
        return None if local is None else local[0].date().isoformat()

    def iso_time(self, text: str) -> str | None:
        """Return the time of a text in ISO 8601, with the offset from UTC that the text has; None for a text that is no such time."""
        local = self._local(text)
        return None if local is None else f"{local[0].isoformat()}{local[1]}"

    def _local(self, text: str) -> tuple[datetime, str] | None:
        """Return the local time of a text, to the microsecond, and its offset from UTC."""
        match = self.expression.fullmatch(text)
        if match is None:
            return None
        texts = dict(zip(self.directives, match.groups(), strict=True))
        try:
            values = {name: DIRECTIVES[name].read(text) for name, text in texts.items()}
            local = local_time({DIRECTIVES[name].part: value for name, value in values.items()})
        except ValueError:
            return None
        offset = values.pop(_OFFSET, None)
        if any(DIRECTIVES[name].of(local) != values[name] for name in self.checked if name != _OFFSET):
            return None
        if _FRACTION in texts:
            local = local.replace(microsecond=int(texts[_FRACTION].ljust(6, "0")))
        return (local, "") if offset is None else _with_offset(local, offset)


@lru_cache(maxsize=256)
def time_pattern(text: str) -> TimePattern:
    """Return the pattern of a text.

    Raises `ValueError` that says what is wrong and what to write, if the pattern does not name a day, or leaves a time of day open.
    """
    names = tuple(match[1] for match in TOKEN.finditer(text) if match[0][0] == "%" and match[0] != "%%")
    known = {DIRECTIVES[name].part: name for name in names if name in DIRECTIVES}
    for problem in _problems(names, known):
        raise ValueError(problem)
    expression = "".join(expression_of(match) for match in TOKEN.finditer(text))
    parts = [DIRECTIVES[name].part for name in names]
    is_simple = len({*parts}) == len(parts) and {*parts} <= _SIMPLE
    return TimePattern(text, re.compile(expression, re.IGNORECASE | re.ASCII), names, () if is_simple else names)


def _problems(names: tuple[str, ...], parts: Mapping[str, str]) -> Iterator[str]:
    """Yield why directives, and the parts of a time that they name, give no time."""
    if "Z" in names:
        yield "names of time zones are ambiguous: write %z, the offset from UTC"
    if "offset" in parts and not {"hour", "hour of 12"} & parts.keys():
        yield "%z needs the hour: write %H before it"
    yield from problems_of_directives(names)
    yield from problems_of_the_day(parts)
    yield from problems_of_the_time(parts)
    if not any(day <= parts.keys() for day in DAYS):
        yield f"{', '.join(f'%{name}' for name in names)} name no day together: write %Y, %m and %d"


def _with_offset(local: datetime, offset: int) -> tuple[datetime, str] | None:
    """Return a time and its offset as ISO 8601 writes it; None for one with seconds, which it does not have."""
    minutes, seconds = divmod(abs(offset), _MINUTE)
    hours, minutes = divmod(minutes, _MINUTE)
    return None if seconds else (local, f"{'-' if offset < 0 else '+'}{hours:02}:{minutes:02}")
