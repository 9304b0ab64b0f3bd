"""Metrics of services as checkpoints record them, and the circuit breakers that they show as open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.async_io.service_metrics import ServiceMetrics
from headrace.commit.checkpoint import Checkpoint

_KEY = "services"


def services_entry(services: Mapping[str, ServiceMetrics]) -> dict[str, Any]:
    """Return the entry of services in the metrics of a checkpoint, by operator; empty if no service was called."""
    return {_KEY: {name: metrics.shown() for name, metrics in services.items()}} if services else {}


def open_breakers(line: Sequence[Checkpoint]) -> dict[str, int]:
    """Return when each open breaker lets its next probe through (ms), by operator.

    Skips checkpoints without metrics of the operator: compactions, requeues, and micro-batches in which it had nothing to do.
    """
    last: dict[str, dict[str, Any]] = {}
    for checkpoint in reversed(line):
        last = {**checkpoint.metrics.get(_KEY, {}), **last}
    return {name: metrics["open_until"] for name, metrics in last.items() if metrics.get("open_until")}
