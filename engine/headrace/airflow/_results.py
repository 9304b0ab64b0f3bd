"""Results of a run's task where Airflow shows them: assets, links and lineage. A task pushes each link as an XCom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import attrs
from airflow.sdk import Asset, BaseOperatorLink, conf
from airflow.sdk.exceptions import AirflowRuntimeError

from headrace.airflow._partitions import add_keys
from headrace.config import JobConfig, datasets_of

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator, Context
    from airflow.sdk.types import TaskInstanceKey


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


def announce(result: Result, outlets: Sequence[Any], context: Context, keys: Sequence[str] = ()) -> list[Any]:
    """Put the result into the events of the sinks' assets; return the outlets without sinks that have no news.

    A sink has news if no event has reported its last checkpoint: a failed run may have published one, and the next run then reports
    it. Outlets that are not sinks of the job stay. With `keys` of partitions, each sink has an event for each of them, also without news:
    the partition is complete.
    """
    kept = []
    own = getattr(context["dag_run"], "partition_key", None)
    for outlet in outlets:
        sink = _sink_of(outlet, result)
        if sink is None:
            kept.append(outlet)
            continue
        has_news = _has_news(outlet, sink, result)
        if has_news or keys:
            about, event = result["sinks"][sink], context["outlet_events"][outlet]
            event.extra.update({**result, "sink": sink, "rows": about["rows"], "version": about["version"]})
            add_keys(event, keys, own, with_plain=has_news)
            kept.append(outlet)
    return kept


def keep_position(context: Context, result: Result, log: Any) -> None:
    """Keep checkpoint and watermark of a run in the state store of its task, where Airflow has one (3.3 does).

    An error is only logged as a warning: the run has committed.
    """
    store = context.get("task_state_store")
    position = {name: result[name] for name in ("checkpoint", "watermark") if result[name] is not None}
    if store is not None and position:
        try:
            store.set("headrace", position)
        except Exception as error:  # noqa: BLE001  a state store may be anybody's code
            log.warning("checkpoint and watermark are not in the task's state store: %s", error)


def announce_promotion(
    report: Mapping[str, Any], outlets: Sequence[Any], context: Context, keys_of: Callable[[Any], Sequence[str]]
) -> list[Any]:
    """Let the assets of sinks tell of a promotion; return the outlets without sinks that it did not change.

    `report` is that of `headrace backfill --days`, `keys_of` returns the keys of intervals. A sink has an event for each day whose rows the
    promotion changed, and one without a key.
    """
    changed = {table["table"]: table for table in report["differences"]["tables"] if table["is_sink"]}
    kept = []
    for outlet in outlets:
        sink, checkpoint = outlet.extra["sink"], report["promotion"]
        if (table := changed.get(sink)) is None:
            continue
        rows = sum(counts.get(change, 0) for counts in table["counts"] for change in ("added", "gone", "changed"))
        event, keys = context["outlet_events"][outlet], keys_of(table["intervals"])
        named = {name: report[name] for name in ("job", "run_id", "name", "checkpoint", "from", "to", "promotion")}
        # Runs look for the last checkpoint that an event has reported of a sink.
        about = {"rows": rows, "version": None, "checkpoint": checkpoint}
        event.extra.update(
            {**named, "checkpoint": checkpoint, "sink": sink, "rows": rows, "days": [*keys], "sinks": {sink: about}}
        )
        add_keys(event, keys, None, with_plain=True)
        kept.append(outlet)
    return kept


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


@attrs.define()
class CheckpointLink(BaseOperatorLink):
    """Link to the last checkpoint of a run."""

    name = "Headrace checkpoint"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  Airflow calls it so
        """Return the address once the task has ended; an empty text if it has made no checkpoint."""
        return str(getattr(operator, "checkpoint_link", ""))


@attrs.define()
class SparkUiLink(BaseOperatorLink):
    """Link to the UI of the run's Spark. It exists during the run, unless the profile turns it off."""

    name = "Spark UI"

    def get_link(self, operator: BaseOperator, *, ti_key: TaskInstanceKey) -> str:  # noqa: ARG002  Airflow calls it so
        """Return the address once the task has ended; an empty text if Spark had no UI."""
        return str(getattr(operator, "spark_ui_link", ""))


def result_page(task_instance: Any) -> str:
    """Return the address of the page in Airflow's UI that shows a task's result."""
    base = conf.get("api", "base_url", fallback="/").rstrip("/")
    dag, run, task = (
        quote(str(part), safe="") for part in (task_instance.dag_id, task_instance.run_id, task_instance.task_id)
    )
    return f"{base}/dags/{dag}/runs/{run}/tasks/{task}/xcom"


def reports_lineage() -> bool:
    """Return whether Airflow's OpenLineage provider is installed, so that it sends the events of tasks."""
    return find_spec("airflow.providers.openlineage") is not None


def operator_lineage(job: JobConfig, described: Mapping[str, Any] | None = None) -> Any:
    """Return the provider's `OperatorLineage` for a run of a job; None if the provider is not installed.

    `described` has the datasets with columns and their lineage, as the run reports them; None: only their places are known.

    Raises `ModuleNotFoundError` when the provider is installed without its own dependencies.
    """
    try:
        lineage = import_module("airflow.providers.openlineage.extractors").OperatorLineage
        dataset = import_module("openlineage.client.event_v2").Dataset
    except ModuleNotFoundError as error:
        if str(error.name).startswith(("airflow.providers.openlineage", "openlineage")):
            return None
        raise
    if described is None:
        inputs, outputs = ([named._asdict() for named in datasets.values()] for datasets in datasets_of(job))
    else:
        inputs, outputs = described["inputs"], described["outputs"]
    return lineage(inputs=[dataset(**plain) for plain in inputs], outputs=[dataset(**plain) for plain in outputs])
