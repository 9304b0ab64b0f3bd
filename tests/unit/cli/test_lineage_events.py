"""OpenLineage's events of a run, as a real collector gets them over HTTP."""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from headrace import clock, logs
from headrace.cli import lineage_events
from headrace.cli.lineage_events import with_events
from headrace.config import dataset_of, load_job
from headrace.run.options import RunOptions

RUN = "run --runner local --run-id first --json"
SOON = 30


@contextmanager
def collector(status=201, *, waits=None):
    """Yield the address of a collector, and the queue of the events that it gets. It answers with a status, or when `waits` is set."""
    events = queue.SimpleQueue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            events.put((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            if waits is not None:
                waits.wait(SOON)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            """Write nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", events
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    """Take back what the client itself writes to the environment."""
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE")]:
        monkeypatch.delenv(name)
    yield
    for name in [name for name in os.environ if name.startswith("OPENLINEAGE__")]:
        del os.environ[name]


def got(events, number):
    return [events.get(timeout=SOON)[1] for _ in range(number)]


@pytest.mark.slow
def test_collector_gets_start_and_complete(headrace, monkeypatch):
    pytest.importorskip("openlineage.client")
    with collector() as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        monkeypatch.setenv("OPENLINEAGE_PARENT_ID", f"http://airflow/x/dag.run/{uuid.UUID(int=7)}")
        result = headrace(RUN)
        first, last = got(events, 2)
    assert (result.exit_code, "OpenLineage" in result.stderr) == (0, False)
    assert [first["eventType"], last["eventType"]] == ["START", "COMPLETE"]
    assert first["run"]["runId"] == last["run"]["runId"] == clock.named_uuid("headrace/demo/first")
    parent = last["run"]["facets"]["parent"]
    assert (parent["job"]["namespace"], parent["job"]["name"]) == ("http://airflow/x", "dag.run")
    assert [name["namespace"] for name in last["inputs"]] == ["file"]
    (board,) = last["outputs"]
    columns = board["facets"]["columnLineage"]
    assert {*columns["fields"]} == {field["name"] for field in board["facets"]["schema"]["fields"]}
    read = {field["field"] for column in columns["fields"].values() for field in column["inputFields"]}
    assert read <= {field["name"] for field in last["inputs"][0]["facets"]["schema"]["fields"]}
    assert board["outputFacets"]["outputStatistics"]["rowCount"] >= 0


def test_failed_run_sends_its_error(headrace, home, monkeypatch):
    pytest.importorskip("openlineage.client")
    for file in (home / "events").iterdir():
        file.write_bytes(b"no parquet")
    with collector() as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        assert headrace(RUN).exit_code == 7
        first, last = got(events, 2)
    assert [first["eventType"], last["eventType"]] == ["START", "FAIL"]
    assert "SourceError" in last["run"]["facets"]["errorMessage"]["message"]


@pytest.mark.slow
def test_collector_that_refuses_fails_no_run(headrace, monkeypatch):
    pytest.importorskip("openlineage.client")
    with collector(status=400) as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        result = headrace(RUN)
        got(events, 1)
    assert result.exit_code == 0
    assert result.stderr.count("OpenLineage: events of this run were not delivered, and the run goes on") == 1


@pytest.mark.slow
def test_collector_that_hangs_costs_a_second(headrace, monkeypatch):
    pytest.importorskip("openlineage.client")
    waits = threading.Event()
    with collector(waits=waits) as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        result = headrace(RUN)
        got(events, 1)
        waits.set()
    assert result.exit_code == 0
    assert "the collector has not taken them within 1 s" in result.stderr


def test_missing_client_is_one_sentence(headrace, monkeypatch):
    monkeypatch.setitem(sys.modules, "openlineage", None)
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    result = headrace(RUN)
    assert result.exit_code == 0
    assert result.stderr.count("OpenLineage: ") == 1
    assert "pip install 'headrace[openlineage]'" in result.stderr


@pytest.mark.parametrize(
    ("variable", "value", "is_on"),
    [
        ("OPENLINEAGE_URL", "http://here", True),
        ("OPENLINEAGE_CONFIG", "openlineage.yml", True),
        ("OPENLINEAGE__TRANSPORT__TYPE", "http", True),
        ("OPENLINEAGE_URL", "  ", False),
        ("OPENLINEAGE_NAMESPACE", "mine", False),
    ],
)
def test_variables_switch_events_on(variable, value, is_on):
    from headrace.config import sends_lineage

    assert sends_lineage({variable: value}) is is_on
    assert sends_lineage({variable: value, "OPENLINEAGE_DISABLED": " True"}) is False


def test_report_has_datasets_for_a_scheduler(headrace, monkeypatch):
    with collector() as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        report = json.loads(headrace(f"{RUN} --lineage").stdout)
    assert events.empty()
    assert [*report["lineage"]] == ["inputs", "outputs"]
    assert "columnLineage" in report["lineage"]["outputs"][0]["facets"]


def test_events_have_no_text_of_foreign_errors(home, monkeypatch):
    def fail():
        raise ValueError("key geheim is refused")

    pytest.importorskip("openlineage.client")
    with collector() as (url, events):
        monkeypatch.setenv("OPENLINEAGE_URL", url)
        with pytest.raises(ValueError, match="refused"):
            with_events(load_job("demo"), RunOptions(run_id="r"), fail)
        last = got(events, 2)[1]
    assert last["run"]["facets"]["errorMessage"]["message"] == "ValueError"


def test_client_that_does_not_start_holds_no_run(home, monkeypatch, capsys):
    go = threading.Event()
    monkeypatch.setattr(lineage_events, "_client", go.wait)
    monkeypatch.setattr(lineage_events, "_OPENING", 0, raising=False)
    monkeypatch.setattr(lineage_events, "_PATIENCE", 0)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    report = SimpleNamespace(sinks={})
    run = threading.Thread(
        target=with_events, args=(load_job("demo"), RunOptions(run_id="r"), lambda: report), daemon=True
    )
    with logs.on_stderr():
        run.start()
        run.join(10)
        is_held = run.is_alive()
    go.set()
    assert not is_held
    assert "OpenLineage: events of this run were not delivered" in capsys.readouterr().err


def test_undelivered_events_are_a_json_line(headrace, monkeypatch):
    monkeypatch.setenv(logs.FORMAT, "json")
    monkeypatch.setitem(sys.modules, "openlineage", None)
    monkeypatch.setitem(sys.modules, "openlineage.client", None)
    monkeypatch.setenv("OPENLINEAGE_URL", "http://127.0.0.1:9")
    lines = [json.loads(line) for line in headrace(RUN).stderr.splitlines()]
    (line,) = [line for line in lines if "events of this run were not delivered" in line["message"]]
    assert (line["level"], line["kind"]) == ("warning", "OpenLineage")


def test_dataset_has_no_credentials():
    assert dataset_of("s3://me:geheim@bucket/a") == dataset_of("s3://bucket/a")
    assert dataset_of("abfss://box@account/a") == ("abfss://box@account", "a")
