"""Cron expressions, read as Airflow reads them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime

from headrace.config._periods import Unit

_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_UNITS = dict(zip(_PRESETS, (Unit.HOUR, Unit.DAY, Unit.ISO_WEEK, Unit.MONTH, Unit.YEAR), strict=True))
_FIELDS = 5
_RULE = f"five fields such as '0 5 * * *', or {', '.join(_PRESETS)}"
_ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)
_PLAIN = [{"*", *map(str, numbers)} for numbers in (range(60), range(24), range(1, 29), range(1, 13), range(7))]
"""Texts of each field that match some moment of each month, week or day."""


def check_cron(text: str) -> None:
    """Raise `ValueError` unless `text` is five cron fields that some moment matches, or a preset."""
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
    """Return the longest unit of which each interval of a cron expression surely sees a beginning; None if only its moments can tell."""
    if text in _PRESETS:
        return _UNITS[text]
    minute, hour, day, month, weekday = (field.isdigit() for field in text.split())
    if not (minute and hour):
        return Unit.HOUR if minute else None
    if day:
        return Unit.YEAR if month else Unit.MONTH
    return Unit.ISO_WEEK if weekday else Unit.DAY


def intervals_of_cron(text: str, start: datetime, count: int) -> Iterator[tuple[datetime, datetime]]:
    """Yield the first intervals of a cron expression after `start`, in the time zone of `start`."""
    from croniter import croniter

    moments = croniter(text, start)
    return itertools.pairwise(moments.get_next(datetime) for _ in range(count + 1))


def _check_fields(text: str) -> None:
    from croniter import CroniterBadDateError, CroniterError, croniter

    try:
        croniter(text, _ANY_DAY).get_next()
    except CroniterBadDateError as error:
        raise ValueError(f"no moment matches the cron expression '{text}': the calendar has no such day") from error
    except CroniterError as error:
        raise ValueError(f"'{text}' is not a cron expression ({error}): {_RULE}") from error
