"""Register of the metrics that tasks count.

A task counts registered metrics only, and a checkpoint has under `metrics` their totals over the tasks of its micro-batch; those of a
service stand under `metrics.services`, by operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Total(StrEnum):
    """How the values of several tasks become one."""

    SUM = "sum"
    MAX = "max"


class Unit(StrEnum):
    """What a metric counts."""

    ROWS = "rows"
    RECORDS = "records"
    ELEMENTS = "elements"
    CALLS = "calls"
    ENTRIES = "entries"
    KEYS = "keys"
    TIMERS = "timers"
    TASKS = "tasks"
    BATCHES = "batches"
    BYTES = "bytes"
    TIMES = "times"
    MILLISECONDS = "ms"
    TIMESTAMP = "timestamp"
    PERCENT = "percent"


@dataclass(frozen=True, slots=True)
class Metric:
    """Metric of a task."""

    name: str
    unit: Unit
    help: str
    total: Total = Total.SUM

    def together(self, before: int | None, value: int) -> int:
        """Return the value of two tasks. `before` is None if the first has none."""
        if before is None:
            return value
        return before + value if self.total is Total.SUM else max(before, value)


_ALL = (
    # rows and records
    Metric("rows_in", Unit.ROWS, "Rows that sources took in."),
    Metric("rows_out", Unit.ROWS, "Rows for sinks."),
    Metric("quarantined", Unit.ROWS, "Rows, records and elements that were set aside."),
    Metric(
        "ahead", Unit.ROWS, "Rows whose event time lies too far ahead of the begin of the micro-batch (`max_ahead`)."
    ),
    Metric("doubtful_times", Unit.ROWS, "Rows whose event time looks like seconds or days, not milliseconds."),
    Metric("keyed_records", Unit.RECORDS, "Records that keyed operators processed."),
    Metric("late", Unit.RECORDS, "Records that came at or behind the watermark."),
    Metric("dropped_late", Unit.RECORDS, "Late records that an operator dropped."),
    Metric("late_to_side", Unit.RECORDS, "Late records that an operator sent to a side output."),
    Metric("resumed", Unit.RECORDS, "Records and elements that an earlier micro-batch left."),
    Metric("held", Unit.RECORDS, "Records that a later micro-batch resumes."),
    # state
    Metric("timers_fired", Unit.TIMERS, "Timers that fired."),
    Metric("state_requests", Unit.TIMES, "Accesses to state that had to wait for the backend."),
    Metric("state_batches", Unit.BATCHES, "Batches in which the backend took them."),
    Metric("expired", Unit.ENTRIES, "Entries that TTL removed."),
    Metric("expired_by_cleanup", Unit.ENTRIES, "Those among them that the clean-up removed."),
    Metric(
        "spilled",
        Unit.ENTRIES,
        "Changes of state that went to local disk before the end of their task, because memory has a limit.",
    ),
    Metric("local_copies_reused", Unit.TASKS, "Tasks that found a local copy of their state."),
    Metric("local_copies_rebuilt", Unit.TASKS, "Tasks that read their state from the tables."),
    Metric("rebuilt_rows", Unit.ROWS, "Rows that these tasks read."),
    Metric("state_entries_asked", Unit.ENTRIES, "Entries that operators asked the tables for."),
    Metric("state_cache_hits", Unit.ENTRIES, "Those among them that the cache had."),
    Metric("state_look_ups", Unit.TIMES, "Look-ups in files of the state tables."),
    Metric("state_rows_read", Unit.ROWS, "Rows that look-ups read."),
    Metric("state_bytes_read", Unit.BYTES, "Bytes that look-ups read."),
    # materializers
    Metric("conflicts", Unit.ROWS, "Rows that conflicts over a primary key removed."),
    Metric("unmatched_retractions", Unit.ROWS, "Retractions that matched no row."),
    Metric("long_histories", Unit.KEYS, "Changed keys with very many rows."),
    # services
    Metric("tasks", Unit.TASKS, "Tasks of the operator."),
    Metric("requests", Unit.ELEMENTS, "Elements of all services to call for."),
    Metric("elements", Unit.ELEMENTS, "Elements to call for, including those that an open breaker rejected."),
    Metric(
        "attempts", Unit.TIMES, "Times that an element was asked for: by a call, an equal call in flight, or the cache."
    ),
    Metric("calls", Unit.CALLS, "Started calls: requests that left the process."),
    Metric("failures", Unit.CALLS, "Calls that raised, including retried ones."),
    Metric("retries", Unit.TIMES, "Attempts after an element's first one."),
    Metric("retry_wait_ms", Unit.MILLISECONDS, "Time that elements waited for a retry within their tasks."),
    Metric("timeouts", Unit.ELEMENTS, "Expired elements, and probes that had no response in time."),
    Metric("parked", Unit.ELEMENTS, "Elements left to a later micro-batch."),
    Metric("defaulted", Unit.ELEMENTS, "Failed elements that got their default."),
    Metric("responses_kept", Unit.ELEMENTS, "Outcomes that were stored for replays."),
    Metric("responses_taken", Unit.ELEMENTS, "Elements that got the outcome of the job's own run, without a call."),
    Metric("cache_hits", Unit.TIMES, "Attempts that the cache answered, without a call."),
    Metric("coalesced", Unit.TIMES, "Attempts that joined an equal call in flight."),
    Metric("batches", Unit.CALLS, "Calls for several elements."),
    Metric("busy_ms", Unit.MILLISECONDS, "Running time of the operator.", Total.MAX),
    Metric("breaker_opened", Unit.TIMES, "Times that the breaker opened."),
    Metric("open_until", Unit.TIMESTAMP, "When the breaker admits the next probe.", Total.MAX),
)

METRICS: Final[Mapping[str, Metric]] = {metric.name: metric for metric in _ALL}
"""The metrics, by name."""

_OF_JOBS = (
    Metric("lag", Unit.MILLISECONDS, "Time by which the watermark of the last checkpoint is behind now.", Total.MAX),
    Metric("waiting", Unit.ELEMENTS, "Elements that wait for a service."),
    Metric("waiting_for", Unit.MILLISECONDS, "Time since the first call of the oldest of them.", Total.MAX),
    Metric("state", Unit.BYTES, "Files of the state tables at the last checkpoint."),
    Metric("state_growth", Unit.PERCENT, "Growth of these files, since a checkpoint of a day, a week or a month ago."),
)

ALERT_METRICS: Final[Mapping[str, Metric]] = {
    metric.name: metric for metric in (*_OF_JOBS, *_ALL) if metric.unit is not Unit.TIMESTAMP
}
"""The metrics that alerts look at: those of a job as a whole, which no task counts, and those of its last run."""
