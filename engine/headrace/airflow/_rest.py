"""Airflow's REST API for tasks: notes and backfills have no other way. It repeats what Airflow refuses for the moment."""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import quote

from airflow.sdk import BaseHook, conf
from airflow.sdk.exceptions import AirflowNotFoundException

from headrace import clock

if TYPE_CHECKING:
    from airflow.sdk import Connection


CONNECTION: Final = "headrace_airflow_api"
LONGEST_NOTE: Final = 1000
"""Most characters of a note."""
_ANSWERS_WITHIN: Final = 10
_WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt: a run must not wait for its note for long."""


class ApiError(Exception):
    """Airflow's API refuses a request, or gives no valid answer, also after some attempts. The message says which and why."""


class _BusyError(ApiError):
    """A request failed in a way that may pass."""


class AirflowApi:
    """The API, as the user of the connection `headrace_airflow_api`."""

    def __init__(self, base: str, login: str | None, password: str | None) -> None:
        self._base, self._user = base, {"username": login, "password": password}
        self._token = ""

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

    def get(self, path: str, **query: str) -> Mapping[str, Any]:
        """Return a resource below /api/v2. Raises `ApiError`."""
        return self._repeated("GET", path, query, None)

    def patch(self, path: str, body: Mapping[str, Any], **query: str) -> None:
        """Change a resource. Raises `ApiError`."""
        self._repeated("PATCH", path, query, body)

    def _repeated(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        for wait in _WAITS:
            try:
                return self._sent(method, path, query, body)
            except _BusyError:
                clock.sleep(wait)
        return self._sent(method, path, query, body)

    def _sent(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        if not self._token:
            token = _answer("POST", f"{self._base}/auth/token", {}, self._user, {}).get("access_token")
            if not isinstance(token, str):
                raise _BusyError("POST /auth/token: the answer is not Airflow's")
            self._token = token
        headers = {"Authorization": f"Bearer {self._token}"}
        return _answer(method, f"{self._base}/api/v2{path}", query, body, headers)


def run_path(task_instance: Any) -> str:
    """Return the path of the DAG run of a task instance."""
    return f"/dags/{quoted(task_instance.dag_id)}/dagRuns/{quoted(task_instance.run_id)}"


def quoted(name: str) -> str:
    """Return a name as a part of a path."""
    return quote(name, safe="")


def _answer(
    method: str, address: str, query: Mapping[str, str], body: Any, headers: Mapping[str, str]
) -> Mapping[str, Any]:
    """Send one request; return the object that Airflow answers with. Raises `ApiError`."""
    import requests

    try:
        answer = requests.request(
            method, address, params=query, json=body, headers=headers, timeout=_ANSWERS_WITHIN, allow_redirects=False
        )
    except (requests.RequestException, UnicodeError) as error:
        raise _BusyError(f"{method} {address}: {error}") from None
    status, request = answer.status_code, f"{method} {address}: {answer.status_code} {answer.reason}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise _BusyError(request)
    if status >= HTTPStatus.BAD_REQUEST:
        raise ApiError(request)
    try:
        content = json.loads(answer.content)
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise _BusyError(f"{method} {address}: the answer is not Airflow's")
    return content


def _base(connection: Connection) -> str:
    if not connection.host:
        return str(conf.get("api", "base_url")).rstrip("/")
    port = f":{connection.port}" if connection.port else ""
    return f"{connection.schema or 'http'}://{connection.host}{port}"
