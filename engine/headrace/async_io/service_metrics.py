"""What an operator has to say about its service: counts, and how long calls took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log2

import msgspec

_PARTS = 4
"""Each power of two is cut into so many buckets: a percentile is right to about 9 %."""


class ServiceMetrics(msgspec.Struct, kw_only=True):
    """Counts of one operator in one task; the driver adds those of all tasks. Times are milliseconds."""

    tasks: int = 1
    elements: int = 0
    """Elements that were to be called for, also those that an open breaker sent away."""
    attempts: int = 0
    """How often an element was asked for: by a call, a group's call, an equal call in flight, or the cache."""
    calls: int = 0
    """Calls of the function that were begun: requests that left the process. A call of `invoke_many` is one."""
    failures: int = 0
    """Calls that raised, those that were repeated included, and single records that a call of `invoke_many` failed for."""
    retries: int = 0
    """Attempts after the first of an element, in this micro-batch."""
    retry_wait_ms: int = 0
    """Time that elements waited for a retry within the task, all together."""
    timeouts: int = 0
    """Elements whose time was up, and probes that had no answer in time."""
    parked: int = 0
    """Elements that were left to a later micro-batch."""
    resumed: int = 0
    """Elements that an earlier micro-batch had left."""
    quarantined: int = 0
    defaulted: int = 0
    cache_hits: int = 0
    """Attempts that the cache answered, without a call."""
    coalesced: int = 0
    """Attempts that joined an equal call in flight."""
    batches: int = 0
    """Calls of `invoke_many`."""
    busy_ms: int = 0
    """How long the operator ran."""
    breaker: str = ""
    """`closed`, `open` or `half_open`; empty without a breaker."""
    breaker_opened: int = 0
    open_until: int | None = None
    """When the breaker lets the next probe through (ms since the epoch)."""
    latencies: dict[int, int] = {}
    """Calls by how long they took, in buckets whose width grows with them."""

    def took(self, seconds: float) -> None:
        """Count a call that was answered."""
        bucket = int(log2(seconds * 1e6 + 1) * _PARTS)
        latencies = self.latencies
        latencies[bucket] = latencies.get(bucket, 0) + 1

    def percentile(self, share: float) -> float | None:
        """The time (ms) within which this share of the calls was answered; None if none was."""
        total = sum(self.latencies.values())
        seen = 0
        for bucket in sorted(self.latencies):
            seen += self.latencies[bucket]
            if seen >= share * total:
                return round(middle_of(bucket) / 1000, 3)
        return None

    def shown(self) -> dict[str, int | float | str | None]:
        """For `checkpoints`: counts that are not zero, and percentiles in place of buckets."""
        found: dict[str, int | float | str | None] = {
            name: getattr(self, name) for name in self.__struct_fields__ if name != "latencies" and getattr(self, name)
        }
        for name, share in (("p50_ms", 0.5), ("p95_ms", 0.95), ("p99_ms", 0.99)):
            value = self.percentile(share)
            if value is not None:
                found[name] = value
        return found


def middle_of(bucket: int) -> float:
    """A duration (microseconds) from the middle of a bucket."""
    return float(2.0 ** ((bucket + 0.5) / _PARTS)) - 1


def merged_metrics(parts: Iterable[Mapping[str, ServiceMetrics]]) -> dict[str, ServiceMetrics]:
    """The metrics of all tasks by operator. A breaker that is open in any task is open."""
    found: dict[str, ServiceMetrics] = {}
    for part in parts:
        for name, one in part.items():
            _add(found.setdefault(name, ServiceMetrics(tasks=0, latencies={})), one)
    return found


def _add(total: ServiceMetrics, one: ServiceMetrics) -> None:
    for name in one.__struct_fields__:
        value = getattr(one, name)
        if isinstance(value, int) and name not in {"open_until", "busy_ms"}:
            setattr(total, name, getattr(total, name) + value)
    total.busy_ms = max(total.busy_ms, one.busy_ms)
    for bucket, count in one.latencies.items():
        total.latencies[bucket] = total.latencies.get(bucket, 0) + count
    order = ("", "closed", "half_open", "open")
    total.breaker = max(total.breaker, one.breaker, key=order.index)
    known = [until for until in (total.open_until, one.open_until) if until is not None]
    total.open_until = max(known, default=None)
