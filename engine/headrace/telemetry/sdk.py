"""OpenTelemetry's SDK and exporters: the one module that imports them, in the exporter's thread.

Their settings are those of the environment. Nothing is registered for the process: user code may have an SDK of its own.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Mapping
from typing import Any, Final, Protocol

from opentelemetry.context import Context
from opentelemetry.metrics import Counter, Meter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import MetricExporter, PeriodicExportingMetricReader
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.telemetry.instruments import INSTRUMENTS, Instrument, Point
from headrace.telemetry.trace import Began, Ended, Item, Measured, Span

_SPANS_AT_ONCE: Final = 512
_LOGGERS: Final = ("opentelemetry", "urllib3", "grpc")


class Notes(Protocol):
    """What goes wrong."""

    def add(self, text: str, *, is_failure: bool) -> None:
        """Note a failure, or an attempt that failed."""
        ...


class OpenTelemetry:
    """Implements `Sdk`."""

    def __init__(self, protocols: Mapping[str, str], notes: Notes) -> None:
        """Open the exporters of the signals in `protocols`. `notes` get what they would log."""
        _OWN_RECORDS.own.notes = notes
        resource = _resource()
        self._spans = _Spans(_span_exporter(protocols["traces"]), resource) if "traces" in protocols else None
        self._metrics = _Metrics(_metric_exporter(protocols["metrics"]), resource) if "metrics" in protocols else None

    def take(self, item: Item) -> None:
        """Take what the run has sent."""
        if isinstance(item, Measured):
            if self._metrics is not None:
                self._metrics.take(item.points)
        elif self._spans is not None:
            self._spans.take(item)

    def export(self) -> None:
        """Send all that is new to the collector."""
        if self._spans is not None:
            self._spans.export()
        if self._metrics is not None:
            self._metrics.export()

    def stop(self) -> None:
        """End the waits between attempts; a request that is under way ends by itself."""
        for part in (self._spans, self._metrics):
            if part is not None:
                part.exporter.shutdown()


class _Spans(SpanProcessor):
    """Spans of one run. Collects those that have ended, for the next export."""

    def __init__(self, exporter: SpanExporter, resource: Resource) -> None:
        self.exporter = exporter
        self._ended: list[ReadableSpan] = []
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self)
        self._tracer = provider.get_tracer("headrace")
        self._run: SdkSpan | None = None

    def on_end(self, span: ReadableSpan) -> None:
        self._ended.append(span)

    def take(self, item: Began | Ended) -> None:
        if isinstance(item, Began):
            self._run = self._begun(item.run, None)
        elif item.part.name == "run":
            assert self._run is not None  # noqa: S101 - it has begun
            _end(self._run, item.part)
        else:
            self._add(item.part, self._run)

    def export(self) -> None:
        ended, self._ended = self._ended, []
        for first in range(0, len(ended), _SPANS_AT_ONCE):
            self.exporter.export(ended[first : first + _SPANS_AT_ONCE])

    def _add(self, span: Span, parent: SdkSpan | None) -> None:
        own = self._begun(span, parent)
        for child in span.children:
            self._add(child, own)
        _end(own, span)

    def _begun(self, span: Span, parent: SdkSpan | None) -> SdkSpan:
        context = _context_of_environment() if parent is None else set_span_in_context(parent)
        return self._tracer.start_span(span.name, context=context, start_time=span.start)


def _context_of_environment() -> Context:
    """Return the span of the process that started this one: W3C's trace context in TRACEPARENT and TRACESTATE."""
    carrier = {name: os.environ.get(name.upper(), "") for name in ("traceparent", "tracestate")}
    return TraceContextTextMapPropagator().extract(carrier)


def _end(own: SdkSpan, span: Span) -> None:
    own.set_attributes({f"headrace.{name}": value for name, value in span.attributes.items()})
    if span.error:
        own.set_attribute("error.type", span.error.partition(":")[0])
        own.set_status(Status(StatusCode.ERROR, span.error))
    own.end(span.end)


class _Metrics:
    """Instruments of the metrics."""

    def __init__(self, exporter: MetricExporter, resource: Resource) -> None:
        self.exporter = exporter
        # Without an interval it has no thread of its own.
        self._reader = PeriodicExportingMetricReader(exporter, export_interval_millis=math.inf)
        provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        meter = provider.get_meter("headrace")
        self._instruments = {name: _made(meter, instrument) for name, instrument in INSTRUMENTS.items()}
        self._is_new = False

    def take(self, points: tuple[Point, ...]) -> None:
        self._is_new = True
        for point in points:
            instrument = self._instruments[point.instrument.metric.name]
            if isinstance(instrument, Counter):
                instrument.add(point.value, point.attributes)
            else:
                instrument.set(point.value, point.attributes)

    def export(self) -> None:
        if self._is_new:
            self._reader.collect()
        self._is_new = False


def _made(meter: Meter, instrument: Instrument) -> Any:
    make = meter.create_counter if instrument.kind == "counter" else meter.create_gauge
    return make(instrument.name, instrument.unit, instrument.metric.help)


def _resource() -> Resource:
    resource = Resource.create()
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        return resource.merge(Resource({SERVICE_NAME: "headrace"}))
    return resource


def _span_exporter(protocol: str) -> SpanExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _metric_exporter(protocol: str) -> MetricExporter:
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as OverGrpc

        return OverGrpc()
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    return OTLPMetricExporter()


class _OwnRecords(logging.Handler):
    """Handler of loggers that the exporters use. It takes the records of exporting threads, and hands all others on.

    The exporters log each attempt that fails, and that they have given up.
    """

    def __init__(self) -> None:
        super().__init__()
        self.own = threading.local()
        """Its `notes` are those of the thread: an ended thread has none, whose number Python gives to others."""

    def emit(self, record: logging.LogRecord) -> None:
        notes: Notes | None = getattr(self.own, "notes", None)
        if notes is None:
            logging.getLogger().handle(record)
        elif record.levelno >= logging.WARNING:
            notes.add(record.getMessage(), is_failure=record.levelno >= logging.ERROR)


_OWN_RECORDS = _OwnRecords()
for _name in _LOGGERS:
    logging.getLogger(_name).addHandler(_OWN_RECORDS)
    logging.getLogger(_name).propagate = False
