"""Rows that are missing to the next step of a watermark, while timers of event time wait for it.

The watermark moves after each full bucket of rows. So the last rows of a job's input may be taken in, and the windows that they end have
not fired. A micro-batch records its open steps in the metrics of its checkpoint; the report of a run and `headrace status` show those
that a timer waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from headrace.api import TimeDomain
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.lineage import Lineage
from headrace.commit.run_warnings import WatermarkWait
from headrace.plan.watermarks import Bucket, latest
from headrace.tables.predicate import BetweenTimes, OneOf
from headrace.tables.schemas import TIMERS
from headrace.tables.stores import ViewOf
from headrace.tables.view import TableView

_KEY: Final = "watermark_steps"


class WatermarkStep(msgspec.Struct, frozen=True):
    """Next step of the watermark of sources that meet, or of one source."""

    sources: tuple[str, ...]
    rows_missing: int
    """Rows until the open bucket is full."""
    bucket: int
    """Rows of a bucket (`watermark.bucket`)."""
    time: int
    """Watermark after the step, if no later row comes (ms)."""
    operators: tuple[str, ...]
    """Operators that get the watermark."""


def open_step(
    sources: tuple[str, ...], bucket: Bucket, watermark: int | None, *, size: int, lag: int, operators: Iterable[str]
) -> WatermarkStep | None:
    """Return the next step of a watermark; None if the rows taken in so far would not move it.

    `size` is the number of rows in a bucket, `lag` the distance of the watermark behind the latest time (ms).
    """
    time = latest((bucket.open_max, bucket.closed_max))
    if time is None or (watermark is not None and time - lag <= watermark):
        return None
    return WatermarkStep(sources, size - bucket.next_ordinal % size, size, time - lag, tuple(operators))


def steps_entry(steps: Iterable[WatermarkStep]) -> dict[str, Any]:
    """Return the entry in the metrics of a checkpoint; empty without steps."""
    listed = [msgspec.to_builtins(step) for step in steps]
    return {_KEY: listed} if listed else {}


def watermark_waits(lineage: Lineage, last: Checkpoint, view_of: ViewOf) -> list[WatermarkWait]:
    """Return the watermarks that timers wait for, as of the last checkpoint of a lineage.

    Reads only files of `timers` that may have such timers.
    """
    batch = lineage.last_of(Kind.BATCH)
    entry = [] if batch is None else batch.metrics.get(_KEY, [])
    if not entry or not last.versions.get(TIMERS):
        return []
    view = view_of(TIMERS)
    steps = msgspec.convert(entry, list[WatermarkStep])
    waits = [
        WatermarkWait(step.sources, step.rows_missing, step.bucket, _timers(view, step, last.timers_fired))
        for step in steps
    ]
    return [wait for wait in waits if wait.timers]


def _timers(view: TableView, step: WatermarkStep, fired: Mapping[str, Mapping[str, int]]) -> int:
    """Count the timers that the step fires."""
    known = [fired.get(name, {}).get(TimeDomain.EVENT_TIME) for name in step.operators]
    until = [time for time in known if time is not None]
    after = min(until, default=None) if len(until) == len(known) else None
    due = view.where(
        OneOf("domain", (TimeDomain.EVENT_TIME,)),
        OneOf("operator", step.operators),
        BetweenTimes("timestamp", after, step.time),
    )
    count: int = due.live().num_rows
    return count
