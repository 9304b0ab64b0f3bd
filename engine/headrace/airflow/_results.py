"""What a run returns, which assets it updates, and what it warns of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset
from airflow.sdk.exceptions import AirflowRuntimeError

from headrace.config import JobConfig

if TYPE_CHECKING:
    from airflow.sdk import Context

Result = dict[str, Any]
"""The report of `headrace run`, with `interval` as a pair. It is the XCom of the task."""


def sink_asset(job: str, sink: str, path: str) -> Asset:
    """Return the asset of a sink at `path` (a folder or a URI), as the run operator updates it and a DAG is scheduled by it."""
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

    News is what no event has told: a failed run may have published a checkpoint, and the next one then tells of it.
    Outlets that are no sink of the job stay as they are.
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
    """Return a sentence about what a run left undone or set aside; None if there is nothing to say."""
    job, waiting, quarantined = result["job"], result["waiting"], result["quarantined"]
    sentences = []
    if waiting:
        sentences.append(f"{waiting:,} elements wait for services (headrace retries {job})")
    if quarantined:
        sentences.append(f"{quarantined:,} rows of this run are in the quarantine (headrace quarantine {job})")
    return "; ".join(sentences) or None


def _sink_of(outlet: Any, result: Result) -> str | None:
    """Return the sink that an outlet stands for; None if it is something else."""
    if not isinstance(outlet, Asset) or outlet.extra.get("job") != result["job"]:
        return None
    sink = outlet.extra.get("sink")
    return sink if isinstance(sink, str) and sink in result["sinks"] else None


def _has_news(asset: Asset, sink: str, result: Result) -> bool:
    """Tell whether the sink has a checkpoint that the asset's last event did not tell of. In doubt there is news."""
    about = result["sinks"][sink]
    if about["version"] is None:
        return bool(about["rows"])
    if about["checkpoint"] is None:
        return False
    told = _last_told(asset, sink)
    return (
        told is None or told.get("checkpoint") != about["checkpoint"] or (told.get("version") or 0) > about["version"]
    )


def _last_told(asset: Asset, sink: str) -> Result | None:
    """Return what the asset's last event says of the sink; None if there is none, or it says nothing."""
    from airflow.sdk.execution_time.context import InletEventsAccessor

    events = InletEventsAccessor(asset_name=asset.name, asset_uri=asset.uri).ascending(False).limit(1)
    try:
        extras: list[Any] = [event.extra for event in events]
    except AirflowRuntimeError:
        return None
    told = (extras[0] or {}).get("sinks", {}).get(sink) if extras else None
    return told if isinstance(told, dict) else None
