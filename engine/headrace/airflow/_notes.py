"""Notes on task instances, through Airflow's REST API: a task has no other way to write one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from airflow.sdk import BaseHook, conf
from airflow.sdk.exceptions import AirflowNotFoundException

if TYPE_CHECKING:
    from airflow.sdk import Connection, Context

CONNECTION = "headrace_airflow_api"
_PATIENCE = 10
_LONGEST = 1000


def write_note(context: Context, text: str, log: Any) -> None:
    """Put a note on the task instance, through the connection `headrace_airflow_api`; without one, do nothing.

    The connection has login and password of an Airflow user who may edit task instances; without a host, it uses the server
    of [api] base_url. An error is only logged as a warning: a run must not fail for a note.
    """
    import requests

    try:
        connection = BaseHook.get_connection(CONNECTION)
    except AirflowNotFoundException:
        log.debug("no note was written: there is no connection %s", CONNECTION)
        return
    try:
        _patch(_base(connection), connection, context["ti"], text[:_LONGEST])
    except (requests.RequestException, KeyError) as error:
        log.warning("no note was written through connection %s: %s", CONNECTION, error)


def _base(connection: Connection) -> str:
    if not connection.host:
        return str(conf.get("api", "base_url")).rstrip("/")
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{connection.host}{port}"


def _patch(base: str, connection: Connection, task_instance: Any, text: str) -> None:
    import requests

    user = {"username": connection.login, "password": connection.password}
    answer = requests.post(f"{base}/auth/token", json=user, timeout=_PATIENCE)
    answer.raise_for_status()
    dag, run, task = (
        quote(str(part), safe="") for part in (task_instance.dag_id, task_instance.run_id, task_instance.task_id)
    )
    path = f"{base}/api/v2/dags/{dag}/dagRuns/{run}/taskInstances/{task}"
    if (index := getattr(task_instance, "map_index", -1)) is not None and index >= 0:
        path = f"{path}/{index}"
    requests.patch(
        path,
        params={"update_mask": "note"},
        json={"note": text},
        headers={"Authorization": f"Bearer {answer.json()['access_token']}"},
        timeout=_PATIENCE,
    ).raise_for_status()
