"""Requests for the replay DAG of a job: events of an asset, each with an interval. Airflow joins waiting events into one DAG run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowFailException

from headrace.airflow._difference_summary import day_text
from headrace.airflow._rest import LONGEST_NOTE, AirflowApi, ApiError, quoted
from headrace.config import JobConfig

if TYPE_CHECKING:
    from airflow.sdk import Context


def replay_id(job: str) -> str:
    """Return the id of a job's replay DAG."""
    return f"{job}_replay"


def has_replay_dag(job: JobConfig) -> bool:
    """Return whether a job has a replay DAG: its file allows it, a branch can take in its input again, and its driver can report.

    A driver in cluster mode cannot report to its task.
    """
    sources = job.sources.values()
    has_intervals = all(source.interval is not None for source in sources)
    return job.replay.dag and has_intervals and job.profile.deploy_mode == "client"


def replay_asset(job: str) -> Asset:
    """Return the asset whose events request intervals. It schedules the replay DAG.

    It has the name of the DAG, without a dot; names of sinks' assets have one.
    """
    return Asset(name=replay_id(job), group="headrace", extra={"job": job})


def register(job: str, start: str, end: str, outlets: Sequence[Any], context: Context) -> list[Any]:
    """Request an interval to be taken in again; return the outlet of the request: only the asset, nothing if the task does not have it."""
    asset = replay_asset(job)
    registered = [outlet for outlet in outlets if outlet == asset]
    for outlet in registered:
        context["outlet_events"][outlet].extra.update({"from": start, "to": end, "run_id": context["run_id"]})
    return registered


def without_replay(job: str, outlets: Sequence[Any]) -> list[Any]:
    """Return the outlets of a run without a request."""
    asset = replay_asset(job)
    return [outlet for outlet in outlets if outlet != asset]


def requested(context: Context) -> tuple[str, str]:
    """Return start and end of the interval for a run of the replay DAG: the span of all requests and of its params.

    Raises `AirflowFailException` without both, and for an invalid timestamp.
    """
    events = [event for of_asset in context["triggering_asset_events"].values() for event in of_asset]
    wishes = [event.extra for event in events]
    params = {"from": context["params"]["from"], "to": context["params"]["to"]}
    if any(params.values()) or not wishes:
        wishes.append(params)
    try:
        start = min(_timestamp(wish["from"]) for wish in wishes)
        end = max(_timestamp(wish["to"]) for wish in wishes)
    except (KeyError, TypeError, ValueError) as error:
        raise AirflowFailException(
            f"this run of the DAG names no interval ({error}). Trigger it with the params 'from' and 'to', such as 2013-01-10 and "
            "2013-01-11; or clear the task 'run' of the job's DAG for that day. Nothing was done."
        ) from None
    return start.isoformat(), end.isoformat()


def tell_requesters(context: Context, text_of: Callable[[str, str], str], log: Any) -> None:
    """Put a note on each task that has requested an interval: its start and end, and the text for them.

    So Airflow's grid says where its replay stands, and of which day: Airflow names a run after the end of its interval.

    Does nothing without the connection `headrace_airflow_api`. An error is only logged as a warning.
    """
    api = AirflowApi.connected()
    events = [event for of_asset in context["triggering_asset_events"].values() for event in of_asset]
    requests = {(event.source_dag_id, event.source_run_id, event.source_task_id): event.extra for event in events}
    try:
        for (dag, run, task), wish in requests.items():
            if api is not None and dag is not None:
                path = "/".join(("/dags", quoted(dag), "dagRuns", quoted(run), "taskInstances", quoted(task)))
                start, end = _shown(wish["from"]), _shown(wish["to"])
                note = f"{day_text(start)} to {day_text(end)}: {text_of(start, end)}"
                api.patch(path, {"note": note[:LONGEST_NOTE]}, update_mask="note")
    except ApiError as error:
        log.warning("the days of this replay have no notes of it: %s", error)


def _shown(text: str) -> str:
    """Return a timestamp as reports of commands write it."""
    return _timestamp(text).isoformat().replace("+00:00", "Z")


def _timestamp(text: str | None) -> datetime:
    """Return a timestamp in UTC. Raises `ValueError` or `TypeError` for an invalid text."""
    if text is None:
        raise ValueError("'from' or 'to' is missing")
    timestamp = datetime.fromisoformat(text)
    return timestamp.replace(tzinfo=UTC) if timestamp.tzinfo is None else timestamp.astimezone(UTC)
