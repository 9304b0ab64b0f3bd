"""A collector of OTLP over HTTP, which keeps what it gets, and a job with a service whose runs it gets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.unit.support.demo_job import START

PIPELINE = """\
from datetime import timedelta
import msgspec
from headrace import AsyncFunction, FixedDelay, KeyedProcessFunction, Pipeline, Timestamp, ValueState

class Event(msgspec.Struct, frozen=True):
    tail: str
    at: Timestamp

class Ask(AsyncFunction[Event, Event]):
    def __init__(self):
        self.failed = set()

    async def invoke(self, event, /):
        if event.tail == "flaky" and event not in self.failed:
            self.failed.add(event)
            raise OSError("https://user:secret@oracle/ask?token=secret is busy")
        if event.tail == "broken":
            raise OSError("https://user:secret@oracle/ask?token=secret is down")
        return [event]

class Count(KeyedProcessFunction[Event, Event]):
    events = ValueState("events", int)

    async def process(self, event, ctx, /):
        await self.events.update((await self.events.value() or 0) + 1)
        ctx.collect(event)

pipeline = (
    Pipeline("demo").source("events", Event, event_time="at")
    .async_wait("ask", Ask(), service="oracle", timeout=timedelta(minutes=1), retry=FixedDelay(max_retries=1, delay=timedelta(0)))
    .key_by("tail").process("count", Count())
    .sink("board")
)
"""
JOB = """\
job: demo
pipeline: demo_cli_pipeline:pipeline
description: A demonstration.
sources: {events: {path: events, max_files_per_batch: 1}}
sinks: {board: {path: lake/board, mode: append}}
services: {oracle: {url: "http://oracle"}}
watermark: {bucket: 1}
"""


def write_job(home: Any) -> None:
    """Write the job, and its two micro-batches of input, in place of those of the demonstration."""
    (home / "demo_cli_pipeline.py").write_text(PIPELINE)
    (home / "conf/jobs/demo.yaml").write_text(JOB)
    deliver(home, "2013-01-31", "N1", "flaky")
    deliver(home, "2013-02-01", "N2", "N1", "N3")


def deliver(home: Any, day: str, *tails: str) -> None:
    """Write a file of events."""
    rows = {"tail": pa.array(tails, pa.string()), "at": [START + index for index in range(len(tails))]}
    pq.write_table(pa.table(rows), home / f"events/{day}.parquet")


@dataclass
class Collector:
    """What came, decoded. `answer` is the status of all responses."""

    url: str = ""
    answer: int = 200
    requests: list[Any] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    @property
    def resources(self) -> list[dict[str, str]]:
        """Return the attributes of the resources."""
        parts = [part for request in self.requests for part in request.ListFields()[0][1]]
        return [values_of(part.resource.attributes) for part in parts]

    @property
    def spans(self) -> list[Any]:
        """Return all spans, in the order of their begins, parents first."""
        requests = [request for request in self.requests if isinstance(request, ExportTraceServiceRequest)]
        spans = [
            span
            for request in requests
            for part in request.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]
        return sorted(spans, key=lambda span: (span.start_time_unix_nano, -span.end_time_unix_nano))

    def named(self, name: str) -> list[Any]:
        """Return the spans of this name."""
        return [span for span in self.spans if span.name == name]

    @property
    def metrics(self) -> dict[str, Any]:
        """Return the metrics as they came last, by name."""
        requests = [request for request in self.requests if isinstance(request, ExportMetricsServiceRequest)]
        return {
            metric.name: metric
            for request in requests
            for part in request.resource_metrics
            for scope in part.scope_metrics
            for metric in scope.metrics
        }

    def values(self, metric: Any) -> dict[tuple[str, ...], float]:
        """Return the values of a metric, by the values of its attributes."""
        points = getattr(metric, metric.WhichOneof("data")).data_points
        return {
            tuple(values_of(p.attributes).values()): p.as_int if p.HasField("as_int") else p.as_double for p in points
        }


def values_of(attributes: Any) -> dict[str, Any]:
    """Return attributes as plain values."""
    return {own.key: getattr(own.value, own.value.WhichOneof("value")) for own in attributes}


@contextmanager
def collecting(collector: Collector, hang: threading.Event | None = None) -> Iterator[Collector]:
    """Serve a collector for the length of a block. With `hang`, it answers nothing until that is set."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            kind: Any = ExportTraceServiceRequest if self.path == "/v1/traces" else ExportMetricsServiceRequest
            collector.requests.append(kind.FromString(content))
            collector.headers.append(dict(self.headers))
            if hang is not None:
                hang.wait()
            self.send_response(collector.answer)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    collector.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield collector
    finally:
        if hang is not None:
            hang.set()
        server.shutdown()
        server.server_close()
