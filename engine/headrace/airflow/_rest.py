"""Airflow's REST API for tasks, as the user of a connection: notes and backfills have no other way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from airflow.sdk import BaseHook, conf
from airflow.sdk.exceptions import AirflowNotFoundException

from headrace import airflow_api
from headrace.airflow_api import CONNECTION, LONGEST_NOTE, ApiError, quoted

if TYPE_CHECKING:
    from airflow.sdk import Connection

__all__ = ["CONNECTION", "LONGEST_NOTE", "AirflowApi", "ApiError", "quoted", "run_path"]


class AirflowApi(airflow_api.AirflowApi):
    """The API, as the user of the connection `headrace_airflow_api`."""

    @classmethod
    def connected(cls) -> Self | None:
        """Return the API of the connection `headrace_airflow_api`; None without that connection.

        A connection without a host uses the server of [api] base_url.
        """
        try:
            connection = BaseHook.get_connection(CONNECTION)
        except AirflowNotFoundException:
            return None
        return cls(_base(connection), connection.login, connection.password)


def run_path(task_instance: Any) -> str:
    """Return the path of the DAG run of a task instance."""
    return f"/dags/{quoted(task_instance.dag_id)}/dagRuns/{quoted(task_instance.run_id)}"


def _base(connection: Connection) -> str:
    if not connection.host:
        return str(conf.get("api", "base_url")).rstrip("/")
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{connection.host}{port}"
