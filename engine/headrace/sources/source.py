"""Interface of sources, their files, and limits of what a slice takes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, NamedTuple, Protocol, Self

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.config import JobConfig, SourceConfig
from headrace.records.source_columns import EventTimeLimit
from headrace.records.watermarks import Timeline
from headrace.sources.folder.format import FileRows
from headrace.sources.generations import Generation, Generations, place_of
from headrace.sources.interval import Interval
from headrace.sources.kafka.landed import Topic
from headrace.sources.position import (
    NO_FACTS,
    LateFile,
    PassedVersion,
    Position,
    Ranges,
    SourceFacts,
    TakenFile,
    count_rows,
    digest,
)
from headrace.storage.storage import Storage

NOTHING_MORE: Final = msgspec.Raw(b"null")
"""Facts of a file of which its format needs to know nothing more."""


class InputFile(msgspec.Struct, frozen=True):
    """File of a source in a slice: its rows that are taken in, and their arrival ordinals.

    `rows` is the number of rows in the whole file. The slice takes rows [`first_row`, `last_row`) in arrival order within the
    file (after `order_by`); `last_row` None means the end. Their ordinals are in the Parquet file `ordinals` (one column, one
    row for each), or consecutive from `first_ordinal` if that is None.

    With `picked`, the slice takes the rows with these numbers in the stored file instead: they return from the quarantine.
    """

    source: str
    path: str
    name: str
    rows: int
    first_ordinal: int
    first_row: int = 0
    last_row: int | None = None
    ordinals: str | None = None
    picked: Ranges | None = None
    format: str = "parquet"
    """Format of the file: `headrace.sources.registry` finds its reader by it."""
    facts: msgspec.Raw = NOTHING_MORE
    """What only this format knows of the rows, as JSON. No other code reads it."""

    @property
    def taken(self) -> int:
        """Count the rows that are taken in."""
        if self.picked is not None:
            return count_rows(self.picked)
        return (self.rows if self.last_row is None else self.last_row) - self.first_row

    @property
    def is_part(self) -> bool:
        """Return whether only a part of the file's rows is taken in."""
        return self.first_row > 0 or self.last_row not in {None, self.rows}


@dataclass(frozen=True, slots=True)
class TakenIn:
    """Input of a source that checkpoints record as taken in: digests of file names, and intervals.

    `names` is None if no checkpoint has the source.
    """

    names: frozenset[str] | None = None
    intervals: tuple[Interval, ...] = ()
    beginning: int = 0
    """Start of the first interval (ms): earlier files are left out. 0 where a table was read before its first interval."""
    lasts: tuple[tuple[int, str], ...] = ()
    """Checkpoints that can be restored, the oldest first, each with the last file that was taken in by then."""

    versions: tuple[tuple[int, int], ...] = ()
    """The same checkpoints, each with the last version of a table that was read by then; -1 without one."""

    late: tuple[LateFile, ...] = ()
    """Files that came to intervals which were taken in before, and that were passed over."""

    facts: SourceFacts = NO_FACTS
    """Facts of the source after the last checkpoint."""

    commit_times: Mapping[int, int] = field(default_factory=dict)
    """Commit times (ms) that any checkpoint has recorded, by version, as `generations`."""

    dated: frozenset[int] = frozenset()
    """Versions whose commit times this lineage itself has recorded: a branch records those of its job again."""

    generations: Generations = field(default_factory=dict)
    """Generations that any checkpoint has recorded, also one that was left behind by a restore, and on a branch those of its job."""

    began: int = 0
    """When the job began (ms)."""

    def with_acknowledged(self, records: Sequence[TakenFile]) -> TakenIn:
        """Return the input with further files that somebody has acknowledged."""
        if not records:
            return self
        names = frozenset(record.name for record in records)
        late = tuple(file for file in self.late if digest(file.name) not in names)
        return replace(self, names=(self.names or frozenset()) | names, late=late)

    def checkpoint_at(self, version: int) -> int | None:
        """Return the last checkpoint that had read no version of a table above this one; None if it is unknown."""
        return max((number for number, last in self.versions if last <= version), default=None)

    def checkpoint_before(self, name: str) -> int | None:
        """Return the last checkpoint that had taken in no file from `name` on; None if it is unknown."""
        return max((number for number, last in self.lasts if last < name), default=None)

    @property
    def reached(self) -> int | None:
        """Return the end of the last interval that was taken in (ms); None without one."""
        return self.intervals[-1].end if self.intervals else None

    def around(self, timestamp: int) -> Interval | None:
        """Return the interval or the gap between intervals that contains a timestamp; None before the first and after the last."""
        end: int | None = None
        for interval in self.intervals:
            if interval.start <= timestamp < interval.end:
                return interval
            if end is not None and end <= timestamp < interval.start:
                return Interval(end, interval.start)
            end = interval.end
        return None


