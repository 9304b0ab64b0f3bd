"""Notes on task instances, through Airflow's REST API: a task has no other way to write one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from headrace.airflow._rest import CONNECTION, AirflowApi, ApiError, run_path

if TYPE_CHECKING:
    from airflow.sdk import Context

_LONGEST = 1000


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
        api.patch(_path(context["ti"]), {"note": text[:_LONGEST]}, update_mask="note")
    except ApiError as error:
        log.warning("no note was written through connection %s: %s", CONNECTION, error)


def _path(task_instance: Any) -> str:
    path = f"{run_path(task_instance)}/taskInstances/{quote(task_instance.task_id, safe='')}"
    index = getattr(task_instance, "map_index", -1)
    return f"{path}/{index}" if index is not None and index >= 0 else path
