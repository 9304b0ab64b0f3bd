"""Values with a grammar of their own: durations, timestamps, cron, URLs, quarantine limits, starts.

A duration is written as `30m`, `1h30m`, `2d`, or as a plain number of seconds. A timestamp is a day or a time of ISO
8601, in UTC by default. Versions of a table and offsets of a topic say where a source begins, and what it skips.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from enum import Enum
from fractions import Fraction
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from headrace.errors import without_credentials
from headrace.options import LONGEST

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
    if span > LONGEST:
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


def parse_timestamp(text: str) -> int:
    """Return a timestamp, such as `2013-01-31` or `2013-01-31T05:00:00+00:00`, in milliseconds since the epoch.

    Raises `ValueError` for any other text.
    """
    timestamp = datetime.fromisoformat(text)
    timestamp = timestamp if timestamp.tzinfo is not None else timestamp.replace(tzinfo=UTC)
    return round(timestamp.timestamp() * 1000)


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
        return _LONGEST_OF[self]

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


_LONGEST_OF: Final = {
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


_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_PRESET_UNITS = dict(zip(_PRESETS, (Unit.HOUR, Unit.DAY, Unit.ISO_WEEK, Unit.MONTH, Unit.YEAR), strict=True))
_FIELDS = 5
_RULE = f"five fields such as '0 5 * * *', or {', '.join(_PRESETS)}"
_ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_PLAIN = [{"*", *map(str, numbers)} for numbers in (range(60), range(24), range(1, 29), range(1, 13), range(7))]
"""Texts of each field that match some timestamp of each month, week or day."""


def check_cron(text: str) -> None:
    """Raise `ValueError` unless `text` is five cron fields that some timestamp matches, or a preset."""
    if text in _PRESETS:
        return
    fields = text.split()
    # croniter reads a field that begins with R as random: each parse would give another schedule.
    if len(fields) != _FIELDS or any(field[0] in "Rr" for field in fields):
        raise ValueError(f"'{text}' is not a cron expression: {_RULE}")
    # The import of croniter runs the program `file`: 20 ms of each command that reads a job's file.
    if not all(field in plain for field, plain in zip(fields, _PLAIN, strict=True)):
        _check_fields(text)


def longest_common_period(text: str) -> Unit | None:
    """Return the longest unit of which each interval of a cron expression surely sees a beginning; None if only its timestamps can tell."""
    if text in _PRESETS:
        return _PRESET_UNITS[text]
    minute, hour, day, month, weekday = (field.isdigit() for field in text.split())
    if not (minute and hour):
        return Unit.HOUR if minute else None
    if day:
        return Unit.YEAR if month else Unit.MONTH
    return Unit.ISO_WEEK if weekday else Unit.DAY


def intervals_of_cron(text: str, start: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """Yield the first intervals of a cron expression after `start`, in the time zone of `start`."""
    from croniter import croniter

    timestamps = croniter(text, start)
    return itertools.pairwise(timestamps.get_next(datetime) for _ in range(count + 1))


def _check_fields(text: str) -> None:
    from croniter import CroniterBadDateError, CroniterError, croniter

    try:
        croniter(text, _ANY_DAY).get_next()
    except CroniterBadDateError as error:
        raise ValueError(f"no timestamp matches the cron expression '{text}': the calendar has no such day") from error
    except CroniterError as error:
        raise ValueError(f"'{text}' is not a cron expression ({error}): {_RULE}") from error


def with_path(base: str, path: str) -> str:
    """Append a path to a URL. Queries of both are kept."""
    url, more = urlsplit(base), urlsplit(path)
    query = "&".join(filter(None, (url.query, more.query)))
    return urlunsplit(url._replace(path=url.path.rstrip("/") + more.path, query=query, fragment=""))


def shown_url(url: str) -> str:
    """Return a URL for printing: `...` replaces user, password and query, which may hold secrets."""
    head, mark, _ = without_credentials(url).partition("#")[0].partition("?")
    return f"{head}{mark}{'...' if mark else ''}"


_NUMBER: Final = re.compile(r"\d{1,18}")
_SHARE: Final = re.compile(r"(\d{1,3}(?:\.\d{1,6})?) *%")
_WHOLE: Final = 100


@dataclass(frozen=True, slots=True)
class QuarantineLimit:
    """Largest number, or share, of the rows that a micro-batch takes from a source; without both, any number."""

    rows: int | None = None
    share: Fraction | None = None

    def allows(self, refused: int, taken: int) -> bool:
        """Return whether `refused` of the `taken` rows are within the limit."""
        if self.share is not None:
            return refused <= self.share * taken
        return self.rows is None or refused <= self.rows


def parse_quarantine_limit(text: str) -> QuarantineLimit:
    """Return the limit that a job's file names under `max_quarantined`.

    Raises `ValueError` that names the expected forms.
    """
    if text == "none":
        return QuarantineLimit()
    if _NUMBER.fullmatch(text):
        return QuarantineLimit(rows=int(text))
    match = _SHARE.fullmatch(text)
    if match is None or Fraction(match[1]) > _WHOLE:
        msg = f"'{text}' is no limit: expected a number of rows such as 100, a share of them such as 5%, or none"
        raise ValueError(msg)
    return QuarantineLimit(share=Fraction(match[1]) / _WHOLE)


_START_RULE: Final = (
    "expected earliest, latest, snapshot, a version such as 'version 12', or a day or a timestamp such as 2026-01-31 or "
    "2026-01-31T06:00Z"
)
_VERSION: Final = re.compile(r"version +(\d{1,18})")
_VERSIONS: Final = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


class StartKind(Enum):
    """Kind of a start."""

    EARLIEST = "earliest"
    LATEST = "latest"
    SNAPSHOT = "snapshot"
    VERSION = "version"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Start:
    """Place where reading begins. `value` is the first version to read, or a timestamp (ms): earlier commits are not read."""

    kind: StartKind
    value: int = 0


def parse_start(text: str) -> Start:
    """Return the start that a job's file names under `start`. A timestamp without a time zone is in UTC.

    Raises `ValueError` that names the expected forms.
    """
    if text in {StartKind.EARLIEST.value, StartKind.LATEST.value, StartKind.SNAPSHOT.value}:
        return Start(StartKind(text))
    if match := _VERSION.fullmatch(text):
        return Start(StartKind.VERSION, int(match[1]))
    try:
        return Start(StartKind.TIME, parse_timestamp(text))
    except ValueError:
        msg = f"'{text}' is no start: {_START_RULE}"
        raise ValueError(msg) from None


def parse_versions(text: str) -> tuple[range, ...]:
    """Return the versions in a text such as `17` or `3, 13-17`; both ends of a range are included.

    Raises `ValueError` that names the expected forms.
    """
    ranges = []
    for part in text.split(","):
        match = _VERSIONS.fullmatch(part.strip())
        if match is None or int(match[1]) > int(match[2] or match[1]):
            msg = f"'{part.strip()}' names no versions: expected one such as 17, or the first and the last one such as 13-17"
            raise ValueError(msg)
        ranges.append(range(int(match[1]), int(match[2] or match[1]) + 1))
    return tuple(ranges)


def parse_offsets(text: str) -> dict[int, tuple[range, ...]]:
    """Return the offsets in a text such as `0:17` or `0:120-499, 3:7`, by partition; both ends of a range are included.

    Raises `ValueError` that names the expected forms.
    """
    by_partition: dict[int, tuple[range, ...]] = {}
    for part in text.split(","):
        partition, _, offsets = part.strip().partition(":")
        if not partition.isascii() or not partition.isdecimal() or len(partition) > _DIGITS_OF_A_PARTITION:
            raise ValueError(_no_offsets(part))
        try:
            ranges = parse_versions(offsets)
        except ValueError:
            raise ValueError(_no_offsets(part)) from None
        by_partition[int(partition)] = (*by_partition.get(int(partition), ()), *ranges)
    return by_partition


_DIGITS_OF_A_PARTITION = 10


def _no_offsets(part: str) -> str:
    return (
        f"'{part.strip()}' names no offsets: expected a partition and an offset such as 0:17, or a partition, the first and the "
        "last offset such as 0:120-499"
    )
