"""A collector that is down, hangs, or answers rubbish: no run fails or waits for it, and one sentence says so."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager

import pytest

from headrace.config import load_job
from headrace.errors import ConfigError
from headrace.run.options import RunOptions
from headrace.telemetry import exporter
from headrace.telemetry.exported import Exported
from headrace.telemetry.exporter import Exporter, Notes
from headrace.telemetry.sdk import OpenTelemetry
from headrace.telemetry.settings import wanted
from headrace.telemetry.trace import Began, Ended, Span
from tests.house import ROOT
from tests.unit.support.demo_job import headrace, home
from tests.unit.telemetry.collector import Collector, collecting, write_job

__all__ = ["headrace", "home"]
RUN = "run --runner local --json"


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    """Wait for the exporting threads: their waits between attempts draw random numbers, which other tests must not see."""
    yield
    for thread in threading.enumerate():
        if thread.name.startswith("headrace-telemetry"):
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def job(home):
    """Return the home of a job with a service."""
    write_job(home)
    return home


@contextmanager
def listening(answer: bytes | None):
    """Yield the address of a server that answers these bytes, whatever it is asked; with None, it never answers."""
    server = socket.create_server(("127.0.0.1", 0))
    kept = []

    def serve():
        while True:
            try:
                connection = server.accept()[0]
            except OSError:
                return
            kept.append(connection)
            if answer is not None:
                connection.recv(10)
                connection.sendall(answer)
                connection.close()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
    finally:
        server.close()
        for connection in kept:
            connection.close()


@contextmanager
def down():
    """Yield an address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    yield f"http://127.0.0.1:{port}"


@contextmanager
def refusing():
    """Yield the address of a collector that answers 500."""
    with collecting(Collector(answer=500)) as collector:
        yield collector.url


def telemetry_lines(stderr):
    """Return what is printed of telemetry. Nothing else may speak of it."""
    lines = [line.partition(" telemetry: ")[2] for line in stderr.splitlines() if " telemetry: " in line]
    assert not any(word in stderr for word in ("Traceback", "Transient", "Exception while")) or len(lines) == 1
    assert sum("xport" in line for line in stderr.splitlines()) == len(lines)
    return lines


