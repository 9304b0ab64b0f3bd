"""Intervals of a table's files: by the commit times of its versions, by the values of a partition column, or by those of any column of times.

Which interval a file has depends on the table alone, never on when a run looked:

    by: committed    the time of its version's commit. Times of versions never go back: as for Delta's time travel, a commit whose clock
                     was behind counts as a millisecond after the one before it. A time is recorded when a checkpoint first sees it
    by: partition    the period that the value of its partition column names
    by: column       the period of the row's time in the column. A row that came more than the `lateness` behind its period counts for the one that
                     was that long before its commit, and a row ahead of its commit for that of the commit. So a file is one part for each period

By partition, a commit that is passed over (`on_change`) rewrites intervals: those of the partitions in which it removes or rewrites rows. Such an interval is taken
in as the last version has it; if it was taken in before, the commit is late.

A run of an interval takes in the files of the interval, in the order (interval, version, path). A file that comes to an interval which was taken in
before is late: runs pass it over and report it, until a backfill takes it in or somebody acknowledges it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cached_property
from typing import ClassVar, Final, NamedTuple, Protocol

import numpy as np

from headrace import clock
from headrace.config import IntervalOptions, SourceConfig
from headrace.errors import ConfigError, IntervalError, OpenIntervalError, SourceError
from headrace.sources.delta.errors import DeltaErrors
from headrace.sources.delta.names import MOVED, REWRITTEN, kind_of, start_of, version_of
from headrace.sources.delta.rows import Times, Within
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import LateFile, SourceFacts, TablePosition, digest
from headrace.sources.source import SourceFile, TakenIn, Want
from headrace.storage.delta_log import DeltaCommit, LoggedFile, TableState
from headrace.storage.delta_schema import TIMES, DeltaColumn

_MOST_AHEAD: Final = timedelta(days=1) // timedelta(milliseconds=1)
"""How far a commit time may lie ahead of this machine's clock (ms): behind it, all later commits would have times as wrong."""

_CLOCKS_APART: Final = 60_000
"""Distance (ms) of clocks at which an interval counts as over. Commits of its last seconds may be late, then."""


class Part(NamedTuple):
    """Rows of a file that have one interval."""

    start: int | None = None
    """Start of the interval (ms), which the name has; None where the version alone gives it."""
    within: Within | None = None
    """Rows of the part; None: all rows of the file."""
    bounds: str = ""
    """End of the kind in the name: which times the part has beside those of its interval."""
    problem: str | None = None
    """Why the file has no interval, if so."""


class TableIntervals(Protocol):
    """Rule by which the files of a table have intervals."""

    starts_in_names: ClassVar[bool]
    """The names of files begin with the start of their interval, so they are not in the order of versions."""
    are_rewritten: ClassVar[bool]
    """A commit that is passed over rewrites some intervals; else it is passed over in all of them."""

    @property
    def rule(self) -> str:
        """Return what decides which interval a file has; empty where its version alone does."""
        ...

    def look(self, taken_in: TakenIn, first: int) -> None:
        """Begin to look at the table's versions, from the `first` one that was not taken in."""
        ...

    def parts(self, version: int, file: LoggedFile, state: TableState) -> Sequence[Part]:
        """Return the parts of a file by their intervals. Raises `SourceError` for a table that cannot have such intervals."""
        ...

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval of the file with a name; None where the log does not tell it any more."""
        ...

    def is_before(self, version: int, interval: Interval) -> bool:
        """Return whether a version, and so all earlier ones, have no file of an interval, nor of a later one."""
        ...

    def is_behind(self, version: int, interval: Interval) -> bool:
        """Return whether a version, and so all later ones, have no file of an interval, nor of an earlier one."""
        ...

    def check(self, want: Want) -> None:
        """Raise `ConfigError` or `IntervalError` for input that has no such intervals."""
        ...

    def new_times(self, want: Want, reached: int) -> Iterable[tuple[int, int]]:
        """Return versions and their commit times (ms) that a checkpoint has to record once it has looked up to version `reached`."""
        ...


class TableReader(Protocol):
    """Reader of the table whose files have intervals. All methods raise `SourceError`."""

    def commit(self, version: int) -> DeltaCommit:
        """Read a version."""
        ...

    def latest_state(self) -> TableState:
        """Return the latest state of the table."""
        ...

    def times(self, version: int, logged: LoggedFile, state: TableState, column: str, zone: str) -> Times:
        """Read the times of a file's counting rows in a column, by a time zone."""
        ...


