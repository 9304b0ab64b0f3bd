"""Readings of sensors, with corrections out of order, in a table whose rows expire after an hour without a new reading."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from headrace import Pipeline, StateTtl, Strategy, Struct, Timestamp

BUCKET: Final = 10
LIFETIMES: Final = timedelta(hours=1)


class Reading(Struct, frozen=True):
    """One row of the input."""

    seq: int
    at: Timestamp
    sensor: str
    level: int


pipeline: Final = (
    Pipeline("short_lived")
    .source("readings", Reading, event_time="at", order_by=("seq",), row_kind="kind")
    .upsert_materialize(
        "latest", primary_key=("sensor",), upsert_key=("level",), strategy=Strategy.VALUE, ttl=StateTtl(LIFETIMES)
    )
    .sink("levels")
)


class Change(Struct, frozen=True):
    """A reading, and the number of the reading before."""

    sensor: str
    level: int
    seq: int
    before: int | None


def _change(reading: Reading, before: Reading | None) -> Change:
    return Change(reading.sensor, reading.level, reading.seq, None if before is None else before.seq)


lagging: Final = (
    Pipeline("lagging")
    .source("readings", Reading, event_time="at", order_by=("seq",), row_kind="kind")
    .lag(
        "changes",
        _change,
        record=Change,
        partition_by=("sensor",),
        primary_key=("sensor", "level"),
        upsert_key=("level",),
        ttl=StateTtl(LIFETIMES),
    )
    .sink("levels")
)

JOB: Final[dict[str, Any]] = {
    "job": "short_lived",
    "pipeline": "tests.jobs.short_lived:pipeline",
    "state": {"root": "state", "local": "local"},
    "watermark": {"bucket": BUCKET},
    "sources": {"readings": {"path": "input", "max_files_per_batch": 1}},
    "sinks": {"levels": {"path": "lake/levels", "mode": "merge"}},
}
