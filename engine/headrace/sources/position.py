"""Facts of a source that a checkpoint records: its reading position, and the rows that come back to it from the quarantine.

A position has one *piece* for each partition of a topic; any other source is one piece. So two positions of a topic may each be ahead
of the other.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import ClassVar, Final, Self, TypeVar

import msgspec

from headrace.names import counted
from headrace.sources.delta.names import version_of
from headrace.sources.generations import Generation, name_at
from headrace.sources.kafka.landed import messages_name, parse_landed

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


_DERIVED: Final = re.compile(r"(.+)~([0-9a-f]{8})\.parquet", re.DOTALL)


def derived_name(stored: str, digest: str) -> str:
    """Return the name of derived rows: that of the source's file, and the digest of the Spark transform that made them."""
    return f"{stored}~{digest}.parquet"


def parts_of_derived(name: str) -> tuple[str, str] | None:
    """Return the name of the source's file, and the digest of the transform, for the name of derived rows; None for another name."""
    match = _DERIVED.fullmatch(name)
    return None if match is None else (match[1], match[2])


def stored_name(name: str) -> str:
    """Return the name of the source's file for the name of derived rows; any other name stays."""
    parts = parts_of_derived(name)
    return name if parts is None else parts[0]


Reach = tuple[int, str, float]
"""How far a piece of a source is read: an offset, and the first file that is not whole, with the rows taken of it (infinite: all)."""

NOTHING_READ: Final[Reach] = (-1, "", 0)
"""Comes before each reach, also that of a partition which is to be read from offset 0 on: a position was chosen there."""


class Ordered:
    """Order of positions of one source: total within a piece (a partition of a topic, or the whole of another source), else partial."""

    __slots__ = ()

    @property
    def version(self) -> int | None:
        """Version of a table up to which its files are taken up; None for sources without versions."""
        return None

    @property
    def partitions(self) -> Mapping[int, PartitionPosition]:
        """Positions in the partitions of a source; none for sources without partitions."""
        return {}

    def frontier(self) -> Mapping[str, Reach]:
        """Return how far each piece is read, up to its first file that is not whole. Pieces of which nothing is read are left out."""
        raise NotImplementedError

    def covers(self, other: Ordered) -> bool:
        """Return whether this position reaches as far as another one of the same source in each piece."""
        own = self.frontier()
        return all(own.get(piece, NOTHING_READ) >= reach for piece, reach in other.frontier().items())

    def is_ahead_of(self, other: Position | None) -> bool:
        """Return whether some piece is read further than in another position of the same source."""
        return bool(self.frontier()) if other is None else not other.covers(self)


class _OfFiles(msgspec.Struct, frozen=True, omit_defaults=True):
    """Part of a position that every kind of source has whose files are taken up in their order."""

    last: str = ""
    """Place of the last file taken up, in the source's order. Empty before the first one."""
    begun: tuple[str, ...] = ()
    """Files up to `last` that are not finished: some rows are ahead of the other sources."""
    rows: int = 0
    """Rows taken in from the first of them, in arrival order. The punctuation after its last row counts as a row."""

    def with_begun(self, begun: tuple[str, ...], rows: int) -> Self:
        """Return the position with other begun files, and rows taken in from the first one."""
        return msgspec.structs.replace(self, begun=begun, rows=rows)


class FolderPosition(_OfFiles, Ordered, frozen=True, tag_field="kind", tag="folder", omit_defaults=True):
    """Reading position in a folder."""

    kind_text: ClassVar[str] = "a folder"

    generation: int = 0
    """Generation of `last`; 0 where the files are in the order of their names, and before the first one."""

    @property
    def reached(self) -> str:
        """Return how far the folder was read, as text."""
        return self.name_of(self.last)

    def name_of(self, place: str) -> str:
        """Return the name of the file at a place."""
        return name_at(place) if self.generation and place else place

    def frontier(self) -> Mapping[str, Reach]:
        """Return how far the folder is read."""
        return _reach_of_files(self)


