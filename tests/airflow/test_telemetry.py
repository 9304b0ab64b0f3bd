"""Drivers of Airflow's tasks export where Airflow does, below the span of the task."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import use_span

from headrace.airflow._command import HeadraceCommand
from headrace.airflow._telemetry import telemetry_environment
from tests.airflow.test_local_run import task_of
from tests.airflow.test_submission import submitted

SOMEWHERE = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4317"}
TRACES, METRICS = "OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_METRICS_"


@pytest.fixture
def settings(monkeypatch):
    """Return a function that changes Airflow's settings."""

    def change(section, **values):
        for name, value in values.items():
            monkeypatch.setenv(f"AIRFLOW__{section}__{name}".upper(), str(value))

    return change


@pytest.fixture
def task_span():
    """Open a span, as Airflow does around a task; return its trace context."""
    span = TracerProvider().get_tracer("airflow").start_span("worker.run")
    with use_span(span):
        context = span.get_span_context()
        yield f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def test_nothing_is_added_where_airflow_exports_nothing(task_span):
    assert telemetry_environment(SOMEWHERE) == {}


def test_driver_gets_the_span_of_its_task(settings, task_span):
    settings("traces", otel_on=True)
    variables = telemetry_environment(SOMEWHERE)
    assert variables == {f"{TRACES}PROTOCOL": "grpc", "TRACEPARENT": task_span}


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"OTEL_TRACES_EXPORTER": "otlp_proto_http"}, "http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "grpc"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, None),
        ({f"{TRACES}PROTOCOL": "http/protobuf"}, None),
    ],
)
def test_traces_have_the_protocol_of_airflow(settings, environment, protocol):
    settings("traces", otel_on=True)
    variables = telemetry_environment(SOMEWHERE | environment)
    assert variables == ({} if protocol is None else {f"{TRACES}PROTOCOL": protocol})


def test_old_settings_of_airflow_name_the_endpoint(settings):
    settings("traces", otel_on=True, otel_host="old", otel_port=4317)
    settings("metrics", otel_on=True, otel_host="::1", otel_port=4318, otel_ssl_active=True)
    assert telemetry_environment({}) == {
        f"{TRACES}ENDPOINT": "http://old:4317/v1/traces",
        f"{TRACES}PROTOCOL": "grpc",
        f"{METRICS}ENDPOINT": "https://[::1]:4318/v1/metrics",
        f"{METRICS}PROTOCOL": "http/protobuf",
    }
    assert telemetry_environment(SOMEWHERE).keys() == {f"{TRACES}PROTOCOL", f"{METRICS}PROTOCOL"}


def test_local_command_gets_the_variables(settings, task_span, tmp_path):
    settings("traces", otel_on=True)
    command = HeadraceCommand(["run", "flights"], tmp_path)
    assert command._environment["TRACEPARENT"] == task_span


def test_driver_of_spark_gets_the_variables(settings, task_span, home, monkeypatch):
    settings("traces", otel_on=True)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317")
    environment = submitted(task_of(home), monkeypatch).environment
    assert (environment["TRACEPARENT"], environment[f"{TRACES}PROTOCOL"]) == (task_span, "grpc")