def intervals_of_table(config: SourceConfig, errors: DeltaErrors, table: TableReader) -> TableIntervals | None:
    """Return the intervals of a source's table; None if its files have none."""
    own = config.intervals
    if own is None:
        return None
    if own.by == "partition":
        return PartitionIntervals(config, errors, own)
    kind = CommitIntervals if own.by == "committed" else ColumnIntervals
    return kind(config, errors, table)


class CommitIntervals:
    """Intervals by the commit times of versions."""

    starts_in_names: ClassVar[bool] = False
    are_rewritten: ClassVar[bool] = False

    @property
    def rule(self) -> str:
        """Return nothing: checkpoints record the times."""
        return ""

    def __init__(self, config: SourceConfig, errors: DeltaErrors, table: TableReader) -> None:
        """Keep the arguments; read nothing yet."""
        self._config, self._errors, self._table = config, errors, table
        self._first = 0
        self._times: dict[int, int] = {}

    def look(self, taken_in: TakenIn, first: int) -> None:
        """Begin at the `first` version, with the times that checkpoints have recorded."""
        self._first, self._times = first, dict(taken_in.commit_times)

    def parts(
        self,
        version: int,  # noqa: ARG002 - for intervals by columns
        file: LoggedFile,  # noqa: ARG002 - as above
        state: TableState,  # noqa: ARG002 - as above
    ) -> Sequence[Part]:
        """Return the whole file: the version gives the interval."""
        return (Part(),)

    def interval_of(self, name: str) -> Interval | None:
        """Return the millisecond of the commit."""
        version = version_of(name)
        if version < self._first and version not in self._times:
            return None
        time = self.time_of(version)
        return Interval(time, time + 1)

    def is_before(self, version: int, interval: Interval) -> bool:
        """Return whether a version was committed before the interval's start."""
        return self.time_of(version) < interval.start

    def is_behind(self, version: int, interval: Interval) -> bool:
        """Return whether a version was committed at the interval's end or later."""
        return not self._config.skips(version) and self.time_of(version) >= interval.end

    def check(self, want: Want) -> None:
        """Raise `IntervalError` for an interval that is not over: more commits may come to it."""
        if want.interval is None or want.until is not None or want.interval.end <= clock.now() + _CLOCKS_APART:
            return
        end = timestamp_text(want.interval.end)
        msg = (
            f"source '{self._errors.source}': interval {want.interval} is not over, and all commits up to {end} belong to it. Nothing was taken in. "
            "Run it after its end, or take in what is there with --mode caught-up."
        )
        raise OpenIntervalError.until(msg, want.interval.end)

    def new_times(self, want: Want, reached: int) -> Iterable[tuple[int, int]]:
        """Yield the times of versions that are taken in or late, of the last one, and of later ones whose times the log does not keep."""
        beginning = None if want.interval is None else want.interval.start
        if reached >= self._first:
            self.time_of(
                reached
            )  # also of one without files: the next version cannot be earlier, whenever somebody looks at it
        for version in sorted(self._times.keys() - want.taken_in.dated):
            time = self._times[version]
            counts = version == reached or (version < reached and (beginning is None or time >= beginning))
            if counts or not self._is_dated(version):
                yield version, time

    def _is_dated(self, version: int) -> bool:
        return self._config.skips(version) or self._table.commit(version).is_dated

    def time_of(self, version: int) -> int:
        """Return the commit time of a version (ms): later than that of each version before it."""
        start = version
        while start not in self._times and start - 1 not in self._times and start > self._first:
            start -= 1
        for number in range(start, version + 1):
            if number not in self._times:
                self._times[number] = self._next_time(number, self._time_before(number))
        return self._times[version]

    def _time_before(self, version: int) -> int | None:
        """Return the time of the version before; if no checkpoint has it, that of the last one before it that is known."""
        if version - 1 in self._times:
            return self._times[version - 1]
        return max((time for number, time in self._times.items() if number < version), default=None)

    def _next_time(self, version: int, before: int | None) -> int:
        if self._config.skips(version):
            return before or 0
        time = self._table.commit(version).timestamp
        if time > clock.now() + _MOST_AHEAD:
            raise self._errors.committed_ahead(version, timestamp_text(time))
        return time if before is None else max(time, before + 1)


