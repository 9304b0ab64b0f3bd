"""Airflow's REST API: requests as a user of Airflow. It repeats what Airflow refuses for the moment.

Tasks and the command line use it; nothing of it imports Airflow.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

from headrace import clock

CONNECTION: Final = "headrace_airflow_api"
LONGEST_NOTE: Final = 1000
"""Most characters of a note."""
_ANSWERS_WITHIN: Final = 10
_WAITS: Final = (1.0, 2.0, 4.0, 8.0)
"""Seconds before each further attempt: a run must not wait for its note for long."""


class ApiError(Exception):
    """Airflow's API refuses a request, or gives no valid answer, also after some attempts. The message says which and why."""

    def __init__(self, message: str, status: int | None = None, detail: str = "") -> None:
        super().__init__(f"{message}: {detail}" if detail else message)
        self.status, self.detail = status, detail


class BusyError(ApiError):
    """A request failed in a way that may pass. Airflow may have done what it was asked for."""


class AirflowApi:
    """The API of one Airflow, as one of its users."""

    def __init__(self, base: str, login: str | None, password: str | None) -> None:
        self._base, self._user = base, {"username": login, "password": password}
        self._token = ""

    def get(self, path: str, **query: str) -> Mapping[str, Any]:
        """Return a resource below /api/v2. Raises `ApiError`."""
        return self._repeated("GET", path, query, None)

    def patch(self, path: str, body: Mapping[str, Any], **query: str) -> None:
        """Change a resource. Raises `ApiError`."""
        self._repeated("PATCH", path, query, body)

    def put(self, path: str) -> Mapping[str, Any]:
        """Put what may be put twice. Raises `ApiError`."""
        return self._repeated("PUT", path, {}, None)

    def post_once(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Post without repeating. Raises `BusyError`: look whether Airflow has done it, before you post again. And `ApiError`."""
        return self._sent("POST", path, {}, body)

    def _repeated(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        for wait in _WAITS:
            try:
                return self._sent(method, path, query, body)
            except BusyError:
                clock.sleep(wait)
        return self._sent(method, path, query, body)

    def _sent(self, method: str, path: str, query: Mapping[str, str], body: Any) -> Mapping[str, Any]:
        if not self._token:
            token = _answer("POST", f"{self._base}/auth/token", {}, self._user, {}).get("access_token")
            if not isinstance(token, str):
                raise BusyError("POST /auth/token: the answer is not Airflow's")
            self._token = token
        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            return _answer(method, f"{self._base}/api/v2{path}", query, body, headers)
        except ApiError as error:
            if error.status == HTTPStatus.UNAUTHORIZED:  # a token lasts for a day
                self._token = ""
            raise


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
        raise BusyError(f"{method} {address}: {error}") from None
    status, request = answer.status_code, f"{method} {address}: {answer.status_code} {answer.reason}"
    content = _content(answer.content)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS:
        raise BusyError(request, status, _detail(content))
    if status >= HTTPStatus.BAD_REQUEST:
        raise ApiError(request, status, _detail(content))
    if content is None:
        raise BusyError(f"{method} {address}: the answer is not Airflow's")
    return content


def _content(raw: bytes) -> dict[str, Any] | None:
    """Return the object of an answer; None if it is none."""
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _detail(content: Mapping[str, Any] | None) -> str:
    """Return the reason that Airflow gives, in one line; empty if it gives none."""
    detail = (content or {}).get("detail", "")
    return " ".join(detail.split())[:_LONGEST_DETAIL] if isinstance(detail, str) else ""


_LONGEST_DETAIL: Final = 300
