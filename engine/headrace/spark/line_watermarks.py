"""Watermarks of a line of ordinals: those that a micro-batch gives to its operators, and the last one that all have seen."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta

from headrace.commit.checkpoint import Checkpoint
from headrace.execution.element import Watermark
from headrace.execution.fast_drain import seen_and_held
from headrace.plan.order import record_order
from headrace.plan.watermarks import Bucket, Watermarks, advance, lag_of, latest_by_bucket, watermarks_of_line
from headrace.sources.source import LineSlice
from headrace.spark.reports import TaskReport

Group = tuple[str, ...]
"""Names of sources that meet. They share a line of ordinals."""


@dataclass(slots=True)
class LineResult:
    """Position of a line of ordinals after a micro-batch. Sources that meet share a line.

    `watermarks` are those that its operators get, `watermark` is the last of them, `seen` the last that all operators have seen;
    `repeated` are those after `seen`.
    """

    bucket: Bucket
    watermarks: Watermarks
    watermark: int | None
    seen: int | None
    repeated: tuple[tuple[int, int], ...] = ()
    has_input: bool = True
    """False if tasks have read nothing but refused rows: these do not count as input of an idle source."""

    def settle(self, cut: bytes | None) -> None:
        """Set `seen` to the last watermark before `cut`, the place that all operators have reached; later ones are `repeated`."""
        places = [Watermark(record_order(ordinal), time) for ordinal, time in self.watermarks]
        seen, _ = seen_and_held(places, cut)
        self.seen = seen[-1].timestamp if seen else self.seen
        self.repeated = tuple(self.watermarks[len(seen) :])


def line_after(
    parent: Checkpoint,
    group: Group,
    part: LineSlice | None,
    reports: Iterable[TaskReport],
    *,
    size: int,
    out_of_orderness: timedelta,
) -> LineResult:
    """Return the position of a line after a slice. `part` is its part of the slice; None if it has none.

    Its watermarks are planned, or follow from the tasks' reports. `size` is the number of ordinals in a bucket.
    """
    before, seen = parent.watermarks(group)
    latest_times: dict[int, int] = {}
    if part is not None and part.after is not None:
        bucket, new = part.after, part.watermarks or []
    else:
        latest_times = latest_by_bucket(report.buckets for report in reports)
        bucket, new = advance(
            parent.line(group),
            latest_times,
            0 if part is None else part.rows,
            size=size,
            lag=lag_of(out_of_orderness),
            watermark=before,
        )
    offsets = [parent.offsets[name] for name in group if name in parent.offsets]
    joined = None
    if before is not None and any(offset.watermark != before for offset in offsets):
        joined = parent.line(group).next_ordinal, before
    repeated = max((offset.repeated for offset in offsets), default=())
    watermarks = watermarks_of_line(new, repeated=repeated, joined=joined)
    watermark = watermarks[-1][1] if watermarks else before
    has_input = part is None or part.after is not None or bool(latest_times)
    return LineResult(bucket, watermarks, watermark, seen, has_input=has_input)