class ColumnIntervals(CommitIntervals):
    """Intervals by the values of a column of times, as far as commits may lie behind them."""

    starts_in_names = True

    def __init__(self, config: SourceConfig, errors: DeltaErrors, table: TableReader) -> None:
        """Keep the arguments; read nothing yet."""
        super().__init__(config, errors, table)
        own, pattern = config.intervals, config.pattern
        assert own is not None and own.column is not None and own.lateness is not None  # noqa: S101, PT018 - the job's file was checked
        assert pattern is not None  # noqa: S101 - as above
        self._column, self._pattern = own.column, pattern
        self._lateness = own.lateness // timedelta(milliseconds=1)

    @property
    def rule(self) -> str:
        """Return column, by its name in files, periods and lateness."""
        return f"by column {self._stored}, {self._pattern.text} in {self._pattern.zone.key}, {self._lateness:,} ms late"

    def parts(self, version: int, file: LoggedFile, state: TableState) -> Sequence[Part]:
        """Return a part for each period of which the file has rows. Raises `SourceError` for a table without such a column."""
        column = self._column_in(state)
        if column is None or not _has_times(column):
            raise self._errors.no_column_of_times(version, self._column, None if column is None else column.type)
        starts = [*self._starts(self.time_of(version))]
        times = self._table.times(version, file, state, column.name, self._pattern.zone.key)
        places = np.searchsorted(np.array(starts[1:], np.int64), times.values, side="right")
        return [
            self._part(column.name, starts[place], is_first=place == 0, is_last=place == len(starts) - 1)
            for place in np.unique(np.where(times.known, places, 0)).tolist()
        ]

    def problem(self, version: int, state: TableState) -> SourceError | None:
        """Return the error for a version of the table that does not have the column, or another type of it; None without one."""
        column = self._column_in(state)
        if column is not None and _has_times(column):
            return None
        return self._errors.no_column_of_times(version, self._column, None if column is None else column.type)

    @cached_property
    def _stored(self) -> str:
        """Name of the column in data files: it stays where the column is renamed. Each file is asked for it, and each look lists the log."""
        columns = self._table.latest_state().columns
        return next((own.stored for own in columns if own.name == self._column), self._column)

    def _column_in(self, state: TableState) -> DeltaColumn | None:
        """Return the column as a version of the table has it, maybe under an earlier name; None where it does not."""
        stored = self._stored
        own = next((column for column in state.columns if column.stored == stored), None)
        return own or next((column for column in state.columns if column.name == self._column), None)

    def _starts(self, committed: int) -> Iterator[int]:
        """Yield the starts of the periods for which rows of a commit can count (ms)."""
        start, end = self._pattern.period_at(committed - self._lateness)
        yield start
        while end <= committed:
            start, end = self._pattern.period_at(end)
            yield start

    def _part(self, column: str, start: int, *, is_first: bool, is_last: bool) -> Part:
        end = self._pattern.period_at(start)[1]
        within = Within(column, self._pattern.zone.key, None if is_first else start, None if is_last else end)
        return Part(start, within, _BOUNDS[is_first, is_last])

    def part_named(self, name: str, state: TableState) -> Part:
        """Return the part that a file's name stands for. `state` is that of its version."""
        start, column = start_of(name), self._column_in(state)
        if start is None or column is None:
            return Part()
        bounds = kind_of(name).partition("-")[2]
        return self._part(column.name, start, is_first=bounds in {"early", "any"}, is_last=bounds in {"late", "any"})

    def interval_of(self, name: str) -> Interval | None:
        """Return the period whose start is in the name."""
        start = start_of(name)
        return None if start is None else Interval(*self._pattern.period_at(start))

    def is_behind(self, version: int, interval: Interval) -> bool:
        """Return whether a version was committed so late after an interval's end that its rows count for later ones."""
        late = Interval(interval.start + self._lateness, interval.end + self._lateness)
        return super().is_behind(version, late)

    def check(self, want: Want) -> None:
        """Raise `ConfigError` for a run without an interval, or with one that cuts through a period; `IntervalError` while rows may come to it."""
        source, wanted = self._errors.source, want.interval
        if wanted is None:
            raise without_interval(source, "column", "rows of a period may come until its lateness has passed")
        if want.until is not None:
            return
        if not self._pattern.is_whole(wanted.start, wanted.end):
            cut = next(time for time in (wanted.start, wanted.end) if self._pattern.period_at(time)[0] != time)
            msg = (
                f"source '{source}': interval {wanted} cuts through {Interval(*self._pattern.period_at(cut))}, a period of its column {self._column} "
                f"({self._pattern.text} in {self._pattern.zone.key}). Nothing was taken in. Cut the schedule like the periods: "
                f"sources.{source}.interval.pattern is their length, sources.{source}.timezone their zone."
            )
            raise ConfigError(msg)
        if wanted.end + self._lateness > clock.now() + _CLOCKS_APART:
            msg = (
                f"source '{source}': rows of interval {wanted} may come until {timestamp_text(wanted.end + self._lateness)} (interval.lateness). "
                "Nothing was taken in. Run it then."
            )
            raise OpenIntervalError.until(msg, wanted.end + self._lateness)


