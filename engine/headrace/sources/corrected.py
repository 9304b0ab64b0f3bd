"""Corrected input: what the branch of a backfill reads in the requested intervals in place of a source of the job.

The position stays that of the job's own source: behind such an interval it is the one that the job has recorded, so the branch goes on there with
the job's own input, and so does the job after a promotion. Facts of the micro-batch name the corrected input: whoever repeats it later reads that, too. Rows that had waited for other sources before the interval are taken in; all corrected
rows are taken in with the interval.

    the job's source    |-- day 1 --|-- day 2 --|-- day 3 --|
    the other one                   |-- day 2 --|               backfill of day 2
    the branch takes    |-- day 1 --|-- day 2 --|-- day 3 --|
                           own         other       own
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import zip_longest
from typing import Final

import msgspec
import pyarrow as pa

from headrace.config import CorrectedInput
from headrace.errors import SourceError
from headrace.records.source_columns import EventTimeLimit
from headrace.records.watermarks import Timeline
from headrace.sources.interval import Interval
from headrace.sources.position import NO_FACTS, SourceFacts
from headrace.sources.source import Ahead, Piece, Remark, Source, SourceFile, Want

_FIRST_NUMBER: Final = 1 << 30
"""Number of the first piece of corrected input that no piece of the job's source corresponds to. No checkpoint has it."""


def section_text(given: CorrectedInput) -> str:
    """Return a section of corrected input as checkpoints record it: JSON without defaults."""
    plain = CorrectedInput()
    own = {
        name: getattr(given, name) for name in given.__struct_fields__ if getattr(given, name) != getattr(plain, name)
    }
    return msgspec.json.encode(own).decode()


def section_of(text: str) -> CorrectedInput:
    """Return the section that a checkpoint has recorded."""
    return msgspec.json.decode(text, type=CorrectedInput)


def connection_name(source: str) -> str:
    """Return the name of the connection to the corrected input of a source."""
    return f"{source} (corrected)"


class CorrectedSource(Source):
    """Source of a job in one micro-batch, and the other one that has its rows there."""

    is_corrected = True

    def __init__(self, name: str, own: Source, other: Source) -> None:
        """Keep both sources. Read nothing yet."""
        self._name, self._own, self._other = name, own, other
        self._other_facts = NO_FACTS

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:
        """Yield the remarks on both sources."""
        yield from self._own.remarks(since)
        yield from self._other.remarks()

    def with_pieces(
        self, facts: SourceFacts, number: int, until: SourceFacts | None = None, interval: Interval | None = None
    ) -> SourceFacts:
        """Look at both sources. Raises as they do."""
        self._other_facts = self._other.with_pieces(NO_FACTS, _FIRST_NUMBER, None, interval)
        return self._own.with_pieces(facts, number, until, interval)

    def pieces(
        self, name: str, facts: SourceFacts, recorded: SourceFacts, until: SourceFacts | None = None
    ) -> Sequence[Piece]:
        """Divide the source: each of its pieces goes on with the rows of one of the other source."""
        assert until is not None  # noqa: S101 - only recorded micro-batches have corrected input
        own = self._own.pieces(name, facts, recorded, until)
        other = self._other.pieces(connection_name(name), self._other_facts, NO_FACTS)
        return [*self._paired(own, other, until)]

    def _paired(self, own: Sequence[Piece], other: Sequence[Piece], until: SourceFacts) -> Iterator[Piece]:
        for number, (piece, rest) in enumerate(zip_longest(own, other)):
            if piece is None:
                facts = msgspec.structs.replace(rest.facts, number=_FIRST_NUMBER + number)
                yield rest._replace(source=_CorrectedPiece(self._name, None, rest, facts), facts=facts)
            else:
                whole = until if len(own) == 1 else piece.facts
                after = (whole if piece.until is None else piece.until).with_begun((), 0)  # all rows are taken in
                yield piece._replace(source=_CorrectedPiece(self._name, piece.source, rest, after), until=after)

    def joined(self, facts: SourceFacts, moved: Sequence[SourceFacts]) -> SourceFacts:
        """Return the facts of the job's source after a slice."""
        return self._own.joined(facts, moved[: max(1, len(facts.partitions))])

    def begin(self, facts: SourceFacts, timeline: Timeline, recorded: Sequence[SourceFacts]) -> None:
        """Begin a micro-batch."""
        self._own.begin(facts, timeline, recorded)

    # ------------------------------------------------------------------------------ as the job's source, where it reads

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return what the job's source has ahead."""
        return self._own.plan(since, want)

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files with these names that the job's source has."""
        return self._own.find(names)

    def prepare(self, files: Sequence[SourceFile]) -> None:
        """Make the files of the job's source that tasks will read."""
        self._own.prepare(files)

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files of the job's source, as many as one micro-batch may take."""
        return self._own.within_limits(files, rows_taken)

    def rows(self, file: SourceFile) -> int:
        """Count the rows of a file of the job's source."""
        return self._own.rows(file)

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file of the job's source."""
        return self._own.event_times(file, limit)

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after files of the job's source."""
        return self._own.facts_after(since, ahead, files)


class _CorrectedPiece(Source):
    """Rows of a piece that were begun before the interval, and then those of the other source; its facts become those `after`."""

    def __init__(self, name: str, own: Source | None, other: Piece | None, after: SourceFacts) -> None:
        self._name, self._own, self._other, self._after = name, own, other, after
        self._begun: set[str] = set()

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:  # noqa: ARG002 - the whole source has them
        yield from ()

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        begun = self._begun_files(since)
        self._begun = {file.name for file in begun}
        other = self._other
        rest = () if other is None else other.source.plan(other.facts, Want(interval=want.interval)).files
        files = (*begun, *rest)
        return Ahead(want, files, files)

    def _begun_files(self, since: SourceFacts) -> list[SourceFile]:
        names = [since.name_of(place) for place in since.begun]
        files = {} if self._own is None or not names else self._own.find(names)
        if missing := [name for name in names if name not in files]:
            msg = (
                f"source '{self._name}': {', '.join(missing)} is gone, and not all of its rows were taken in before the corrected interval. Nothing was "
                "taken in. Put it back, or begin the backfill earlier."
            )
            raise SourceError(msg)
        return [files[name] for name in names]

    def _of(self, file: SourceFile) -> Source:
        own = self._own if file.name in self._begun or self._other is None else self._other.source
        assert own is not None  # noqa: S101 - a piece has files of either
        return own

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        return {} if self._own is None else self._own.find(names)

    def prepare(self, files: Sequence[SourceFile]) -> None:
        for file in files:
            self._of(file).prepare([file])

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:  # noqa: ARG002
        return files

    def rows(self, file: SourceFile) -> int:
        return self._of(file).rows(file)

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        return self._of(file).event_times(file, limit)

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:  # noqa: ARG002
        """Return the recorded facts, as if no row waited."""
        return msgspec.structs.replace(self._after, number=since.number, requeued=since.requeued)

    def interval_of(self, name: str) -> Interval | None:
        own = self._own if name in self._begun or self._other is None else self._other.source
        return None if own is None else own.interval_of(name)