@pytest.mark.slow
@pytest.mark.parametrize(
    ("served", "words"),
    [
        (down, "Failed to export"),
        (refusing, "batch code: 500, reason: Internal Server Error"),
        (lambda: listening(b"\x00rubbish\r\n\r\n"), "Failed to export"),
        (lambda: listening(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nrub"), "Failed to export"),
    ],
    ids=["down", "500", "rubbish", "cut off"],
)
def test_bad_collector_fails_no_run(headrace, job, monkeypatch, served, words):
    monkeypatch.setattr(exporter, "PATIENCE", 60)  # the exporters give up before, however busy this machine is
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with served() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        result = headrace(RUN)
    assert result.exit_code == 0
    (line,) = telemetry_lines(result.stderr)
    assert line.startswith("not all was exported: ")
    assert words in line


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_process_ends_beside_a_hanging_collector(job, protocol):
    program = "from headrace.cli import main; import sys; sys.argv = ['headrace', *sys.argv[1:]]; main()"
    # The server answers nothing until the process has ended: a process that waits for it would never end.
    with listening(None) as url:
        done = subprocess.run(
            [sys.executable, "-c", program, *RUN.split()],
            env={
                **os.environ,
                "PYTHONPATH": f"{ROOT / 'engine'}:{job}",
                "HEADRACE_HOME": str(job),
                "OTEL_EXPORTER_OTLP_ENDPOINT": url,
                "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
                "OTEL_EXPORTER_OTLP_TIMEOUT": "100000",
            },
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert telemetry_lines(done.stderr) == [
        "not all was exported: the collector did not take all within 0.5 s after the run"
    ]


@pytest.mark.parametrize(
    ("served", "query", "variables"),
    [
        (down, "?key=geheim", {}),
        (lambda: listening(None), "", {"HEADERS": "Bearer geheim"}),
        (down, "", {"HEADERS": "authorization=a%0Ageheim"}),
        (lambda: listening(b"HTTP/1.1 400 " + 5000 * b"long " + b"\r\nContent-Length: 0\r\n\r\n"), "", {}),
    ],
    ids=["query", "no header", "unfit header", "long reason"],
)
def test_sentence_has_no_secret_and_an_end(headrace, job, monkeypatch, served, query, variables):
    monkeypatch.setattr(exporter, "PATIENCE", 1)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "3")
    for name, value in variables.items():
        monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{name}", value)
    with served() as url:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{url}/v1/traces{query}")
        result = headrace(RUN)
    (line,) = telemetry_lines(result.stderr)
    assert (result.exit_code, "geheim" in result.stderr) == (0, False)
    assert len(line) < 500


class Held:
    """SDK whose export does not end before `go` is set."""

    def __init__(self):
        self.go = threading.Event()
        self.taken = []

    def open(self, *_):
        return self

    def take(self, item):
        self.taken.append(item)

    def export(self):
        self.go.wait()

    def stop(self):
        self.go.set()


def test_end_of_run_waits_no_longer_than_patience():
    sdk = Held()
    exporting = Exporter({"traces": "grpc"}, open_sdk=sdk.open)
    exporting.send(Began(Span("run", 0)))
    assert exporting.finish(patience=0) == "the collector did not take all within 0 s after the run"
    assert exporting.finish(patience=60) == ""  # it was told to stop


def test_end_of_run_waits_no_longer_for_imports(monkeypatch):
    go = threading.Event()
    monkeypatch.setattr(exporter, "OPENING", 0)
    exporting = Exporter({"traces": "grpc"}, open_sdk=lambda *_: go.wait() and Held())
    assert exporting.finish(patience=0) == "the collector did not take all within 0 s after the run"
    go.set()


def test_slow_collector_loses_spans_of_micro_batches_alone():
    sdk = Held()
    exporting = Exporter({"traces": "grpc"}, open_sdk=sdk.open)
    for _ in range(100):
        exporting.send(Ended(Span("micro-batch", 0)))
    exporting.send(Ended(run := Span("run", 0)))
    sdk.go.set()
    assert exporting.finish(patience=60).endswith("micro-batches were left out")
    assert 60 < len(sdk.taken) < 100
    assert sdk.taken[-1] == Ended(run)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ModuleNotFoundError("No module", name="opentelemetry.sdk"), "pip install 'headrace[otel]'"),
        (
            ValueError("OTEL_EXPORTER_OTLP_TIMEOUT\nis bad: https://me:secret@host"),
            "ValueError: OTEL_EXPORTER_OTLP_TIMEOUT is bad",
        ),
    ],
)
def test_sdk_that_does_not_open_is_one_sentence(error, words):
    def fail(*_):
        raise error

    sentence = Exporter({"traces": "grpc"}, open_sdk=fail).finish(patience=60)
    assert words in sentence
    assert "secret" not in sentence


def test_runs_after_a_failure_are_not_exported(home):
    def fail(*_):
        raise ValueError("no")

    def run(config, options, on_event, *, trace=None):
        traces.append(trace)
        raise ConfigError("stops here")

    traces, events = [], []
    exported = Exported(run, wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://nowhere"}), open_sdk=fail)
    for _ in range(2):
        with pytest.raises(ConfigError):
            exported(load_job("demo"), RunOptions(run_id="r"), events.append)
    assert [trace is None for trace in traces] == [False, True]
    assert [event.message for event in events] == ["not all was exported: ValueError: no"]


def test_metrics_that_cannot_be_read_fail_no_run(headrace, job, monkeypatch):
    def fail(_):
        raise OSError("a store may raise anything")

    monkeypatch.setattr("headrace.telemetry.exported.job_values", fail)
    with collecting(Collector()) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        assert headrace(RUN).exit_code == 0


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def test_records_of_other_threads_go_on(monkeypatch):
    def in_thread(work):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    def export():
        OpenTelemetry({}, notes)
        theirs.error("of the exporter")

    notes, theirs = Notes(), logging.getLogger("urllib3.theirs")
    in_thread(export)
    monkeypatch.setattr(logging.getLogger(), "handlers", [kept := Kept()])
    monkeypatch.setattr(theirs, "level", logging.DEBUG)
    for _ in range(8):  # one of them has the number of the ended thread
        in_thread(lambda: theirs.error("of a user"))
    theirs.debug("of a user")
    assert notes.failure == "of the exporter"
    assert kept.messages == ["of a user"] * 9
