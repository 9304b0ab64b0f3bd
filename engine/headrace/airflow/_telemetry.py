"""Telemetry of a driver beside that of Airflow: the same collector, and a span below that of the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from airflow.sdk.configuration import conf

_ENDPOINT: Final = "OTEL_EXPORTER_OTLP_{signal}ENDPOINT"
_PROTOCOL: Final = "OTEL_EXPORTER_OTLP_{signal}PROTOCOL"


def telemetry_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a driver needs beyond the environment of its task, as far as Airflow's settings switch telemetry on.

    Variables of OpenTelemetry that the environment has stay as they are.
    """
    variables: dict[str, str] = {}
    for signal in ("traces", "metrics"):
        if conf.getboolean(signal, "otel_on", fallback=False):
            variables |= _of_signal(signal, environment)
    return variables | trace_context()


def trace_context() -> dict[str, str]:
    """Return the span of the task in the form of W3C's trace context, TRACEPARENT and TRACESTATE; an empty mapping without traces."""
    if not conf.getboolean("traces", "otel_on", fallback=False):
        return {}
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}


def _of_signal(signal: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Return endpoint and protocol by which Airflow exports a signal, as far as the environment does not say them."""
    variables: dict[str, str] = {}
    own = f"{signal.upper()}_"
    has_endpoint = _has(environment, _ENDPOINT, own)
    if not has_endpoint and (endpoint := _old_endpoint(signal)) is not None:
        variables[_ENDPOINT.format(signal=own)] = endpoint
    if (has_endpoint or variables) and not _has(environment, _PROTOCOL, own):
        # Airflow's traces go by the exporter that is named `otlp`, that of gRPC, unless OTEL_TRACES_EXPORTER names another one.
        is_grpc = signal == "traces" and environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp"
        variables[_PROTOCOL.format(signal=own)] = "grpc" if is_grpc else "http/protobuf"
    return variables


def _has(environment: Mapping[str, str], name: str, signal: str) -> bool:
    return bool(environment.get(name.format(signal=signal)) or environment.get(name.format(signal="")))


def _old_endpoint(section: str) -> str | None:
    """Return the endpoint of Airflow's own settings, which it has before 3.2 and still reads; None without them."""
    host, port = conf.get(section, "otel_host", fallback=None), conf.get(section, "otel_port", fallback=None)
    if not host or not port:
        return None
    scheme = "https" if conf.getboolean(section, "otel_ssl_active", fallback=False) else "http"
    return f"{scheme}://[{host}]:{port}/v1/{section}" if ":" in host else f"{scheme}://{host}:{port}/v1/{section}"