class TablePosition(_OfFiles, Ordered, frozen=True, kw_only=True, tag_field="kind", tag="table", omit_defaults=True):
    """Reading position in a Delta table."""

    kind_text: ClassVar[str] = "a Delta table"

    @property
    def reached(self) -> str:
        """Return how far the table was read, as text."""
        return self.last or f"version {self.version}"

    table_id: str
    """Id of the table, from its log. A changed id means that it was replaced."""
    version: int
    """Last version with all files taken up; -1 if there is none."""
    snapshot: int | None = None
    """Version that is taken in as a whole (all its files), instead of the changes of its commit."""
    listed: int | None = None
    """Last version whose files were listed, where others than versions give the intervals: up to it, the files of intervals that were
    taken in are known, and others wait for theirs. None: `version`."""
    intervals: str = ""
    """Rule by which files have intervals, where their names begin with them; empty without one."""

    def frontier(self) -> Mapping[str, Reach]:
        """Return how far the table is read. Names of files begin with their version, so one of which no file was taken up yet fits in."""
        if not self.last and not self.begun and self.version >= 0:
            return {"": (0, f"{self.version:020d}", math.inf)}
        return _reach_of_files(self)


def _reach_of_files(position: _OfFiles) -> Mapping[str, Reach]:
    if position.begun:
        return {"": (0, stored_name(position.begun[0]), position.rows)}
    return {"": (0, position.last, math.inf)} if position.last else {}


class PartitionPosition(
    Ordered, msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="partition", omit_defaults=True
):
    """Reading position in a partition of a topic. The merge takes a partition for a source of its own, with these facts."""

    kind_text: ClassVar[str] = "a partition of a topic"
    last: ClassVar[str] = ""

    number: int
    """Number of the partition among all sources and partitions of the job, never changed."""
    begins_at: int
    """First offset that the job reads."""
    next: int
    """First offset after the last file taken up: the next one to read."""
    begun: tuple[str, ...] = ()
    rows: int = 0
    taken_at: int | None = None
    idle: bool = False
    latest: int | None = None
    """Time of the latest message taken in (ms), as far as it tells intervals; None without them."""

    @property
    def reached(self) -> str:
        """Return how far the partition was read, as text."""
        return f"offset {self.next}"

    @property
    def read_up_to(self) -> int:
        """Return the first offset that may not be taken in yet; where a file is begun, as if it had no gaps between offsets."""
        begun = None if not self.begun else parse_landed(messages_name(self.begun[0]))
        return self.next if begun is None else begun.range.first + self.rows

    def with_begun(self, begun: tuple[str, ...], rows: int) -> Self:
        """Return the position with other begun files, and rows taken in from the first one."""
        return msgspec.structs.replace(self, begun=begun, rows=rows)

    def frontier(self) -> Mapping[str, Reach]:
        """Return how far the partition is read."""
        return {"": (self.read_up_to, "", 0)}


class TopicPosition(Ordered, msgspec.Struct, frozen=True, tag_field="kind", tag="topic", omit_defaults=True):
    """Reading position in a topic: one in each partition."""

    kind_text: ClassVar[str] = "a topic"
    last: ClassVar[str] = ""
    rows: ClassVar[int] = 0

    topic_id: str
    """Id of the topic, from the brokers. A changed id means that it was replaced."""
    partitions: dict[int, PartitionPosition] = {}

    @property
    def reached(self) -> str:
        """Return how far the topic was read, as text."""
        return ", ".join(f"{number}:{partition.next}" for number, partition in self.partitions.items())

    @property
    def begun(self) -> tuple[str, ...]:
        """Return the begun files of all partitions."""
        return tuple(name for partition in self.partitions.values() for name in partition.begun)

    def with_begun(self, begun: tuple[str, ...], rows: int) -> Self:  # noqa: ARG002 - each partition has its own
        """Return the position as it is: only partitions have begun files."""
        return self

    @property
    def whole_up_to(self) -> int | None:
        """Return the time up to which all messages are taken in (ms), leaving out idle partitions; None where nobody can tell."""
        latest = [own.latest for own in self.partitions.values() if not own.idle]
        known = [time for time in latest if time is not None]
        return min(known) if known and len(known) == len(latest) else None

    @property
    def latest(self) -> int | None:
        """Return the time of the latest message taken in (ms), as far as it tells intervals."""
        return max((own.latest for own in self.partitions.values() if own.latest is not None), default=None)

    def frontier(self) -> Mapping[str, Reach]:
        """Return how far each partition is read."""
        return {str(number): reach for number, own in self.partitions.items() for reach in own.frontier().values()}


