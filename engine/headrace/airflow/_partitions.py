"""Partitions of assets: the keys of intervals, the interval of a key, and the events that name them.

A key is the beginning of an interval of the job's schedule, in the schedule's time zone, in the form that `CronPartitionTimetable` gives
and Airflow's mappers read: 2026-03-01T00:00:00.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime, timedelta
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import pendulum
from airflow.sdk import CronPartitionTimetable

from headrace import clock
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.timetables.base import DataInterval

    from headrace.config import JobConfig, ScheduleConfig


KEY_FORMAT: Final = "%Y-%m-%dT%H:%M:%S"
_CHANGE_OF_CLOCKS: Final = timedelta(hours=3)
"""Longer than any change of a zone's clocks within a day."""
_BEFORE: Final = timedelta(days=2)
"""Airflow finds no whole interval right at a midnight that a change of clocks left out, but does before it."""


def zone_of(job: JobConfig) -> str:
    """Return the time zone of a job's keys: that of its schedule, else the one in which its sources cut days, else UTC."""
    if job.schedule is not None:
        return job.schedule.timezone
    return next((source.timezone for source in job.sources.values() if source.timezone is not None), "UTC")


def keys_of(job: JobConfig, intervals: Iterable[Collection[str]]) -> list[str]:
    """Return the keys of intervals, each a pair of timestamps in ISO 8601: one for each interval of the schedule that they touch, in order.

    For a job without a schedule, one for each of them.
    """
    zone = ZoneInfo(zone_of(job))
    starts = {
        start for interval in intervals for start in _starts(job.schedule, *map(datetime.fromisoformat, interval))
    }
    return list(dict.fromkeys(_key(start, zone) for start in sorted(starts)))


def interval_of_partition(context: Context, job: JobConfig) -> tuple[str, str] | None:
    """Return the interval of a DAG run for a partition; None for other runs, and for one with a data interval.

    Raises `ConfigError` for a key at which no interval begins, for one that names no interval, and for an interval that is not over.
    """
    run = context["dag_run"]
    key, start = getattr(run, "partition_key", None), run.data_interval_start
    if key is None or start is not None:
        return None
    timetable = context["dag"].timetable
    if isinstance(timetable, CronPartitionTimetable):  # it may write keys in any way
        cut = _Cut(timetable.expression, str(timetable.timezone))
        interval = next(_intervals(cut, run.partition_date)) if run.partition_date else _named(cut, key)
    else:
        cut = _cut_of(job, key)
        interval = _named(cut, key)
    if interval is None:
        raise ConfigError(
            f"no interval of the schedule '{cut.cron}' ({cut.timezone}) begins at the partition '{key}' of the DAG run. Nothing was done. Keys "
            "are as 2026-03-01T00:00:00: let the upstream DAG cut time in the same way, or map its keys."
        )
    if interval.end.timestamp() * 1000 > clock.now():
        raise ConfigError(
            f"the partition '{key}' of the DAG run lasts until {interval.end.isoformat()}, and is not over. Nothing was done. A DAG that runs "
            "for the day before has the timetable CronPartitionTimetable(..., run_offset=-1)."
        )
    return interval.start.isoformat(), interval.end.isoformat()


class _Cut(NamedTuple):
    """Way in which time is cut into intervals."""

    cron: str
    timezone: str


def _cut_of(job: JobConfig, key: str) -> _Cut:
    if job.schedule is None:
        raise ConfigError(
            f"the DAG run is for the partition '{key}', and {job.file} has no schedule that says how long it lasts. Nothing was done. Write "
            "schedule.cron and schedule.start, or give the operator interval_start and interval_end."
        )
    return _Cut(job.schedule.cron, job.schedule.timezone)


def _named(schedule: _Cut, key: str) -> DataInterval | None:
    """Return the interval of a schedule with this key; None if there is none."""
    zone = ZoneInfo(schedule.timezone)
    try:
        begin = datetime.strptime(key, KEY_FORMAT).replace(tzinfo=zone)
    except ValueError:
        return None
    near = takewhile(lambda interval: interval.start <= begin + _CHANGE_OF_CLOCKS, _intervals(schedule, begin))
    # By the text: where clocks go back at midnight, a day has two of them, and the schedule chooses.
    return next((interval for interval in near if _key(interval.start, zone) == key), None)


def _key(start: datetime, zone: ZoneInfo) -> str:
    return start.astimezone(zone).strftime(KEY_FORMAT)


def _starts(schedule: ScheduleConfig | None, start: datetime, end: datetime) -> Iterator[datetime]:
    if schedule is None:
        yield start
        return
    yield from takewhile(lambda begin: begin < end, (interval.start for interval in _intervals(schedule, start)))


def _intervals(schedule: _Cut | ScheduleConfig, since: datetime) -> Iterator[DataInterval]:
    """Yield the intervals of a schedule as Airflow's scheduler makes them, from the one in which a time lies."""
    # It imports Airflow's core, which DAG files need not import.
    from airflow.timetables.base import TimeRestriction
    from airflow.timetables.interval import CronDataIntervalTimetable

    timetable = CronDataIntervalTimetable(schedule.cron, schedule.timezone)
    nothing = TimeRestriction(earliest=None, latest=None, catchup=True)
    interval = timetable.infer_manual_data_interval(run_after=pendulum.instance(since - _BEFORE))
    while True:
        info = timetable.next_dagrun_info(last_automated_data_interval=interval, restriction=nothing)
        assert info is not None and info.data_interval is not None  # noqa: S101, PT018 - nothing restricts it
        interval = info.data_interval
        if interval.end > since:
            yield interval


def add_keys(event: Any, keys: Collection[str], own: str | None, *, with_plain: bool) -> None:
    """Let a task's event of an asset become one for each key, and `with_plain` one without a key as well.

    `own` is the key of the DAG run: Airflow gives it to events without one. DAGs with a plain schedule of assets start by events without a
    key alone.
    """
    if not keys or {*keys} == {own}:
        return
    event.add_partitions([*keys])
    if with_plain:
        # Airflow sends each element as the key of an event, and the API server takes None for an event without one.
        event.partition_keys.add(None)
