"""How far a source was read, as a checkpoint has it."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from headrace.plan.watermarks import Bucket, latest
from headrace.sources.requeued import RequeuedRows


class PartitionOffset(msgspec.Struct, frozen=True):
    """How far a partition of a topic was read. The fields that `SourceOffset` has as well mean the same here."""

    partition: int
    number: int
    position: int
    """The offset behind the last file taken up: there reading goes on."""
    last_file: str | None = None
    unread: tuple[str, ...] = ()
    rows_taken: int = 0
    taken_at: int | None = None
    idle: bool = False


class TableVersion(msgspec.Struct, frozen=True):
    """The version of a dimension table, by the name that the pipeline gives the table."""

    name: str
    version: int


class SourceOffset(msgspec.Struct, frozen=True):
    """How far a source was read: the last file taken up, in the source's order, and the bucket.

    Sources that meet share a line of ordinals: each has what is said of the line (`bucket`, `watermark`, `seen`, `repeated`). Each has
    what is said of the whole job, too (`held`, `pending`, `due`). `held` says that records which were taken in are still in
    `buffered_requests`; `repeated` are the watermarks (ordinal, ms) that not every operator of the line has seen for that reason.
    """

    last_file: str | None = None
    bucket: Bucket = Bucket()
    files_behind: int = 0
    held: bool = False
    repeated: tuple[tuple[int, int], ...] = ()
    pending: int = 0
    """Elements in `async_requests`."""
    due: int | None = None
    """When the first of them is to be called for (ms); None if none is."""
    names: tuple[str, ...] | None = None
    """Digests of the files at or behind `last_file` (an interval run: or before its end) that no earlier checkpoint of the line
    has recorded. None where nothing was recorded: earlier releases have only the count in `files_behind`."""
    stamps: tuple[str, ...] = ()
    """For each of `names`, in their order, what its file was like: a digest of size and time of change. Empty where an earlier release
    has recorded the names."""
    number: int = 0
    """Of the source, given once: it orders rows of equal merge keys where sources meet."""
    unread: tuple[str, ...] = ()
    """Names of the files up to `last_file` that still have rows to take in: they are ahead of the sources that this one meets."""
    rows_taken: int = 0
    """How many rows of the first of them were taken in, in arrival order. The punctuation after its last row counts as one."""
    punctuated: int | None = None
    """The last punctuation of a source with complete intervals (ms)."""
    watermark: int | None = None
    """The last watermark of the source's line (ms)."""
    seen: int | None = None
    """The last watermark that all operators of the line have seen (ms): it is before those that are repeated."""
    taken_at: int | None = None
    """When rows of the source were last taken in (ms, processing time)."""
    idle: bool = False
    """Whether the source was idle in this micro-batch, so that others did not wait for it."""
    ended: bool = False
    """Whether the end of input was declared: no more files are taken in."""
    requeued: tuple[RequeuedRows, ...] = ()
    """Rows that have left the quarantine, by file name: the next micro-batches take them in again, before anything else."""
    version: int | None = None
    """Of a table: the last version of which all files were taken up; -1: none. None where a source is no table, or was never looked at."""
    snapshot: int | None = None
    """Of a table: the version whose files were or are taken in as a whole, instead of what its commit changed."""
    table: str | None = None
    """Of a table: its id in Delta's log; of a topic: the id that brokers gave it. One with another id is another one."""
    tables: tuple[TableVersion, ...] = ()
    """Dimension tables of Spark's step over the source: the versions with which the rows taken in last were made."""
    partitions: tuple[PartitionOffset, ...] = ()
    """Of a topic: how far each partition was read. `unread` then has the files of all of them."""


def line_of(offsets: Iterable[SourceOffset]) -> Bucket:
    """Return where the line of ordinals stands that sources share: the furthest that one of them knows."""
    buckets = [offset.bucket for offset in offsets]
    return max(buckets, key=lambda bucket: bucket.next_ordinal, default=Bucket())


def last_number(offsets: Iterable[SourceOffset]) -> int:
    """Return the highest number that a source or a partition has; -1 if there are none."""
    numbers = (number for offset in offsets for number in (offset.number, *(one.number for one in offset.partitions)))
    return max(numbers, default=-1)


def latest_watermark(offsets: Iterable[SourceOffset]) -> int | None:
    """Return the last watermark of the line that sources share (ms)."""
    return latest(offset.watermark for offset in offsets)
