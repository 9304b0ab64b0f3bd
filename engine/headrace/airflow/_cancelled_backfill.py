"""Cancelled backfills: Airflow stops their queued DAG runs only, and their running ones ask here."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from headrace.airflow._rest import AirflowApi, ApiError, run_path

if TYPE_CHECKING:
    from airflow.sdk import Context


def is_cancelled(context: Context, log: Any) -> bool:
    """Return whether the backfill of this DAG run was cancelled. False without the connection `headrace_airflow_api`.

    Airflow closes a backfill when all its runs have ended, or when somebody cancels it. So a backfill that was closed after
    this run was queued, and that has the run's date, was cancelled. A run that was cleared later was queued later: it runs.
    An error of the API is only logged as a warning.
    """
    run = context["dag_run"]
    if run.run_type != "backfill" or run.logical_date is None or (api := AirflowApi.connected()) is None:
        return False
    try:
        queued = _moment(api.get(run_path(context["ti"])).get("queued_at"))
        backfills = api.get("/backfills", dag_id=context["ti"].dag_id, order_by="-id").get("backfills")
        return queued is not None and any(
            _has_ended(backfill, run.logical_date, queued) for backfill in _mappings(backfills)
        )
    except ApiError as error:
        log.warning("whether the backfill was cancelled is unknown, the run goes on: %s", error)
        return False


def _has_ended(backfill: Mapping[str, Any], date: datetime, after: datetime) -> bool:
    """Return whether a backfill with this date was closed `after` a moment."""
    first, last, closed = (_moment(backfill.get(name)) for name in ("from_date", "to_date", "completed_at"))
    return first is not None and last is not None and closed is not None and first <= date <= last and closed > after


def _mappings(content: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in content if isinstance(entry, Mapping)] if isinstance(content, list) else []


def _moment(text: Any) -> datetime | None:
    """Return an aware moment; None for anything else than one in ISO 8601."""
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
