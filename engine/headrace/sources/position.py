"""Position of a source, and the rows that come back to it from the quarantine.

Offset of a source: its reading position, as a checkpoint records it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import groupby

import msgspec

from headrace.names import counted
from headrace.records.watermarks import Bucket, latest

Ranges = tuple[tuple[int, int], ...]
"""Ranges of row numbers: each from its start (inclusive) to its end (exclusive), in order, with gaps between them."""


class RequeuedRows(msgspec.Struct, frozen=True):
    """Rows of one file that wait to be taken in again.

    `ranges` are their row numbers in the stored file; None: all rows. `file_rows` is the file's number of rows when they were
    requeued; None if all rows are taken, so that it does not matter.
    """

    file: str
    ranges: Ranges | None = None
    file_rows: int | None = None

    @property
    def rows(self) -> int | None:
        """Count the rows; None for all rows of the file."""
        return None if self.ranges is None else count_rows(self.ranges)


def ranges_of(numbers: Iterable[int]) -> Ranges:
    """Return row numbers, given in any order, as ranges."""
    places = enumerate(sorted({*numbers}))
    runs = ([number for _, number in run] for _, run in groupby(places, lambda pair: pair[1] - pair[0]))
    return tuple((run[0], run[-1] + 1) for run in runs)


def count_rows(ranges: Ranges) -> int:
    """Count the rows of ranges."""
    return sum(end - start for start, end in ranges)


def rows_in(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """Yield the row numbers of ranges."""
    for start, end in ranges:
        yield from range(start, end)


def with_more(waiting: Iterable[RequeuedRows], more: Iterable[RequeuedRows]) -> tuple[RequeuedRows, ...]:
    """Return the union of rows that wait and more rows, by file name."""
    by_file: dict[str, RequeuedRows] = {}
    for rows in (*waiting, *more):
        former = by_file.get(rows.file)
        by_file[rows.file] = rows if former is None else _union(former, rows)
    return tuple(by_file[name] for name in sorted(by_file))


def _union(one: RequeuedRows, other: RequeuedRows) -> RequeuedRows:
    if one.ranges is None or other.ranges is None:
        return RequeuedRows(one.file)
    return RequeuedRows(one.file, ranges_of((*rows_in(one.ranges), *rows_in(other.ranges))), other.file_rows)


def rows_text(rows: int, files: int) -> str:
    """Return text such as "3 rows and 1 whole file"; a count of 0 is left out."""
    parts = [counted(count, noun) for count, noun in ((rows, "row"), (files, "whole file")) if count]
    return " and ".join(parts)


class PartitionOffset(msgspec.Struct, frozen=True):
    """Reading position in a partition of a topic. Fields have the meaning of the same fields of `SourceOffset`."""

    partition: int
    number: int
    position: int
    """First offset after the last file taken up: the next one to read."""
    last_file: str | None = None
    unread: tuple[str, ...] = ()
    rows_taken: int = 0
    taken_at: int | None = None
    idle: bool = False
    begins_at: int | None = None
    """First offset that the job reads of the partition; None where an earlier release recorded it."""


class TableVersion(msgspec.Struct, frozen=True):
    """Version of a dimension table, by the table's name in the pipeline."""

    name: str
    version: int


class FileVersions(msgspec.Struct, frozen=True):
    """Versions of dimension tables that the rows of one file were made with. `file` is its name in the source below the step."""

    file: str
    tables: tuple[TableVersion, ...]