def _has_times(column: DeltaColumn) -> bool:
    return column.type in {*TIMES, "date"}


_BOUNDS: Final = {(False, False): "", (True, False): "-early", (False, True): "-late", (True, True): "-any"}
"""Ends of kinds, by whether a part is that of the first and of the last period for which a commit's rows can count."""


def without_interval(source: str, by: str, why: str) -> ConfigError:
    """Return the error for a run without an interval of a source that needs one."""
    return ConfigError(
        f"source '{source}' has intervals by {by}, and a run must say which it takes in: {why}. Nothing was taken in. "
        "Use --mode interval, or mode: interval in the job's file."
    )


class PartitionIntervals:
    """Intervals by the values of a partition column."""

    starts_in_names: ClassVar[bool] = True
    are_rewritten: ClassVar[bool] = True

    def __init__(self, config: SourceConfig, errors: DeltaErrors, own: IntervalOptions) -> None:
        """Keep the arguments; read nothing yet."""
        assert own.column is not None  # noqa: S101 - the job's file was checked
        assert config.pattern is not None  # noqa: S101 - as above
        self._errors, self._column, self._pattern = errors, own.column, config.pattern

    @property
    def rule(self) -> str:
        """Return column and periods."""
        return f"by partition {self._column}, {self._pattern.text} in {self._pattern.zone.key}"

    def look(self, taken_in: TakenIn, first: int) -> None:
        """Do nothing: values do not depend on what was taken in."""

    def parts(self, version: int, file: LoggedFile, state: TableState) -> Sequence[Part]:
        """Return the whole file, with the period that its value names. Raises `SourceError` for a table without the column."""
        column = next((own for own in state.columns if own.name == self._column), None)
        if column is None or self._column not in state.partition_columns:
            raise self._errors.no_partition_column(version, self._column, state.partition_columns)
        text = None if file.partition is None else file.partition.get(column.stored)
        try:
            period = None if text is None else self._pattern.interval_of(text)
        except OverflowError:
            period = None
        if period is None:
            value = "null" if text is None else f"'{text}'"
            why = f"{self._column} is {value}, which names no interval by the pattern '{self._pattern.text}'"
            return (Part(problem=why),)
        return (Part(period[0]),)

    def interval_of(self, name: str) -> Interval | None:
        """Return the period whose start is in the name."""
        start = start_of(name)
        return None if start is None else Interval(*self._pattern.period_at(start))

    def is_before(self, version: int, interval: Interval) -> bool:  # noqa: ARG002 - as above
        """Return False: any version may add rows to any partition."""
        return False

    def is_behind(self, version: int, interval: Interval) -> bool:  # noqa: ARG002 - as above
        """Return False: any version may add rows to any partition."""
        return False

    def check(self, want: Want) -> None:
        """Raise `ConfigError` for a run without an interval: rows come to the partitions of a day as long as the day lasts, and longer."""
        if want.interval is None:
            why = "later rows of a partition that was taken in are late"
            raise without_interval(self._errors.source, "partition", why)

    def new_times(self, want: Want, reached: int) -> Iterable[tuple[int, int]]:  # noqa: ARG002 - as above
        """Return nothing: commit times do not count."""
        return ()


@dataclass(frozen=True, slots=True)
class Division:
    """Files of a table that lie ahead of a position, by what a slice does with them."""

    taken: tuple[SourceFile, ...]
    """Files of the interval, behind files without an interval that were not seen before: these go to the quarantine."""
    late: tuple[LateFile, ...]
    """Files of intervals that were taken in before they came."""
    waiting: tuple[SourceFile, ...]
    """Files of later intervals."""
    left: tuple[SourceFile, ...] = ()
    """All files that come after those taken: a micro-batch that is repeated ended before them, or they are `waiting`."""
    rewritten: frozenset[int] = frozenset()
    """Starts of wanted intervals with commits that are passed over (ms): `taken` lacks their files, which the last version has."""

    def with_files(self, files: Iterable[SourceFile]) -> Division:
        """Return the division with more files to take."""
        return replace(self, taken=tuple(sorted((*self.taken, *files), key=lambda file: file.name)))

    def whole_up_to(self, version: int) -> int:
        """Return the last version, up to `version`, with all files taken up."""
        return min([version, *(version_of(file.name) - 1 for file in self.waiting)])


