"""Metrics of services as checkpoints record them, and what they tell of circuit breakers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.async_io.service_metrics import ServiceMetrics
from headrace.commit.checkpoint import Checkpoint

_KEY = "services"


def services_entry(services: Mapping[str, ServiceMetrics]) -> dict[str, Any]:
    """Return what the metrics of a checkpoint say of services, by operator; nothing where none was called."""
    return {_KEY: {name: metrics.shown() for name, metrics in services.items()}} if services else {}


def open_breakers(line: Sequence[Checkpoint]) -> dict[str, int]:
    """Return by operator when the breaker that it has left open lets the next probe through (ms).

    Not every checkpoint tells of it: a compaction, a requeue, or a micro-batch in which the operator had nothing to do.
    """
    last: dict[str, dict[str, Any]] = {}
    for checkpoint in reversed(line):
        last = {**checkpoint.metrics.get(_KEY, {}), **last}
    return {name: metrics["open_until"] for name, metrics in last.items() if metrics.get("open_until")}