Position = FolderPosition | TablePosition | PartitionPosition | TopicPosition
_P = TypeVar("_P", FolderPosition, TablePosition, PartitionPosition, TopicPosition)


class TakenFile(msgspec.Struct, frozen=True, array_like=True):
    """Record of a file that a checkpoint passed: digests of its name, of its size and modification time, and of its content."""

    name: str
    stamp: str
    content: str
    """Empty text for a file that no checkpoint took in."""


class PassedVersion(msgspec.Struct, frozen=True, omit_defaults=True):
    """Version of a table whose changes the job passed over: its operation, the number of files that it removed, and its time (ms)."""

    version: int
    operation: str
    files: int
    timestamp: int
    corrected_by: str | None = None
    """Job whose promotion the version is: it has corrected rows that it wrote before. None for other versions."""


class LateFile(msgspec.Struct, frozen=True, array_like=True):
    """File of a table that came to an interval which was taken in already: its name, and start and end of its interval (ms)."""

    name: str
    start: int
    end: int
    corrected_by: str | None = None
    """Job whose promotion has corrected rows of the interval. None for other files."""


class TableVersion(msgspec.Struct, frozen=True):
    """Version of a dimension table, by the table's name in the pipeline."""

    name: str
    version: int


class FileVersions(msgspec.Struct, frozen=True):
    """Versions of dimension tables that the rows of one file were made with. `file` is its place in the source below the transform."""

    file: str
    tables: tuple[TableVersion, ...]


