"""Interval of a run, and text of timestamps."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from headrace.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Interval:
    """Interval from `start` (inclusive) to `end` (exclusive), in milliseconds."""

    start: int
    end: int

    @classmethod
    def of(cls, start: int | None, end: int | None) -> Interval:
        """Return the interval of a run.

        Raises `ConfigError` where `start` or `end` is None, and where `start` is not before `end`.
        """
        if start is None or end is None:
            msg = (
                "an interval run needs --interval-start and --interval-end. In Airflow this DAG run has no data interval: trigger "
                "it with a logical date, and it gets the last whole interval before that"
            )
            raise ConfigError(msg)
        if start >= end:
            msg = (
                f"the interval {timestamp_text(start)} to {timestamp_text(end)} is empty. Nothing was done. In Airflow, timetables that only "
                "trigger runs give them such intervals: schedule the DAG by CronDataIntervalTimetable"
            )
            raise ConfigError(msg)
        return cls(start, end)

    @classmethod
    def named(cls, start: str, end: str) -> Interval | None:
        """Return the interval between two timestamps in the format of an interval's `str`; None if the text is not such an interval."""
        try:
            first, last = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (start, end))
        except ValueError:
            return None
        return cls(round(first.timestamp() * 1000), round(last.timestamp() * 1000))

    def contains(self, other: Interval) -> bool:
        """Return whether all of another interval lies in this one."""
        return self.start <= other.start and other.end <= self.end

    def meets(self, other: Interval) -> bool:
        """Return whether a part of another interval lies in this one."""
        return self.start < other.end and other.start < self.end

    def parts(self, length: int) -> list[Interval]:
        """Return the intervals of this length (ms) that it consists of, the last one maybe shorter."""
        starts = range(self.start, self.end, length)
        return [Interval(start, min(start + length, self.end)) for start in starts]

    def __str__(self) -> str:
        """Return text such as `2013-01-05 to 2013-01-06`, with a time of day only if it is not midnight."""
        return f"{timestamp_text(self.start)} to {timestamp_text(self.end)}"


def timestamp_text(timestamp: int | None) -> str:
    """Return a timestamp (ms) as the shortest ISO 8601 text in UTC."""
    if timestamp is None:
        return "the beginning"
    precision = "minutes" if timestamp % 60_000 == 0 else "milliseconds"
    text = datetime.fromtimestamp(timestamp / 1000, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
    return text.removesuffix("T00:00Z")