class SourceOffset(msgspec.Struct, frozen=True):
    """Reading position in a source: the last file taken up, in the source's order, and the bucket.

    Sources that meet share a line of ordinals, so each repeats the facts of the line (`bucket`, `watermark`, `seen`, `repeated`).
    Each also repeats the facts of the whole job (`held`, `pending`, `due`). `held`: some records that were taken in are still in
    `buffered_requests`. `repeated`: watermarks (ordinal, ms) that some operators of the line have not seen for that reason.
    """

    last_file: str | None = None
    bucket: Bucket = Bucket()
    files_behind: int = 0
    held: bool = False
    repeated: tuple[tuple[int, int], ...] = ()
    pending: int = 0
    """Number of elements in `async_requests`."""
    due: int | None = None
    """Time of the next call for one of these elements (ms); None without one."""
    names: tuple[str, ...] | None = None
    """Digests of file names that no earlier checkpoint has recorded: of names up to `last_file`, and, in an interval run, of all
    files before the interval's end. None in checkpoints of earlier releases, which have only the count in `files_behind`."""
    stamps: tuple[str, ...] = ()
    """Digest of size and modification time of each file in `names`, in their order. Empty if an earlier release recorded the names."""
    contents: tuple[str, ...] = ()
    """Digest of the content of each file in `names`, in their order; empty text for a file that no checkpoint took in. Empty if an earlier
    release recorded the names."""
    number: int = 0
    """Number of the source, never changed: it orders rows with equal merge keys."""
    unread: tuple[str, ...] = ()
    """Names of files up to `last_file` that are not finished: some rows are ahead of the other sources."""
    rows_taken: int = 0
    """Rows taken in from the first unread file, in arrival order. The punctuation after its last row counts as a row."""
    punctuated: int | None = None
    """Last punctuation of a source with complete intervals (ms)."""
    watermark: int | None = None
    """Last watermark of the source's line (ms)."""
    seen: int | None = None
    """Last watermark that all operators of the line have seen (ms): it comes before those in `repeated`."""
    taken_at: int | None = None
    """Processing time at which rows of the source were last taken in (ms)."""
    idle: bool = False
    """True: the source was idle in this micro-batch, so the others did not wait for it."""
    ended: bool = False
    """True: the end of input was declared, and no more files are taken in."""
    requeued: tuple[RequeuedRows, ...] = ()
    """Rows that have left the quarantine, by file name: the next micro-batches take them in again, before all other input."""
    version: int | None = None
    """Table: last version with all files taken up; -1 if there is none. None for other sources, and before the first scan."""
    snapshot: int | None = None
    """Table: version that is taken in as a whole (all its files), instead of the changes of its commit."""
    table: str | None = None
    """Table or topic: its id, from Delta's log or from the brokers. A changed id means that it was replaced."""
    tables: tuple[TableVersion, ...] = ()
    """Versions of the Spark step's dimension tables that the last rows taken in were made with."""
    file_tables: tuple[FileVersions, ...] = ()
    """Files of the last micro-batch whose rows were made with other versions than `tables`: an earlier one had made them already."""
    partitions: tuple[PartitionOffset, ...] = ()
    """Topic: reading position in each partition. `unread` then has the files of all partitions."""

    def versions_of(self, file: str) -> tuple[TableVersion, ...] | None:
        """Return the versions of dimension tables that the rows of a file were made with; None if it was not taken up just before."""
        own = next((versions.tables for versions in self.file_tables if versions.file == file), None)
        return self.tables if own is None and digest(file) in (self.names or ()) else own

    def with_other_versions(self) -> SourceOffset:
        """Return the offset without the files whose versions are those of `tables`."""
        others = tuple(versions for versions in self.file_tables if versions.tables != self.tables)
        return msgspec.structs.replace(self, file_tables=others)

    def with_records(self, records: Mapping[str, tuple[str, str]]) -> SourceOffset:
        """Return the offset with further records of files: stamp and digest of the content, by the digests of their names."""
        if not records:
            return self
        names = self.names or ()
        has_all = len(self.contents) == len(self.stamps) == len(names)
        known = dict(zip(names, zip(self.stamps, self.contents, strict=True), strict=True)) if has_all else {}
        together = {**known, **records}
        return msgspec.structs.replace(
            self,
            names=tuple(together),
            stamps=tuple(mark for mark, _ in together.values()),
            contents=tuple(content for _, content in together.values()),
        )


def digest(name: str) -> str:
    """Return the short digest of a file name that checkpoints record."""
    return blake2b(name.encode(), digest_size=8).hexdigest()


def line_of(offsets: Iterable[SourceOffset]) -> Bucket:
    """Return the bucket of the line of ordinals that sources share: the latest one among their offsets."""
    buckets = [offset.bucket for offset in offsets]
    return max(buckets, key=lambda bucket: bucket.next_ordinal, default=Bucket())


def last_number(offsets: Iterable[SourceOffset]) -> int:
    """Return the highest number of all sources and partitions; -1 without any."""
    numbers = (
        number
        for offset in offsets
        for number in (offset.number, *(partition.number for partition in offset.partitions))
    )
    return max(numbers, default=-1)


def latest_watermark(offsets: Iterable[SourceOffset]) -> int | None:
    """Return the last watermark of the line that these sources share (ms); None before the first one."""
    return latest(offset.watermark for offset in offsets)
