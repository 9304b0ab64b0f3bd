"""Airflow's REST API for the demo: it repeats what Airflow refuses for the moment, and checks the form of each answer.

On SQLite, Airflow refuses requests while its scheduler writes; while it starts, it answers with errors, or not at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from http import HTTPStatus
from typing import Any, Final, TypeVar

import msgspec
import requests

T = TypeVar("T")

PATIENCE: Final = 180.0
ANSWERS_WITHIN: Final = 30.0
FIRST_WAIT, LONGEST_WAIT = 0.5, 8.0
"""Seconds."""

FOR_THE_MOMENT: Final = frozenset(
    {HTTPStatus.UNAUTHORIZED, HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS}
)
"""Refusals that may pass, beside all errors of the server. A token may have expired: each attempt without one logs in."""


class ApiError(Exception):
    """Airflow refuses a request. `status` is the status of its answer; None if there was no valid answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class BusyError(ApiError):
    """Airflow refuses a request for the moment, or its answer was lost: it may have done what it was asked for."""


class _Token(msgspec.Struct):
    access_token: str


class AirflowApi:
    """The API of one Airflow, as the user `admin`."""

    def __init__(
        self,
        url: str,
        password: str,
        *,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Store the address. `say` gets a sentence when a request is repeated; `check` raises if repeating makes no sense."""
        self._url, self._password = url, password
        self._say, self._check, self._sleep, self._now = say, check, sleep, now
        self._token = ""
        self._session = requests.Session()
        # Neither a proxy nor a .netrc has to do with an Airflow on this machine.
        self._session.trust_env = False

    def get(self, path: str, kind: type[T], **query: str) -> T:
        """Return a resource below /api/v2, as `kind`. Raises `ApiError`."""
        return self._repeated("GET", path, kind, query=query)

    def patch(self, path: str, body: Any, kind: type[T]) -> T:
        """Change a resource; the same change twice has the effect of one. Raises `ApiError`."""
        return self._repeated("PATCH", path, kind, body=body)

    def post(self, path: str, body: Any, kind: type[T]) -> T:
        """Post what may be posted twice. Raises `ApiError`."""
        return self._repeated("POST", path, kind, body=body)

    def post_once(self, path: str, body: Any, kind: type[T]) -> T:
        """Post without repeating. Raises `BusyError`: look whether Airflow has done it, before you post again. And `ApiError`."""
        return self._sent("POST", path, kind, body=body)

    def _repeated(self, method: str, path: str, kind: type[T], **content: Any) -> T:
        """Send a request until Airflow accepts or refuses it, for at most `PATIENCE` seconds."""
        deadline, wait, has_said = self._now() + PATIENCE, FIRST_WAIT, False
        while True:
            try:
                return self._sent(method, path, kind, **content)
            except BusyError as busy:
                self._check()
                if self._now() + wait > deadline:
                    raise ApiError(f"Airflow has not answered for {PATIENCE:.0f} s. {busy}", busy.status) from None
                if not has_said:
                    self._say(f"Airflow is busy, it is asked again ({busy})")
                has_said = True
            self._sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _sent(self, method: str, path: str, kind: type[T], **content: Any) -> T:
        if not self._token:
            user = {"username": "admin", "password": self._password}
            self._token = self._answered("POST", "/auth/token", _Token, body=user).access_token
        return self._answered(method, f"/api/v2{path}", kind, **content)

    def _answered(
        self, method: str, path: str, kind: type[T], *, body: Any = None, query: dict[str, str] | None = None
    ) -> T:
        token = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            answer = self._session.request(
                method,
                f"{self._url}{path}",
                json=body,
                params=query,
                headers=token,
                timeout=ANSWERS_WITHIN,
                allow_redirects=False,
            )
        except requests.RequestException as error:
            raise BusyError(f"{method} {path}: {type(error).__name__}") from None
        if answer.status_code == HTTPStatus.UNAUTHORIZED and token:
            self._token = ""
        return _content(answer, f"{method} {path}", kind, is_log_in=not token)


def _content(answer: requests.Response, request: str, kind: type[T], *, is_log_in: bool) -> T:
    """Return the content of an answer as `kind`. Raises `ApiError`, and `BusyError` for all but an answer of Airflow's own."""
    status = answer.status_code
    reason = f"{request}: {status} {_detail(answer)}".rstrip()
    is_wrong_password = is_log_in and status == HTTPStatus.UNAUTHORIZED
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR or (status in FOR_THE_MOMENT and not is_wrong_password):
        raise BusyError(reason, status)
    if status >= HTTPStatus.BAD_REQUEST:
        raise ApiError(f"Airflow refuses {reason}", status)
    try:
        return msgspec.json.decode(answer.content, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BusyError(f"{request}: the answer is not Airflow's", status) from None


def _detail(answer: requests.Response) -> str:
    """Return the first sentence of the reason that Airflow gives."""
    try:
        detail = msgspec.json.decode(answer.content, type=dict[str, Any]).get("detail", "")
    except (msgspec.DecodeError, UnicodeDecodeError):
        detail = answer.reason or ""
    return " ".join(str(detail).split()).partition(". ")[0][:200]
