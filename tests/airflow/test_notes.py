"""Notes on task instances: the requests to Airflow's REST API, and runs whose note is refused."""

from __future__ import annotations

import json
import logging
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import yaml

from headrace import clock
from headrace.airflow._notes import note_of, write_note
from headrace.airflow._settings import tell_of_alerts
from headrace.config import load_job
from tests.airflow.test_run_operator import REPORT

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


RESULT = {**REPORT, "rows_in": 4630, "checkpoint": 11, "watermark": "2026-01-10T22:00:59Z", "row_times": {}}
DAY = ["2026-01-10T00:00:00Z", "2026-01-11T00:00:00Z"]
MARCH = ["2026-03-28T23:00:00Z", "2026-03-29T22:00:00Z"]


@pytest.fixture
def job(home):
    return load_job("flights", home)


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"interval": DAY}, "10 Jan · 4,630 rows · checkpoint 11 · watermark 22:00 · 0 waiting · 0 late"),
        ({"interval": None}, "4,630 rows · checkpoint 11 · watermark 10 Jan 22:00 · 0 waiting · 0 late"),
        (
            {"interval": DAY, "watermark": "2026-01-11T00:00:00Z", "rows_in": 1},
            "10 Jan · 1 row · checkpoint 11 · watermark 11 Jan 00:00 · 0 waiting · 0 late",
        ),
        (
            {"interval": ["2026-01-10T06:00:00Z", "2026-01-10T07:00:00Z"], "watermark": None},
            "10 Jan 06:00 to 07:00 · 4,630 rows · checkpoint 11 · 0 waiting · 0 late",
        ),
        (
            {"interval": ["2025-12-29T00:00:00Z", "2026-01-05T00:00:00Z"], "watermark": "0001-01-01T00:00:00Z"},
            "29 Dec 2025 to 4 Jan · 4,630 rows · checkpoint 11 · 0 waiting · 0 late",
        ),
        (
            {"interval": ["2026-01-10T18:00:00Z", "2026-01-11T06:00:00Z"], "watermark": "9999-12-31T23:59:59Z"},
            "10 Jan 18:00 to 11 Jan 06:00 · 4,630 rows · checkpoint 11 · watermark at the end of time · 0 waiting · 0 late",
        ),
        (
            {"interval": DAY, "waiting": 1200, "row_times": {"a": {"behind": 2}, "b": {"behind": 3}}},
            (
                "10 Jan · 4,630 rows · checkpoint 11 · watermark 22:00 · 1,200 waiting · 5 late; "
                "1,200 elements wait for services (headrace waiting flights --calls)"
            ),
        ),
        ({"checkpoint": None, "interval": None, "watermark": None}, "4,630 rows · 0 waiting · 0 late"),
    ],
)
def test_note_has_the_numbers_of_its_run(job, changes, note):
    with clock.installed(clock.VirtualClock(1_770_000_000_000)):  # 2026-02-02
        assert note_of(job, {**RESULT, **changes}) == note


@pytest.mark.parametrize("zone", ["Europe/Berlin", "UTC"])
def test_days_are_those_of_the_jobs_zone(home, edit_job, zone):
    sources = yaml.safe_load((home / "conf/jobs/flights.yaml").read_text())["sources"]
    edit_job("flights", sources={name: {**source, "timezone": zone} for name, source in sources.items()})
    edit_job("flights", schedule={"cron": "@daily", "start": "2026-01-01", "timezone": zone})
    result = {**RESULT, "interval": MARCH, "watermark": "2026-03-29T21:30:00Z"}
    days, _, _, watermark, *_ = note_of(load_job("flights", home), result).split(" · ")
    assert (days, watermark) == (
        ("29 Mar", "watermark 23:30")
        if zone == "Europe/Berlin"
        else ("28 Mar 23:00 to 29 Mar 22:00", "watermark 21:30")
    )


ALERT = {
    "metric": "lag",
    "condition": "> 2h",
    "is_raised": True,
    "changed": True,
    "calls_airflow": True,
    "sentence": "job 'flights': lag is 3 h",
}


def test_raised_alert_is_in_the_note(job):
    raised, over = ALERT, {**ALERT, "metric": "late", "is_raised": False, "sentence": "late"}
    _, *sentences = note_of(job, {**RESULT, "interval": None, "alerts": [raised, over]}).split("; ")
    assert sentences == ["alert: job 'flights': lag is 3 h"]


TOLD = []


def page(context):
    TOLD.append((context["run_id"], context["alert"]["metric"]))
    if context["alert"]["metric"] == "late":
        raise RuntimeError("the pager is down")


def test_change_of_an_alert_calls_airflow(home, edit_job, caplog):
    edit_job("flights", alerts={"lag": "> 2h", "late": "> 0"}, airflow={"on_alert": f"{__name__}:page"})
    sys.modules[__name__].TOLD.clear()
    alerts = [{**ALERT, "metric": "late"}, ALERT, {**ALERT, "metric": "waiting", "calls_airflow": False}]
    tell_of_alerts(load_job("flights", home), {"alerts": alerts}, {"run_id": "r1"}, logging.getLogger("task"))
    assert sys.modules[__name__].TOLD == [("r1", "late"), ("r1", "lag")]
    assert "was not told of the alert on late" in caplog.text
    assert "the pager is down" in caplog.text