class SourceFile(NamedTuple):
    """File of a source, ordered by name. `modified` is the time of its last change (ns since the epoch), `size` its bytes.

    `generation` is 0 in a source without generations.
    """

    name: str
    path: str
    modified: int
    format: str = "parquet"
    facts: msgspec.Raw = NOTHING_MORE
    size: int = 0
    generation: int = 0

    @property
    def place(self) -> str:
        """Return the place of the file in the order of its source. Positions have places."""
        return place_of(self.name, self.generation)

    def taken(
        self,
        source: str,
        rows: int,
        first_ordinal: int,
        *,
        first_row: int = 0,
        last_row: int | None = None,
        ordinals: str | None = None,
        picked: Ranges | None = None,
    ) -> InputFile:
        """Return the file in a slice; `InputFile` describes the arguments."""
        return InputFile(
            source,
            self.path,
            self.name,
            rows,
            first_ordinal,
            first_row,
            last_row,
            ordinals,
            picked,
            self.format,
            self.facts,
        )


class ListedFile(NamedTuple):
    """A file of a source that is there at present, and its interval; None without a pattern."""

    file: SourceFile
    interval: Interval | None = None


class TableReach(NamedTuple):
    """Position that the files ahead in a table or a partition lead to: up to and including `version`.

    `snapshot` is the version that is taken in as a whole. The position `is_provisional` if a later first look would begin
    elsewhere. `listed`, `late` and `commit_times` are those of the position, and of the facts after it.
    """

    version: int
    snapshot: int | None = None
    is_provisional: bool = False
    passed_over: tuple[PassedVersion, ...] = ()
    """Versions whose changes are passed over."""
    last: str = ""
    """Place up to which all files count as taken up, whether there is one or not."""
    listed: int | None = None
    late: tuple[LateFile, ...] = ()
    commit_times: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Want:
    """Input that a slice wants of a source: that of `interval`, or up to and including the file at place `until`, or all there is.

    With both, it wants the files of the recorded micro-batch that ended with `until`, and late files of the interval. `taken_in` is what
    checkpoints record. A source that `meets` others may have taken up files of the interval before.
    """

    taken_in: TakenIn = TakenIn()
    interval: Interval | None = None
    until: str | None = None
    meets: bool = False


@dataclass(frozen=True, slots=True)
class Ahead:
    """Input that lies ahead of a position, as `want` asked: the files to take in next, in order, and all files that exist (`listed`)."""

    want: Want
    files: tuple[SourceFile, ...]
    listed: tuple[SourceFile, ...]
    reach: TableReach | None = None
    beyond: tuple[SourceFile, ...] = ()
    """Files after those that a recorded micro-batch came to, in order."""
    seen: Generation | None = None
    """Generation that begins with this slice."""
    has_waiting: bool = False
    """True: files that are new wait for the end of the present generation, and are not `listed`."""

    @property
    def needs_checkpoint(self) -> bool:
        """Return whether a checkpoint must record the position even if nothing is taken in."""
        if self.reach is None:
            return False
        return self.reach.is_provisional or (bool(self.reach.passed_over or self.reach.late) and not self.files)


Outcome = Literal["ok", "warn", "fail"]
"""Result of a check."""


class Remark(NamedTuple):
    """Remark on a source for people: whether a run could read it, and what to do. `key` is the key in its configuration to mend."""

    outcome: Outcome
    text: str
    advice: str = ""
    key: str | None = None


class Piece(NamedTuple):
    """Part of a source whose rows are in one order: a source of the merge, with its facts.

    `until` are its facts after the recorded micro-batch that the slice repeats; None where they are those of the whole source.
    """

    name: str
    source: Source
    facts: SourceFacts
    until: SourceFacts | None = None


