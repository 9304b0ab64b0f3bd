"""Notes on task instances: the requests to Airflow's REST API, and runs whose note is refused."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest

from headrace.airflow._results import write_note

CONTEXT = {"ti": SimpleNamespace(dag_id="flights", task_id="run", run_id="manual__1+00:00", map_index=-1)}


class Log:
    def __init__(self) -> None:
        self.warnings = []

    def debug(self, *_: object) -> None:
        pass

    def warning(self, text: str, *arguments: object) -> None:
        self.warnings.append(text % arguments)


class ApiServer(HTTPServer):
    """A server that keeps what is asked: path, header and body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Api)
        self.asked: list[tuple[str, str | None, object]] = []


class Api(BaseHTTPRequestHandler):
    """Stands in for Airflow's API: gives a token for one password, and records the requests."""

    server: ApiServer

    def do_POST(self):
        right = self._body()["password"] == "right"  # noqa: S105  what the test sends
        self._answer(201 if right else 401, {"access_token": "T"} if right else {})

    def do_PATCH(self):
        self.server.asked.append((self.path, self.headers["Authorization"], self._body()))
        self._answer(200, {})

    def _body(self):
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer(self, code, content):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def api(monkeypatch):
    with ApiServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def connect(monkeypatch, port, password):
    connection = {"conn_type": "http", "host": "127.0.0.1", "port": port, "login": "bot", "password": password}
    monkeypatch.setenv("AIRFLOW_CONN_HEADRACE_AIRFLOW_API", json.dumps(connection))


def test_note_is_stored_on_the_task_instance(api, monkeypatch):
    connect(monkeypatch, api.server_port, "right")
    log = Log()
    write_note(CONTEXT, "3 elements wait", log)

    path = "/api/v2/dags/flights/dagRuns/manual__1%2B00%3A00/taskInstances/run?update_mask=note"
    assert (api.asked, log.warnings) == ([(path, "Bearer T", {"note": "3 elements wait"})], [])


def test_refused_note_is_a_warning(api, monkeypatch):
    connect(monkeypatch, api.server_port, "wrong")
    log = Log()
    write_note(CONTEXT, "3 elements wait", log)

    assert api.asked == []
    (warning,) = log.warnings
    assert warning.startswith("no note was written through connection headrace_airflow_api: POST http://127.0.0.1:")
    assert warning.endswith("/auth/token: 401 Unauthorized")


def test_without_a_connection_there_is_no_note():
    log = Log()
    write_note(CONTEXT, "3 elements wait", log)

    assert log.warnings == []
