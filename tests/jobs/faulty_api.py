"""An Airflow API whose answers fail in all the ways that a network, a proxy or a busy server knows."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from hypothesis import strategies as st

Fault = tuple[Any, ...]
Answers = Callable[[str, str, Any], tuple[int, Any]]
"""What a healthy server answers to a method, a path with its query, and a body: a status, and a content for JSON."""

FOR_THE_MOMENT = (429, 500, 502, 503, 504)
FOR_GOOD = (400, 403, 404, 405, 422)

_bodies = st.one_of(
    st.just(b""),
    st.just(b'{"detail": "Database is locked. Use PostgreSQL."}'),
    st.just(b"<html><body>Bad Gateway</body></html>"),
    st.binary(max_size=40),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=3),
        max_leaves=5,
    ).map(lambda content: json.dumps(content).encode()),
)
passing_faults = st.one_of(
    st.tuples(st.just("answers"), st.sampled_from(FOR_THE_MOMENT), _bodies),
    st.tuples(st.just("closes")),
    st.tuples(st.just("closes after the work")),
    st.tuples(st.just("breaks off"), st.integers(0, 20)),
    st.tuples(st.just("sends"), st.binary(min_size=1, max_size=60)),
    st.tuples(
        st.just("answers"),
        st.sampled_from((200, 201, 301, 307)),
        st.just(b"<html>Sign in to the hotel's network</html>"),
    ),
)
"""Problems after which a request may be sent again."""
all_faults = st.one_of(
    passing_faults,
    st.tuples(st.just("answers"), st.sampled_from((*FOR_GOOD, 401, 409, 204)), _bodies),
    st.tuples(st.just("answers"), st.sampled_from((200, 201)), _bodies),
)


class FaultyApi(ThreadingHTTPServer):
    """Answers with the next of its `faults`; without any, as `answers` says. Keeps the requests that it has worked on."""

    daemon_threads = True

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.faults: list[Fault] = []
        self.requests: list[tuple[str, str, Any]] = []
        self.authorizations: list[str | None] = []

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: the client has gone."""


class _Handler(BaseHTTPRequestHandler):
    server: FaultyApi

    def _handle(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fault = self.server.faults.pop(0) if self.server.faults else ("works",)
        self.close_connection = True
        match fault:
            case ("works",):
                status, content = self._work(body)
                self._answer(status, json.dumps(content).encode())
            case ("answers", status, content):
                self._answer(status, content)
            case ("closes after the work",):
                self._work(body)
            case ("breaks off", length):
                self._answer(200, b"{" * length, claimed=length + 10)
            case ("sends", content):
                self.wfile.write(content)

    do_GET = do_POST = do_PATCH = do_PUT = _handle  # noqa: N815  the names of the base class

    def _work(self, body: Any) -> tuple[int, Any]:
        self.server.requests.append((self.command, self.path, body))
        self.server.authorizations.append(self.headers["Authorization"])
        if urlsplit(self.path).path == "/auth/token":
            is_right = body["password"] == "right"  # noqa: S105  what the tests send
            return (201, {"access_token": "T"}) if is_right else (401, {"detail": "Invalid credentials"})
        return self.server.answers(self.command, self.path, body)

    def _answer(self, status: int, content: bytes, claimed: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) if claimed is None else claimed))
        self.send_header("Location", "/elsewhere")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def faulty_api(answers: Answers) -> Iterator[FaultyApi]:
    """Run such a server for the length of a block."""
    with FaultyApi(answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            with suppress(OSError):
                server.shutdown()
            thread.join()
