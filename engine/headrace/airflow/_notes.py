"""Notes of a run's task: what it did, in a line, and what somebody has to know.

A note goes through Airflow's REST API: a task has no other way to write one.
"""

from __future__ import annotations

from datetime import MAXYEAR, MINYEAR, UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from headrace import clock
from headrace.airflow._partitions import zone_of
from headrace.airflow._rest import CONNECTION, LONGEST_NOTE, AirflowApi, ApiError, quoted, run_path
from headrace.airflow._results import Result
from headrace.config import JobConfig
from headrace.names import counted

if TYPE_CHECKING:
    from airflow.sdk import Context


def note_of(job: JobConfig, result: Result) -> str:
    """Return the note of a run that has ended well: a line of numbers, then a sentence for each thing that somebody has to know."""
    return "; ".join(filter(None, (summary(job, result), done(result), degraded(result))))


def summary(job: JobConfig, result: Result) -> str:
    """Return what a run did, in a line: its interval, rows, checkpoint, watermark, and what waits or was late.

    Times are in the time zone of the job's days, and have a year if it is not this one.
    """
    zone = ZoneInfo(zone_of(job))
    interval = [datetime.fromisoformat(text).astimezone(zone) for text in result["interval"] or ()]
    days = _span(*interval) if interval else None
    late = sum(counts["behind"] for counts in result.get("row_times", {}).values())
    checkpoint = result["checkpoint"]
    parts = (
        days,
        counted(result["rows_in"], "row"),
        None if checkpoint is None else f"checkpoint {checkpoint}",
        _watermark(result["watermark"], zone, interval),
        f"{result['waiting']:,} waiting",
        f"{late:,} late",
    )
    return " · ".join(filter(None, parts))


def _span(start: datetime, end: datetime) -> str:
    """Return an interval in words: a day, days, or times within them."""
    last = end - timedelta(milliseconds=1)
    if start.timetz() == end.timetz() == start.min.replace(tzinfo=start.tzinfo).timetz():
        return _day(start) if start.date() == last.date() else f"{_day(start)} to {_day(last)}"
    until = f"{end:%H:%M}" if start.date() == end.date() else f"{_day(end)} {end:%H:%M}"
    return f"{_day(start)} {start:%H:%M} to {until}"


def _watermark(text: str | None, zone: ZoneInfo, interval: list[datetime]) -> str | None:
    """Return the watermark in words, without its day if that is the last one of the interval."""
    if text is None:
        return None
    time = datetime.fromisoformat(text)
    if time.year in {MINYEAR, MAXYEAR}:  # before the first event, and behind the last one
        return None if time.year == MINYEAR else "watermark at the end of time"
    time = time.astimezone(zone)
    is_of_day = bool(interval) and (interval[1] - timedelta(milliseconds=1)).date() == time.date()
    return f"watermark {'' if is_of_day else f'{_day(time)} '}{time:%H:%M}"


def _day(day: date) -> str:
    """Return a day such as 10 Jan, with its year if it is not this one."""
    today = datetime.fromtimestamp(clock.now() / 1000, UTC)
    return f"{day.day} {day:%b}" if day.year == today.year else f"{day.day} {day:%b} {day.year}"


def degraded(result: Result) -> str | None:
    """Return sentences on raised alerts, waiting elements, rows in quarantine, and warnings of the run; None if there are none."""
    job, waiting, quarantined = result["job"], result["waiting"], result["quarantined"]
    sentences = [f"alert: {alert['sentence']}" for alert in result.get("alerts", ()) if alert["is_raised"]]
    if waiting:
        sentences.append(
            f"{counted(waiting, 'element waits', 'elements wait')} for services (headrace waiting {job} --calls)"
        )
    if quarantined:
        sentences.append(
            f"{counted(quarantined, 'row of this run is', 'rows of this run are')} in the quarantine (headrace quarantine {job})"
        )
    sentences += [warning["message"] for warning in result.get("warnings", ())]
    return "; ".join(sentences) or None


def done(result: Result) -> str | None:
    """Return a sentence on a run whose interval had been taken in before, with the same input; None for other runs."""
    if result["stopped_because"] != "done" or result["interval"] is None:
        return None
    start, end = result["interval"]
    return f"interval {start} to {end} was taken in before, and its input is the same: there was nothing to do"


def write_note(context: Context, text: str, log: Any) -> None:
    """Put a note on the task instance, through the connection `headrace_airflow_api`; without one, do nothing.

    The connection has login and password of an Airflow user who may edit task instances; without a host, it uses the server
    of [api] base_url. An error is only logged as a warning: a run must not fail for a note.
    """
    api = AirflowApi.connected()
    if api is None:
        log.debug("no note was written: there is no connection %s", CONNECTION)
        return
    try:
        api.patch(_path(context["ti"]), {"note": text[:LONGEST_NOTE]}, update_mask="note")
    except ApiError as error:
        log.warning("no note was written through connection %s: %s", CONNECTION, error)


def _path(task_instance: Any) -> str:
    path = f"{run_path(task_instance)}/taskInstances/{quoted(task_instance.task_id)}"
    index = getattr(task_instance, "map_index", -1)
    return f"{path}/{index}" if index is not None and index >= 0 else path