class SourceFacts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of a source that a checkpoint records. Its ordinals and watermarks are those of its timeline."""

    number: int = 0
    """Number of the source, never changed: it orders rows with equal merge keys."""
    position: Position | None = None
    """None before the first look of a table, and before the first file of a folder."""
    taken_at: int | None = None
    """Processing time at which rows of the source were last taken in (ms)."""
    idle: bool = False
    """True: the source was idle in this micro-batch, so the others did not wait for it."""
    ended: bool = False
    """True: the end of input was declared, and no more files are taken in."""
    punctuated: int | None = None
    """Last punctuation of a source with complete intervals (ms)."""
    requeued: tuple[RequeuedRows, ...] = ()
    """Rows that have left the quarantine, by file name: the next micro-batches take them in again, before all other input."""
    taken: tuple[TakenFile, ...] = ()
    """Records of files that no earlier checkpoint has: of files up to the last one, and, in an interval run, of all files before the
    interval's end. An acknowledgement records a file anew."""
    passed_over: tuple[PassedVersion, ...] = ()
    """Versions of a table that this micro-batch passed over."""
    late: tuple[LateFile, ...] = ()
    """Files that this micro-batch passed over, since their intervals were taken in before they came."""
    commit_times: tuple[tuple[int, int], ...] = ()
    """Versions of a table, each with its commit time (ms), that this micro-batch saw first: later looks find the same times."""
    corrected: str | None = None
    """Input that this micro-batch took in in place of the source's own: its section of `replay.sources`, as JSON. None: its own."""
    corrected_content: dict[str, str] | None = None
    """What the micro-batch took in of that, by name: what tells its content. None: nothing, or nobody knows."""
    tables: tuple[TableVersion, ...] = ()
    """Versions of the Spark transform's dimension tables that the last rows taken in were made with."""
    file_tables: tuple[FileVersions, ...] = ()
    """Files of the last micro-batch whose rows were made with other versions than `tables`: an earlier one had made them already."""
    seen: Generation | None = None
    """Generation that this checkpoint's listing has begun; None if no file was new, and for a source without generations."""

    @property
    def last(self) -> str:
        """Return the place of the last file taken up; empty before the first one, and for a topic."""
        return "" if self.position is None else self.position.last

    @property
    def last_name(self) -> str:
        """Return the name of the last file taken up; empty before the first one, and for a topic."""
        return self.name_of(self.last)

    def name_of(self, place: str) -> str:
        """Return the name of the file at a place of the source's order."""
        folder = self.position_as(FolderPosition)
        return place if folder is None else folder.name_of(place)

    @property
    def begun(self) -> tuple[str, ...]:
        """Return the places of the files that were begun and are not finished."""
        return () if self.position is None else self.position.begun

    @property
    def rows(self) -> int:
        """Return the number of rows taken in from the first begun file."""
        return 0 if self.position is None else self.position.rows

    @property
    def version(self) -> int | None:
        """Return the version of a table up to which its files are taken up; None before the first look, and for another source."""
        return None if self.position is None else self.position.version

    @property
    def begun_version(self) -> int:
        """Return the last version of a table of which a file was taken up; -1 without one."""
        begun, position = map(version_of, (self.last, *self.begun)), self.position_as(TablePosition)
        return -1 if position is None else max([position.version, position.listed or -1, *begun])

    def for_next(self) -> SourceFacts:
        """Return the facts with which another micro-batch begins: without what tells of one micro-batch alone."""
        return msgspec.structs.replace(
            self,
            taken=(),
            passed_over=(),
            late=(),
            commit_times=(),
            seen=None,
            corrected=None,
            corrected_content=None,
        )

    @property
    def partitions(self) -> Mapping[int, PartitionPosition]:
        """Return the positions in the partitions of a source; none for one without partitions."""
        return {} if self.position is None else self.position.partitions

    def position_as(self, kind: type[_P]) -> _P | None:
        """Return the position if it is of this kind; None for another kind, and before the first look at the source."""
        return self.position if isinstance(self.position, kind) else None

    def with_begun(self, begun: tuple[str, ...], rows: int) -> SourceFacts:
        """Return the facts with other begun files, and rows taken of the first one; unchanged without a position, and for a topic."""
        if self.position is None:
            return self
        return msgspec.structs.replace(self, position=self.position.with_begun(begun, rows))

    def is_ahead_of(self, other: SourceFacts | None) -> bool:
        """Return whether the source is read further than in `other`, in some piece."""
        return self.position is not None and self.position.is_ahead_of(None if other is None else other.position)

    def versions_of(self, file: str) -> tuple[TableVersion, ...] | None:
        """Return the versions of dimension tables that the rows of the file at a place were made with; None if it was not taken up just before."""
        own = next((versions.tables for versions in self.file_tables if versions.file == file), None)
        is_taken = digest(self.name_of(file)) in {taken.name for taken in self.taken}
        return self.tables if own is None and is_taken else own

    def with_other_versions(self) -> SourceFacts:
        """Return the facts without the files whose versions are those of `tables`."""
        others = tuple(versions for versions in self.file_tables if versions.tables != self.tables)
        return msgspec.structs.replace(self, file_tables=others)

    def with_records(self, records: Iterable[TakenFile]) -> SourceFacts:
        """Return the facts with further records of files. A record takes the place of one of the same file."""
        together = {taken.name: taken for taken in (*self.taken, *records)}
        return msgspec.structs.replace(self, taken=tuple(together.values()))


NO_FACTS: Final = SourceFacts()
"""A source of which nothing was read yet."""


def frontiers(sources: Mapping[str, SourceFacts]) -> dict[tuple[str, str], Reach]:
    """Return how far each piece of each source is read, by the names of the source and of the piece."""
    return {
        (name, piece): reach
        for name, facts in sources.items()
        if facts.position is not None
        for piece, reach in facts.position.frontier().items()
    }


def digest(name: str) -> str:
    """Return the short digest of a file name that checkpoints record."""
    return blake2b(name.encode(), digest_size=8).hexdigest()


def last_number(sources: Iterable[SourceFacts]) -> int:
    """Return the highest number of all sources and partitions; -1 without any."""
    numbers = (
        number
        for facts in sources
        for number in (facts.number, *(partition.number for partition in facts.partitions.values()))
    )
    return max(numbers, default=-1)
