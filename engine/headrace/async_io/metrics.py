"""Metrics of an operator's service: counts, and durations of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2

import msgspec
from msgspec.structs import replace

from headrace.metrics import METRICS

_PARTS = 4
"""Number of buckets for each power of two: a percentile is accurate to about 9 %."""


class ServiceMetrics(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Counts of one operator in one task; the driver adds those of all tasks. Times are milliseconds."""

    tasks: int = 1
    elements: int = 0
    """Elements to call for, including those that an open breaker rejected."""
    attempts: int = 0
    """Times that an element was asked for: by a call, a group's call, an equal call in flight, or the cache."""
    calls: int = 0
    """Started calls of the function: requests that left the process. A call of `invoke_many` counts as one."""
    failures: int = 0
    """Calls that raised, including retried ones, and single records for which a call of `invoke_many` failed."""
    retries: int = 0
    """Attempts after an element's first one, in this micro-batch."""
    retry_wait_ms: int = 0
    """Total time that elements waited for a retry within the task."""
    timeouts: int = 0
    """Expired elements, and probes that had no response in time."""
    parked: int = 0
    """Elements left to a later micro-batch."""
    resumed: int = 0
    """Elements that an earlier micro-batch left."""
    quarantined: int = 0
    defaulted: int = 0
    responses_kept: int = 0
    """Outcomes of elements that were stored for replays."""
    responses_taken: int = 0
    """Elements that got the outcome of the live lineage, without a call."""
    cache_hits: int = 0
    """Attempts that the cache answered, without a call."""
    coalesced: int = 0
    """Attempts that joined an equal call in flight."""
    batches: int = 0
    """Calls of `invoke_many`."""
    busy_ms: int = 0
    """Running time of the operator."""
    breaker: str = ""
    """`closed`, `open` or `half_open`; empty without a breaker."""
    breaker_opened: int = 0
    open_until: int | None = None
    """When the breaker admits the next probe (ms since the epoch)."""
    latencies: dict[int, int] = {}
    """Number of calls by duration, in buckets whose width grows with it. A checkpoint has percentiles in their place."""
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None

    def took(self, seconds: float) -> None:
        """Count an answered call of this duration."""
        bucket = int(log2(seconds * 1e6 + 1) * _PARTS)
        latencies = self.latencies
        latencies[bucket] = latencies.get(bucket, 0) + 1

    def percentile(self, share: float) -> float | None:
        """Return the time (ms) within which this share of the calls was answered; None without answered calls."""
        total = sum(self.latencies.values())
        seen = 0
        for bucket in sorted(self.latencies):
            seen += self.latencies[bucket]
            if seen >= share * total:
                return round(middle_of(bucket) / 1000, 3)
        return None

    def summary(self) -> ServiceMetrics:
        """Return the metrics as a checkpoint has them: with percentiles in place of buckets."""
        shares = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99}
        return replace(self, latencies={}, **{name: self.percentile(share) for name, share in shares.items()})

    def shown(self) -> dict[str, int | float | str]:
        """Return the metrics for people: those that are neither zero nor unknown."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}


def middle_of(bucket: int) -> float:
    """Return the duration (microseconds) at the middle of a bucket."""
    return float(2.0 ** ((bucket + 0.5) / _PARTS)) - 1


def merged_metrics(parts: Iterable[Mapping[str, ServiceMetrics]]) -> dict[str, ServiceMetrics]:
    """Return the metrics of all tasks by operator. A breaker that is open in any task counts as open."""
    metrics: dict[str, ServiceMetrics] = {}
    for part in parts:
        for name, one in part.items():
            _add(metrics.setdefault(name, ServiceMetrics(tasks=0, latencies={})), one)
    return metrics


def _add(total: ServiceMetrics, part: ServiceMetrics) -> None:
    for name in part.__struct_fields__:
        value, before = getattr(part, name), getattr(total, name)
        if isinstance(value, int):
            setattr(total, name, METRICS[name].together(before, value))
    for bucket, count in part.latencies.items():
        total.latencies[bucket] = total.latencies.get(bucket, 0) + count
    order = ("", "closed", "half_open", "open")
    total.breaker = max(total.breaker, part.breaker, key=order.index)
