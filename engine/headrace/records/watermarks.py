"""Timelines: the ordinals and watermarks of a source alone, or of sources that meet and share them. Pure: no files, no clock.

A source that meets no other emits a watermark after each full *bucket*: a fixed number of ordinals in arrival order,
whatever the micro-batches. `sources.arrival` moves timelines where rows are merged by event time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from headrace.records.order import before_timers, record_order

Watermarks = list[tuple[int, int]]
"""Watermarks in arrival order: the ordinal after each of them, and its time (ms)."""

_MILLISECOND: Final = timedelta(milliseconds=1)


class Bucket(msgspec.Struct, frozen=True):
    """State of the watermark generator: the next ordinal, and the open bucket's latest time."""

    next_ordinal: int = 0
    open_max: int | None = None
    closed_max: int | None = None


class Timeline(msgspec.Struct, frozen=True, omit_defaults=True):
    """Ordinals and watermarks that sources which meet share."""

    sources: tuple[str, ...] = ()
    bucket: Bucket = Bucket()
    watermark: int | None = None
    """Last watermark (ms)."""
    seen: int | None = None
    """Last watermark that all operators have seen (ms): it comes before those in `repeated`."""
    repeated: tuple[tuple[int, int], ...] = ()
    """Watermarks (ordinal, ms) that some operators have not seen, since they hold records."""

    @classmethod
    def joined(cls, sources: tuple[str, ...], parts: Collection[Timeline]) -> Timeline:
        """Return the timeline of sources that meet now, from the timelines that they had."""
        return cls(
            sources,
            max((part.bucket for part in parts), key=lambda bucket: bucket.next_ordinal, default=Bucket()),
            latest(part.watermark for part in parts),
            latest(part.seen for part in parts),
            max((part.repeated for part in parts), default=()),
        )


Timelines = Mapping[str, Timeline]
"""Timelines of a job, each by the name of its first source."""


def parts_of(timelines: Timelines, sources: Collection[str]) -> list[Timeline]:
    """Return the timelines that have some of these sources."""
    return [timeline for timeline in timelines.values() if not set(sources).isdisjoint(timeline.sources)]


def timeline_of(timelines: Timelines, sources: Sequence[str]) -> Timeline:
    """Return the timeline that these sources share; an empty one where they have read nothing."""
    return Timeline.joined(tuple(sources), parts_of(timelines, sources))


def advance(
    before: Bucket, seen: Mapping[int, int], rows: int, *, size: int, lag: int, watermark: int | None
) -> tuple[Bucket, Watermarks]:
    """Close the buckets of arrival order that `rows` more rows fill; return a watermark after each.

    `seen` has the latest event time by bucket number, `size` is the number of rows in a bucket, `lag` the distance of
    the watermark behind the latest time (ms), `watermark` the last one. Bucket bounds are global ordinals, so the split
    into micro-batches changes nothing: with size 10, rows 0-7 close none; rows 8-25 close buckets 0 and 1, with
    watermarks before ordinals 10 and 20.
    """
    end = before.next_ordinal + rows
    first = before.next_ordinal // size
    open_max, closed_max = before.open_max, before.closed_max
    watermarks: Watermarks = []
    # A bucket without a known time moves nothing: a file that claims 2^61 rows must not be counted through.
    last = end // size
    for number in sorted({first, last} | {number for number in seen if first < number < last}):
        bucket_max = latest((open_max, seen.get(number)))
        if (number + 1) * size > end:
            open_max = bucket_max
            break
        closed_max, open_max = latest((closed_max, bucket_max)), None
        if closed_max is not None and (watermark is None or closed_max - lag > watermark):
            watermark = closed_max - lag
            watermarks.append(((number + 1) * size, watermark))
    return Bucket(end, open_max, closed_max), watermarks


def lag_of(out_of_orderness: timedelta) -> int:
    """Return the distance of the watermark behind the latest event time (ms): rows that are late by exactly this much are in time."""
    return out_of_orderness // _MILLISECOND + 1


def latest(times: Iterable[int | None]) -> int | None:
    """Return the latest of some timestamps (ms); None without known ones."""
    return max((time for time in times if time is not None), default=None)


def latest_by_bucket(parts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Return the latest event time (ms) by bucket number of rows that several tasks have read."""
    times: dict[int, int] = {}
    for part in parts:
        for number, time in part.items():
            times[number] = max(time, times.get(number, time))
    return times


def watermarks_of_timeline(
    new: Iterable[tuple[int, int]],
    *,
    repeated: Iterable[tuple[int, int]] = (),
    joined: tuple[int, int] | None = None,
) -> Watermarks:
    """Return the watermarks that the operators of a line get in a micro-batch, in arrival order.

    First the `repeated` ones, which not all operators have seen. Then the line's last one if lines have `joined`
    since: operators of a line that was behind have not seen it. Then the `new` ones.
    """
    return [*repeated, *([] if joined is None else [joined]), *new]


def cut_at_block(block: bytes, watermarks: Iterable[tuple[int, int]]) -> bytes | None:
    """Return the place up to which an operator is done when its element at `block` waits and lets others pass.

    It is the place right before the first watermark after the element, and None without such a watermark.
    """
    places = (record_order(ordinal) for ordinal, _ in watermarks)
    return next((before_timers(place) for place in places if place > block), None)