class Source(Protocol):
    """Input of a job, as its driver sees it. Each kind says what stands first; the rest is for kinds that have more."""

    is_corrected: bool = False
    """True: the slice takes the rows of another source in place of its own; see `headrace.sources.corrected`."""

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:
        """Yield remarks on whether a run could read the source, after the position in `since`. Reads no rows."""
        ...

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return the files after the position in `since`, in order.

        Raises `SourceError` for input that is gone or was replaced, and for a late file that would never be read.
        """
        ...

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files with these names that exist. Raises `SourceError` when the folder is gone."""
        ...

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take. `rows_taken` rows of the first one were taken in before."""
        ...

    def rows(self, file: SourceFile) -> int:
        """Count the rows of a file. Raises `SourceError` when it cannot be read, unless such files go to quarantine."""
        ...

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file in arrival order (ms), null for a row that is refused, also one beyond the `limit`."""
        ...

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after the first `files` of those ahead, with the records of files that a checkpoint has to make."""
        ...

    # ------------------------------------------------------------------------------------------------- with intervals

    def listed(self, taken_in: TakenIn) -> Sequence[ListedFile]:  # noqa: ARG002 - for kinds with intervals
        """Return the files that are there with their intervals, in order, to compare them with what was `taken_in`.

        A source whose position tells what was taken in leaves out those files. Raises `SourceError` when the folder is gone.
        """
        return ()

    def interval_of(self, name: str) -> Interval | None:  # noqa: ARG002 - for kinds with intervals
        """Return the interval of a file that the source has planned or listed; None for sources without intervals."""
        return None

    def whole_up_to(self, last: str) -> int | None:  # noqa: ARG002 - as above
        """Return the time before which the source has no rows behind file `last`, as it was planned last (ms); None without such files."""
        return None

    def check_intervals(self, taken_in: TakenIn) -> None:  # noqa: ARG002 - as above
        """Raise `SourceError` for an interval run that could not continue after `taken_in`."""
        return

    # --------------------------------------------------------------------------------------------- with several pieces

    def with_pieces(
        self,
        facts: SourceFacts,
        number: int,  # noqa: ARG002 - for kinds with several pieces
        until: SourceFacts | None = None,  # noqa: ARG002 - as above
        interval: Interval | None = None,  # noqa: ARG002 - as above
    ) -> SourceFacts:
        """Look at the source before a slice, of an `interval` or of all input; return the facts with all of its pieces. New pieces get numbers from `number` on.

        For a slice that ends where a recorded micro-batch did, `until` are the facts after that: they say which pieces are new, and
        where they begin. Raises `SourceError` for a source that was replaced, and for a piece that no longer exists.
        """
        return facts

    def pieces(
        self,
        name: str,
        facts: SourceFacts,
        recorded: SourceFacts,  # noqa: ARG002 - as above
        until: SourceFacts | None = None,  # noqa: ARG002 - as above
    ) -> Sequence[Piece]:
        """Divide the source called `name`. `recorded` are the facts of the last checkpoint, and `until` those of `with_pieces`."""
        return (Piece(name, self, facts),)

    def joined(self, facts: SourceFacts, moved: Sequence[SourceFacts]) -> SourceFacts:  # noqa: ARG002 - as above
        """Return the facts of the source from those of its pieces after a slice; `facts` are those before it."""
        (whole,) = moved
        return whole

    # ---------------------------------------------------------------------------------- with files of their own making

    def begin(
        self,
        facts: SourceFacts,  # noqa: ARG002 - for kinds that make their files
        timeline: Timeline,  # noqa: ARG002 - as above
        recorded: Sequence[SourceFacts],  # noqa: ARG002 - as above
    ) -> None:
        """Begin a micro-batch at the facts of the last checkpoint.

        If it repeats or follows another one, `recorded` has the facts after that one, and may have those after later ones.
        """
        return

    def prepare(self, files: Sequence[SourceFile]) -> None:  # noqa: ARG002 - as above
        """Make the files that tasks will read, where they are not there yet. Raises `SourceError` for one that cannot be made."""
        return


class SourceKind(Source, Protocol):
    """Kind of a source that a job's file names by its format."""

    position: ClassVar[type[Position]]
    """Kind of its positions."""

    @classmethod
    def of(cls, node: SourceNode, job: JobConfig, connection: Topic | None = None) -> Self:
        """Make the source that the pipeline declares as `node`. Read nothing.

        Without a `connection`, where the kind has one, the source has only the files that are landed.
        """
        ...

    @staticmethod
    def read(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
        """Read all rows of a file, in the driver or in a task. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
        ...


def first_files(
    files: Sequence[SourceFile], config: SourceConfig, rows_of: Callable[[SourceFile], int], rows_taken: int
) -> Sequence[SourceFile]:
    """Return the first files within the limits of a source, but at least one if there is one; `rows_of` counts a file's rows.

    `rows_taken` rows of the first file were taken in before. What is left of it counts by its rows, but not as a file: otherwise
    a micro-batch of one file would take in the rest of a file alone.
    """
    chosen = files[: config.max_files_per_batch + (rows_taken > 0)]
    limit = config.max_rows_per_batch
    if limit is None:
        return chosen
    rows = 0
    for count, file in enumerate(chosen):
        rows += max(rows_of(file) - (0 if count else rows_taken), 0)
        if rows > limit:
            return chosen[: max(count, 1)]
    return chosen
