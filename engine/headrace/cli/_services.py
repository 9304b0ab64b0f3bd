"""What the last micro-batches measured of the services that a job calls, and what follows for the capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.commit.checkpoint import Checkpoint
    from headrace.config import JobConfig

Measured = dict[str, Any]


def last_measured(config: JobConfig) -> dict[str, Measured]:
    """By async operator: the metrics of the last micro-batch in which it was called. Nothing for a job that never ran."""
    from headrace.commit.log import CheckpointLog
    from headrace.tables.late_pandas import without_pandas

    without_pandas()
    found: dict[str, Measured] = {}
    log = CheckpointLog(config.job_folder, config.storage_options)
    for checkpoint in reversed(log.checkpoints if log.exists else []):
        for name, made in services_of(checkpoint).items():
            if made.get("calls"):
                found.setdefault(name, made)
    return found


def services_of(checkpoint: Checkpoint) -> dict[str, Measured]:
    """The metrics of services in a checkpoint, by async operator."""
    services: dict[str, Measured] = checkpoint.metrics.get("services", {})
    return services


def capacity_for_retries(made: Measured) -> dict[str, float] | None:
    """FLIP-232's estimate: `inputRate * retryRate * avgRetryDuration`, the capacity that waiting retries take up.

    100 records/s, of which 1 % are tried again after 60 s, take 60 places. None when nothing was measured.
    """
    if not made.get("elements") or not made.get("busy_ms"):
        return None
    retries = made.get("retries", 0)
    # Capacity is a task's, so the rate is, too.
    rate = made["elements"] / made.get("tasks", 1) / made["busy_ms"] * 1000
    share = retries / made["elements"]
    seconds = made.get("retry_wait_ms", 0) / retries / 1000 if retries else 0.0
    return {
        "input_rate": round(rate, 1),
        "retry_rate": round(share, 4),
        "avg_retry_seconds": round(seconds, 3),
        "capacity": round(rate * share * seconds, 1),
    }


def in_a_line(job: str, operator: str, made: Measured) -> str:
    """How a service did, for people."""
    parts = [f"{made.get('calls', 0):,} calls"]
    if "p50_ms" in made:
        parts.append(f"p50/p95/p99 {made['p50_ms']:g}/{made['p95_ms']:g}/{made['p99_ms']:g} ms")
    counts = ("failures", "retries", "timeouts", "parked", "quarantined", "defaulted", "cache_hits", "coalesced")
    parts += [f"{made[name]:,} {name.replace('_', ' ')}" for name in counts if made.get(name)]
    if made.get("breaker"):
        parts.append(f"breaker {made['breaker'].replace('_', ' ')}")
    return f"{job}, {operator}: {', '.join(parts)}"
