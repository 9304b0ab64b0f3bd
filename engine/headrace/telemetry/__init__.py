"""Traces and metrics of runs for OpenTelemetry (OTLP). Only `telemetry.sdk` imports opentelemetry, and only the exporter's thread imports that."""
