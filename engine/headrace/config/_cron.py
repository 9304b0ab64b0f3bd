"""Cron expressions, read as Airflow reads them."""

from __future__ import annotations

from datetime import UTC, datetime

_PRESETS = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_FIELDS = 5
_RULE = f"five fields such as '0 5 * * *', or {', '.join(_PRESETS)}"
_ANY_DAY = datetime(2000, 1, 1, tzinfo=UTC)


def check_cron(text: str) -> None:
    """Raise `ValueError` unless `text` is five cron fields that some moment matches, or a preset."""
    if text in _PRESETS:
        return
    fields = text.split()
    # croniter reads a field that begins with R as random: each parse would give another schedule.
    if len(fields) != _FIELDS or any(field[0] in "Rr" for field in fields):
        raise ValueError(f"'{text}' is not a cron expression: {_RULE}")
    _check_fields(text)


def _check_fields(text: str) -> None:
    from croniter import CroniterBadDateError, CroniterError, croniter

    try:
        croniter(text, _ANY_DAY).get_next()
    except CroniterBadDateError as error:
        raise ValueError(f"no moment matches the cron expression '{text}': the calendar has no such day") from error
    except CroniterError as error:
        raise ValueError(f"'{text}' is not a cron expression ({error}): {_RULE}") from error
