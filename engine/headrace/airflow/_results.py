"""Result of a run's task: its report, the assets that it updates, and its warnings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError

from headrace.config import JobConfig
from headrace.names import counted

if TYPE_CHECKING:
    from airflow.sdk import Context

Result = dict[str, Any]
"""Report of `headrace run`, with `interval` as a pair: the XCom of the task."""


def sink_asset(job: str, sink: str, path: str) -> Asset:
    """Return the asset of a sink at `path` (a folder or a URI). The run operator updates it, and it can schedule DAGs."""
    return Asset(
        name=f"{job}.{sink}",
        uri=path if "://" in path else f"file://{path}",
        group="headrace",
        extra={"job": job, "sink": sink},
    )


def sink_assets(job: JobConfig) -> list[Asset]:
    """Return the assets of all sinks of a job."""
    return [sink_asset(job.job, sink, config.path) for sink, config in job.sinks.items()]


def result_of(report: Result) -> Result:
    """Return the report of a run as the task returns it."""
    start, end = report["interval_start"], report["interval_end"]
    rest = {name: value for name, value in report.items() if name not in {"interval_start", "interval_end"}}
    return {**rest, "interval": None if start is None or end is None else [start, end]}


def announce(result: Result, outlets: Sequence[Any], context: Context) -> list[Any]:
    """Put the result into the events of the sinks' assets; return the outlets without sinks that have no news.

    A sink has news if no event has reported its last checkpoint: a failed run may have published one, and the next run then reports
    it. Outlets that are not sinks of the job stay.
    """
    kept = []
    for outlet in outlets:
        sink = _sink_of(outlet, result)
        if sink is None:
            kept.append(outlet)
        elif _has_news(outlet, sink, result):
            about = result["sinks"][sink]
            context["outlet_events"][outlet].extra.update(
                {**result, "sink": sink, "rows": about["rows"], "version": about["version"]}
            )
            kept.append(outlet)
    return kept


def degraded(result: Result) -> str | None:
    """Return a sentence on waiting elements, rows in quarantine, and the warnings of the run; None if there are none."""
    job, waiting, quarantined = result["job"], result["waiting"], result["quarantined"]
    sentences = []
    if waiting:
        sentences.append(f"{counted(waiting, 'element waits', 'elements wait')} for services (headrace retries {job})")
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


def _sink_of(outlet: Any, result: Result) -> str | None:
    """Return the sink of an outlet; None if it is not a sink of the job."""
    if not isinstance(outlet, Asset) or outlet.extra.get("job") != result["job"]:
        return None
    sink = outlet.extra.get("sink")
    return sink if isinstance(sink, str) and sink in result["sinks"] else None


def _has_news(asset: Asset, sink: str, result: Result) -> bool:
    """Return whether the sink has a checkpoint that the asset's last event did not report. True if unknown."""
    about = result["sinks"][sink]
    if about["version"] is None:
        return bool(about["rows"])
    if about["checkpoint"] is None:
        return False
    reported = _last_told(asset, sink)
    return (
        reported is None
        or reported.get("checkpoint") != about["checkpoint"]
        or (reported.get("version") or 0) > about["version"]
    )


def _last_told(asset: Asset, sink: str) -> Result | None:
    """Return the sink's entry in the asset's last event; None without one."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).ascending(False).limit(1)
    try:
        extras: list[Any] = [event.extra for event in events]
    except AirflowRuntimeError:
        return None
    reported = (extras[0] or {}).get("sinks", {}).get(sink) if extras else None
    return reported if isinstance(reported, dict) else None
