"""Milestone of a job that a sensor waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from headrace.errors import ConfigError


@dataclass(frozen=True)
class Milestone:
    """Checkpoint, watermark, end of an interval, or several of them: the job must reach all. Times are in UTC."""

    checkpoint: int | None = None
    watermark: datetime | None = None
    interval_end: datetime | None = None

    @classmethod
    def of(cls, *, checkpoint: object = None, watermark: object = None, interval_end: object = None) -> Self:
        """Return a milestone from rendered texts, or values.

        Raises `ConfigError` without any, and for a text that is not a number or moment.
        """
        number = None if _is_nothing(checkpoint) else _number(checkpoint)
        reached = cls(number, _moment("watermark", watermark), _moment("interval_end", interval_end))
        if reached == cls():
            raise ConfigError("give the sensor a checkpoint, a watermark or an interval_end to wait for")
        return reached

    def is_reached(self, status: Mapping[str, Any]) -> bool:
        """Return whether a job has reached the milestone. `status` is its entry in `headrace status --json`."""
        return (
            _at_least(status["checkpoint"], self.checkpoint)
            and _at_least(_moment("watermark", status["watermark"]), self.watermark)
            and _at_least(_moment("interval_end", status["interval_end"]), self.interval_end)
        )


def _at_least(value: Any, wanted: Any) -> bool:
    return wanted is None or (value is not None and bool(value >= wanted))


def _is_nothing(value: object) -> bool:
    return value is None or value in {"", "None"}


def _number(value: object) -> int:
    try:
        return int(str(value))
    except ValueError:
        raise ConfigError(f"checkpoint: '{value}' is not the id of a checkpoint") from None


def _moment(name: str, value: object) -> datetime | None:
    """Return a moment. Without a time zone it is in UTC."""
    if _is_nothing(value):
        return None
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise ConfigError(f"{name}: '{value}' is not a moment such as 2013-01-31 or 2013-01-31T05:00:00Z") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