class _Placed(NamedTuple):
    file: SourceFile
    interval: Interval


def divide(files: Sequence[SourceFile], since: SourceFacts, want: Want, intervals: TableIntervals) -> Division:
    """Divide the files of versions that are not wholly taken in, as far as `want` asks for them.

    Raises `IntervalError` where the position was recorded without intervals, and an earlier interval than the wanted one has files.
    """
    known, reached, wanted = known_version(since), want.taken_in.reached, want.interval
    acknowledged = want.taken_in.names or frozenset()  # of tables, checkpoints record no other names
    ahead = [file for file in files if not is_taken_up(file.name, since)]
    # A day that was rewritten is read whole, whoever has acknowledged that: its former files may be gone.
    known_names = {file.name for file in ahead if digest(file.name) in acknowledged}
    ahead = [file for file in ahead if file.name not in known_names or kind_of(file.name) in _WITHOUT_ROWS]
    placed, without = [*_placed(ahead, intervals)], [file for file in files if intervals.interval_of(file.name) is None]
    behind = [own for own in placed if reached is not None and own.interval.start < reached]
    on_time = [own for own in placed if reached is None or own.interval.start >= reached]
    if wanted is not None and reached is None and since.position is not None:
        _refuse_gap([own for own in on_time if own.interval.start < wanted.start], wanted, intervals)
    taken = [own for own in on_time if _is_wanted(own, since, want)]
    left = [own for own in on_time if not _is_wanted(own, since, want)]
    rewritten = frozenset(own.interval.start for own in taken if kind_of(own.file.name) in _WITHOUT_ROWS)
    return Division(
        (
            *(file for file in without if version_of(file.name) > known and file.name not in since.begun),
            *sorted((own.file for own in taken if own.interval.start not in rewritten), key=lambda file: file.name),
        ),
        tuple(
            LateFile(file.name, interval.start, interval.end)
            for file, interval in behind
            if version_of(file.name) > known
            and file.name not in known_names
            and interval.start >= want.taken_in.beginning
            and kind_of(file.name) != MOVED
        ),
        tuple(own.file for own in left if wanted is not None and own.interval.start >= wanted.end),
        tuple(own.file for own in left),
        rewritten,
    )


_WITHOUT_ROWS: Final = frozenset({REWRITTEN, MOVED})
"""Kinds of what stands for a commit that was passed over, in the intervals that it wrote."""


def known_version(facts: SourceFacts) -> int:
    """Return the last version whose files were looked at, for their intervals; -1 before the first look."""
    position = facts.position_as(TablePosition)
    if position is None:
        return -1
    return position.version if position.listed is None else max(position.listed, position.version)


def is_taken_up(name: str, facts: SourceFacts) -> bool:
    """Return whether a file was taken up before a position, in part or whole: the first files of a version can be, and others not.

    Where a column gives the intervals, files may come behind the last one, so it says nothing.
    """
    return name in facts.begun or (start_of(name) is None and name <= facts.last)


def _placed(files: Iterable[SourceFile], intervals: TableIntervals) -> Iterator[_Placed]:
    for file in files:
        if (interval := intervals.interval_of(file.name)) is not None:
            yield _Placed(file, interval)


def _is_wanted(own: _Placed, since: SourceFacts, want: Want) -> bool:
    if own.file.name <= since.last:
        return False
    interval, until = want.interval, want.until
    if interval is None:
        return until is None or own.file.name <= until
    # Where sources met, a recorded micro-batch took files beyond its interval: that ends where all sources were taken in completely.
    is_recorded = until is not None and own.file.name <= until
    return own.interval.start >= interval.start and (is_recorded or own.interval.start < interval.end)


def _refuse_gap(earlier: Sequence[_Placed], wanted: Interval, intervals: TableIntervals) -> None:
    if earlier:
        first = min(own.interval.start for own in earlier)
        way = "Run" if intervals.starts_in_names else "Take them in first with --mode caught-up, or run"
        msg = (
            f"interval {wanted} would leave a gap: the job has read the table without intervals, and it has rows of {timestamp_text(first)} behind "
            f"what was read. Nothing was taken in. {way} the interval that they are in."
        )
        raise IntervalError(msg)


def late_error(errors: DeltaErrors, late: Sequence[LateFile]) -> SourceError:
    """Return the error for files that came to intervals which were taken in, where the source stops for changed input."""
    return errors.late(late[0].name, len(late), str(Interval(late[0].start, late[0].end)))
