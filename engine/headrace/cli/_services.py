"""Measured metrics of the services that a job calls, and the estimate of the capacity from them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.names import counted

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.config import JobConfig

Measured = dict[str, Any]


def last_measured(config: JobConfig) -> dict[str, Measured]:
    """Return, by async operator, the metrics of the last micro-batch that called it; empty for a job that never ran."""
    from headrace.commit.log import CheckpointLog
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    latest: dict[str, Measured] = {}
    log = CheckpointLog(config.job_folder, config.storage_options)
    for checkpoint in reversed(log.checkpoints if log.exists else []):
        for name, measured in services_of(checkpoint).items():
            if measured.get("calls"):
                latest.setdefault(name, measured)
    return latest


def services_of(checkpoint: Checkpoint) -> dict[str, Measured]:
    """Return the metrics of services in a checkpoint, by async operator."""
    services: dict[str, Measured] = checkpoint.metrics.get("services", {})
    return services


def capacity_for_retries(measured: Measured) -> dict[str, float] | None:
    """Return FLIP-232's estimate of the capacity that waiting retries take: `inputRate * retryRate * avgRetryDuration`.

    100 records/s, of which 1 % are retried after 60 s, take 60 places. None without measurements.
    """
    if not measured.get("elements") or not measured.get("busy_ms"):
        return None
    retries = measured.get("retries", 0)
    # The capacity is that of one task, so the rate must be, too.
    rate = measured["elements"] / measured.get("tasks", 1) / measured["busy_ms"] * 1000
    share = retries / measured["elements"]
    seconds = measured.get("retry_wait_ms", 0) / retries / 1000 if retries else 0.0
    return {
        "input_rate": round(rate, 1),
        "retry_rate": round(share, 4),
        "avg_retry_seconds": round(seconds, 3),
        "capacity": round(rate * share * seconds, 1),
    }


def in_a_line(job: str, operator: str, measured: Measured) -> str:
    """Return the metrics of a service in a line for people."""
    parts = [counted(measured.get("calls", 0), "call")]
    if "p50_ms" in measured:
        parts.append(f"p50/p95/p99 {measured['p50_ms']:g}/{measured['p95_ms']:g}/{measured['p99_ms']:g} ms")
    counts = ("failures", "retries", "timeouts", "parked", "quarantined", "defaulted", "cache_hits", "coalesced")
    parts += [f"{measured[name]:,} {name.replace('_', ' ')}" for name in counts if measured.get(name)]
    if measured.get("breaker"):
        parts.append(f"breaker {measured['breaker'].replace('_', ' ')}")
    return f"{job}, {operator}: {', '.join(parts)}"
