"""Delta table as a source: its appended rows, its change data feed, or what each commit changed on balance.

Each data file of a commit is a file of the source, named VERSION/KIND/PATH, with a version of 20 digits as in Delta's log. So
arrival order is (version, kind, path, the source's `order_by`, row): in each version, deletes and pre-images (`minus`) come
before inserts and post-images (`plus`). Arrival order does not depend on the files of each micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import timedelta
from typing import ClassVar, Final, NamedTuple, Self, TypeVar

import msgspec
import pyarrow as pa

from headrace.api.graph import CHANGE_TYPE, SourceNode
from headrace.api.records import RowKind
from headrace.config import JobConfig, SourceConfig, StartKind
from headrace.errors import ConfigError, HeadraceError, SourceError
from headrace.records.source_columns import EventTimeLimit
from headrace.sources.delta.errors import DeltaErrors
from headrace.sources.delta.intervals import (
    ColumnIntervals,
    Part,
    TableIntervals,
    divide,
    intervals_of_table,
    is_taken_up,
    known_version,
    late_error,
)
from headrace.sources.delta.names import (
    MOVED,
    REWRITTEN,
    SNAPSHOT,
    end_place,
    file_name,
    kind_of,
    path_of,
    start_of,
    version_of,
)
from headrace.sources.delta.net_changes import ChangedFile, net_changes
from headrace.sources.delta.policy import is_passed_over, is_rewrite
from headrace.sources.delta.rows import DeltaRows, Side, Times, column_times, row_count, rows_of, source_rows
from headrace.sources.folder.format import UNREADABLE, FileRows, is_damage, unreadable
from headrace.sources.interval import Interval
from headrace.sources.kafka.landed import Topic
from headrace.sources.position import NO_FACTS, LateFile, PassedVersion, Position, SourceFacts, TablePosition
from headrace.sources.row_check import column_changes, column_problems, event_times_of
from headrace.sources.source import (
    Ahead,
    InputFile,
    ListedFile,
    Remark,
    Source,
    SourceFile,
    TableReach,
    TakenIn,
    Want,
    first_files,
)
from headrace.storage.delta_log import DeltaCommit, DeltaLog, LoggedFile, TableState
from headrace.storage.refusals import StoreError
from headrace.storage.schemes import place_of
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError
from headrace.tables.folder import JobFolder

T = TypeVar("T")

APPENDED: Final = "add"
_MINUS: Final[Side] = "minus"
_PLUS: Final[Side] = "plus"
_NET: Final = "-net"
"""End of the kind of files of which only the rows count that changed on balance."""
_NOTHING_TAKEN: Final = TakenIn()


class _Place(NamedTuple):
    """Position of reading: the next version, and the version that is taken in as a whole, if any."""

    version: int
    snapshot: int | None = None
    is_provisional: bool = False

    def waits(self, versions: range) -> bool:
        """Return whether the table has not come to the start yet. Its position is no position to record: a start says more."""
        return not self.is_provisional and self.version > versions[-1]


class DeltaSource(Source):
    """Delta table, read by the driver of a job."""

    position: ClassVar[type[Position]] = TablePosition

    @classmethod
    def of(cls, node: SourceNode, job: JobConfig, connection: Topic | None = None) -> Self:  # noqa: ARG003 - it has none
        """Make the source that the pipeline declares as `node`."""
        return cls(node, job.sources[node.name], JobFolder.of(job), job.job, is_branch=job.branch is not None)

    @classmethod
    def to_list(cls, name: str, job: JobConfig) -> Self:
        """Make a source that only lists files: that needs nothing of the pipeline, such as a record."""
        return cls.of(SourceNode(name, msgspec.Struct, "", (), None, timedelta(0)), job)

    def __init__(
        self, source: SourceNode, config: SourceConfig, storage: Storage, job: str = "JOB", *, is_branch: bool = False
    ) -> None:
        """Keep the source as the pipeline declares it, and its `config` in the job's file. Read nothing yet.

        A branch does not stop for late files: its job reports them.
        """
        self._is_branch = is_branch
        self._node, self._name, self._config, self._storage = source, source.name, config, storage
        self._log = DeltaLog(config.path, storage.options)
        self._errors = DeltaErrors(source.name, config, job)
        self._files: dict[tuple[int, bool], list[SourceFile]] = {}
        self._passed_over: dict[int, PassedVersion] = {}
        self._intervals = intervals_of_table(config, self._errors, self)
        self._later: Sequence[SourceFile] = ()

    @staticmethod
    def read(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
        """Read all rows of a file. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
        return source_rows(storage.at(file.path), _logged(file), node)

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return the files to take in next.

        Files before an unreadable commit are returned; `SourceError` is raised once that commit is the next one. Raises
        `ConfigError` for a `change_feed` that has changed in the middle of a version.
        """
        versions, until = self._versions(), want.until
        position = since.position_as(TablePosition)
        place = self._place(position, versions)
        if position is None and place.waits(versions):
            return Ahead(want, (), ())
        self._check_table(position, place, versions, want.taken_in)
        self._check_order(since)
        if self._intervals is not None:
            return self._plan_intervals(self._intervals, since, want, place, versions)
        unread = self._unread(since)
        reached, new = self._files_ahead(place, versions, want, has_unread=bool(unread))
        files_ahead = [*unread, *(file for file in new if file.name > since.last)]
        if until is not None:
            files_ahead = [file for file in files_ahead if file.name <= until]
            reached = min(reached, version_of(until) - 1) if until else place.version - 1
        passed = self._passed_between(place.version, reached)
        reach = TableReach(reached, place.snapshot, place.is_provisional, passed)
        return Ahead(want, tuple(files_ahead), tuple(files_ahead), reach)

    def _files_ahead(
        self, place: _Place, versions: range, want: Want, *, has_unread: bool
    ) -> tuple[int, list[SourceFile]]:
        """Return the last version that is read, and the files of all versions from `place` up to it.

        An interval needs all of its versions. Other slices end before one that cannot be read yet, as soon as they have files.
        """
        new: list[SourceFile] = []
        reached = place.version - 1
        for version in range(place.version, versions[-1] + 1):
            if self._lies_before(max(version, versions[0]), want):
                reached = version
                continue
            has_files = want.interval is None and bool(new or has_unread)
            if self._lies_behind(version, want) or (has_files and self._is_compared(version, place.snapshot)):
                break
            files = self._of_version(version, place.snapshot, versions, taken_in=want.taken_in)
            if isinstance(files, HeadraceError):
                if has_files:
                    break
                raise files
            new += files
            reached = version
            if want.interval is None and files and self._is_compared(version, place.snapshot):
                break
        return reached, new

    def _passed_between(self, first: int, last: int) -> tuple[PassedVersion, ...]:
        return tuple(own for own in self._passed_over.values() if first <= own.version <= last)

    # ---------------------------------------------------------------------------------------------------- intervals

    def _lies_behind(self, version: int, want: Want) -> bool:
        if self._intervals is None or want.interval is None:
            return False
        if want.until is not None and version <= version_of(want.until):
            return False
        return self._intervals.is_behind(version, want.interval)

    def _lies_before(self, version: int, want: Want) -> bool:
        """Return whether a version lies before the first interval of a job: nothing of it is read, whatever it changed."""
        has_begun = want.taken_in.reached is not None or want.taken_in.facts.position is not None
        if self._intervals is None or want.interval is None or has_begun:
            return False
        return self._intervals.is_before(version, want.interval)

    def _plan_intervals(
        self, intervals: TableIntervals, since: SourceFacts, want: Want, place: _Place, versions: range
    ) -> Ahead:
        """Return the files to take in next of a table whose files have intervals."""
        intervals.look(want.taken_in, max(place.version, versions[0]))
        intervals.check(want)
        unread = self._unread(since)
        listed, new = self._files_ahead(place, versions, want, has_unread=bool(unread))
        parts = divide(new, since, want, intervals)
        if parts.rewritten:
            parts = parts.with_files(self._files_now(versions, parts.rewritten))
        passed = tuple(self._with_corrector(file) for file in parts.late)
        stopping = [file for file in passed if file.corrected_by is None]
        if stopping and self._config.on_changed_file == "fail" and not self._is_branch:
            raise late_error(self._errors, stopping)
        self._later = (*parts.taken, *parts.left)
        files = (*unread, *parts.taken)
        reached = parts.whole_up_to(listed)
        if want.until is not None and want.interval is None:
            reached = min(reached, version_of(want.until) - 1) if want.until else place.version - 1
        reach = TableReach(
            reached,
            place.snapshot,
            place.is_provisional,
            () if intervals.are_rewritten else self._passed_between(place.version, listed),
            end_place(want.interval.end) if want.interval is not None and intervals.starts_in_names else "",
            listed if parts.waiting else None,
            passed,
            tuple(intervals.new_times(want, listed)),
        )
        return Ahead(want, files, files, reach)

    def _with_corrector(self, late: LateFile) -> LateFile:
        """Return a late file with the job whose promotion it stands for, if it stands for one."""
        passed = self._passed_over.get(version_of(late.name)) if kind_of(late.name) == REWRITTEN else None
        return late if passed is None else msgspec.structs.replace(late, corrected_by=passed.corrected_by)

    def _files_now(self, versions: range, starts: Collection[int]) -> list[SourceFile]:
        """Return the files that the last version has of intervals, by their starts."""
        files = self._of_version(versions[-1], versions[-1], versions)
        if isinstance(files, HeadraceError):
            raise files
        return [file for file in files if start_of(file.name) in starts]

    def listed(self, taken_in: TakenIn) -> Sequence[ListedFile]:
        """Return the files that no checkpoint has taken in, and the late ones that checkpoints have passed over.

        Raises `SourceError` where there is no table, or its log cannot be read.
        """
        if self._intervals is None:
            return ()
        versions, position = self._versions(), taken_in.facts.position_as(TablePosition)
        place = self._place(position, versions)
        if place.waits(versions):
            return [_listed_late(file) for file in taken_in.late]
        self._intervals.look(taken_in, max(place.version, versions[0]))
        _, new = self._files_ahead(place, versions, Want(taken_in), has_unread=True)  # up to one that runs stop at
        known, reached = known_version(taken_in.facts), taken_in.reached
        left = (file for file in new if not is_taken_up(file.name, taken_in.facts))
        ahead = [ListedFile(file, self._intervals.interval_of(file.name)) for file in left]
        late = [_listed_late(file) for file in taken_in.late]
        return [
            *late,
            *(own for own in ahead if not _is_known(own, known, reached)),
        ]

    def _check_order(self, since: SourceFacts) -> None:
        """Refuse to read on in another order than that in which the last version was read, and by other intervals while some of its rows wait."""
        position = since.position_as(TablePosition)
        rule = "" if self._intervals is None else self._intervals.rule
        if position is not None and position.listed is not None and position.intervals not in {"", rule}:
            msg = (
                f"source '{self._name}' has rows of versions {position.version + 1} to {position.listed} that wait for their interval ({position.intervals}), and "
                f"its section says otherwise now ({rule or 'no interval'}): rows would be lost, or count twice. Nothing was taken in. Set it back, or begin a new job."
            )
            raise ConfigError(msg)
        is_in_part = since.last != "" and version_of(since.last) > (since.version or 0)
        by_start = self._intervals is not None and self._intervals.starts_in_names
        if (start_of(since.last) is None and is_in_part) if by_start else start_of(since.last) is not None:
            msg = (
                f"source '{self._name}' was read in another order up to {since.last}: interval.by of its section has changed since. Nothing was taken "
                f"in. Set it back, or begin a new job."
            )
            raise ConfigError(msg)

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval of a file; None without `interval`, and where the log does not tell it any more."""
        return None if self._intervals is None else self._intervals.interval_of(name)

    def whole_up_to(self, last: str) -> int | None:
        """Return the time before which the table has no rows behind file `last`, as it was planned last (ms); None without such files."""
        intervals = (self.interval_of(file.name) for file in self._later if file.name > last)
        return min((interval.start for interval in intervals if interval is not None), default=None)

    def read_up_to(self, facts: SourceFacts) -> int | None:
        """Return the end of the last interval of which rows were read (ms); 0 before the first one, None where the log does not tell it any more."""
        end = start_of(facts.last) if version_of(facts.last) < 0 else None
        if end is None or (position := facts.position_as(TablePosition)) is None:
            return super().read_up_to(facts)
        begun = msgspec.structs.replace(
            facts, position=msgspec.structs.replace(position, last="")
        )  # `last` is an `end_place`
        waiting = super().read_up_to(begun)
        return None if waiting is None else max(end, waiting)

    def latest_state(self) -> TableState:
        """Return the latest state of the table. Raises `SourceError` where its log does not give it."""
        return self._guarded(self._versions()[-1])

    def commit(self, version: int) -> DeltaCommit:
        """Read a version. Raises `SourceError` where the log does not have it, or it cannot be read."""
        versions = self._versions()
        if version < versions[0]:
            raise self._errors.expired(version, versions[0] - 1)
        try:
            return self._log.commit(version)
        except StoreError as error:
            raise self._damaged(version, error) from error

    # ------------------------------------------------------------------------------------------------------- reading

    def _is_compared(self, version: int, snapshot: int | None) -> bool:
        """Return whether the rows of a commit are read to find its net changes. Commits behind it are planned when it is taken in."""
        if self._config.on_change != "as_changes" or version == snapshot or self._is_skipped(version):
            return False
        try:
            return is_rewrite(self._log.commit(version))
        except StoreError:
            return False  # the plan says so

    def _passes_over(self, commit: DeltaCommit, taken_in: TakenIn) -> bool:
        """Return whether a commit is passed over. A job that began after a promotion has no rows that it corrects."""
        if self._intervals is not None and self._intervals.are_rewritten and commit.correction is not None:
            return True
        is_new = commit.timestamp >= taken_in.began
        return is_passed_over(commit, self._config.on_change, reads_changes=self._config.change_feed, is_new=is_new)

    def _is_skipped(self, version: int) -> bool:
        return self._config.skips(version)

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files with these names that exist: the log has the version, and the folder has the file.

        Raises `SourceError` where there is no table, or its log cannot be read.
        """
        versions = self._versions()
        if isinstance(self._intervals, ColumnIntervals):
            return {file.name: file for file in self._parts_named(self._intervals, names, versions)}
        files_by_name: dict[str, SourceFile] = {}
        for version, is_whole in sorted({(version_of(name), kind_of(name) == SNAPSHOT) for name in names}):
            if version in versions:
                files = self._of_version(version, version if is_whole else None, versions, checked=False)
                if isinstance(files, HeadraceError):
                    raise files
                files_by_name |= {
                    file.name: file for file in files if file.name in names and self._storage.at(file.path).has()
                }
        return files_by_name

    def _parts_named(self, intervals: ColumnIntervals, names: Collection[str], versions: range) -> Iterator[SourceFile]:
        """Yield the parts of files with these names that exist. A name says which rows of its file the part has."""
        for name in sorted(names):
            if (version := version_of(name)) not in versions:
                continue
            appended = {logged.path: logged for logged in self.commit(version).appended}
            if (logged := appended.get(path_of(name))) is None:
                continue
            state = self._guarded(version)
            file = self._file(version, APPENDED, logged, state, intervals.part_named(name, state))
            if file.name == name and self._storage.at(file.path).has():
                yield file

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take. A micro-batch may end within a version."""
        return first_files(files, self._config, self.rows, rows_taken)

    def rows(self, file: SourceFile) -> int:
        """Count the rows of a file.

        Raises `SourceError` for a missing file, and for an unreadable one unless `on_bad_file` is quarantine: then it counts 0.
        """
        place = self._storage.at(file.path)
        rows = self._tried(version_of(file.name), file.path, lambda: row_count(place, _logged(file)))
        return 0 if rows is None else rows

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file in arrival order (ms), null for a row that is refused, also one beyond the `limit`.

        Raises `SourceError` as `rows` does; all times of an unreadable file in quarantine are null.
        """

        def read() -> pa.Int64Array:
            return event_times_of(self.read(file, self._node, self._storage), self._node, limit)

        times = self._tried(version_of(file.name), file.path, read)
        return pa.nulls(self.rows(file), pa.int64()) if times is None else times

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after these files."""
        if ahead.reach is None:
            return since  # the start waits
        left = ahead.files[len(files) :]
        reached = min([ahead.reach.version, *(version_of(file.name) - 1 for file in left)])
        version = max(reached, -1 if since.version is None else since.version)
        position = TablePosition(
            last=max((*(file.name for file in files), since.last, ahead.reach.last)),
            begun=since.begun,
            rows=since.rows,
            table_id=self._table_id(version),
            version=version,
            snapshot=ahead.reach.snapshot,
            listed=ahead.reach.listed,
            intervals="" if self._intervals is None else self._intervals.rule,
        )
        looked_up_to = reached if ahead.reach.listed is None else ahead.reach.listed
        passed = tuple(own for own in ahead.reach.passed_over if own.version <= looked_up_to)
        late = tuple(own for own in ahead.reach.late if version_of(own.name) <= looked_up_to)
        times = ahead.reach.commit_times
        return msgspec.structs.replace(since, position=position, passed_over=passed, late=late, commit_times=times)

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:
        """Yield remarks on whether a run could read the latest version: features of the table, columns that do not fit the record.

        Also whether it is the table whose rows were taken in.
        """
        changes: list[Remark] = []
        try:
            versions = self._versions()
            place = self._place(position := since.position_as(TablePosition), versions)
            self._check_table(position, place, versions, TakenIn())
            problems = [*self._problems()]
            if position is not None and not problems:
                changes = [*self._remarks_on_changes(position.version, versions)]
            ok = self._remark_on_start(versions, waits=position is None and place.waits(versions))
        except HeadraceError as error:
            yield Remark("fail", str(error))
            return
        yield from [Remark("fail", problem) for problem in problems] or [ok]
        yield from changes

    def _remark_on_start(self, versions: range, *, waits: bool) -> Remark:
        """Return the remark on a table that can be read: its version, and a start that it has not come to yet."""
        latest = f"{self._config.path}: version {versions[-1]}"
        if not waits:
            return Remark("ok", latest)
        start = self._config.begins_at
        first = (
            f"version {start.value}"
            if start.kind is StartKind.VERSION
            else f"a commit of {self._config.start} or later"
        )
        return Remark("warn", f"{latest}, and nothing is read before {first}", "wait for it, or correct", "start")

    def _remarks_on_changes(self, known: int, versions: range) -> Iterator[Remark]:
        """Yield a remark on columns that have changed since a version that was read, if the log still has it."""
        if known not in versions:
            return
        before, after = self._guarded(known).schema, self._guarded(versions[-1]).schema
        if changes := [*column_changes(self._node, before, after)]:
            yield Remark("ok", f"{self._config.path}: {'; '.join(changes)}, compared with version {known}")

    def _problems(self) -> Iterator[str]:
        latest = self._versions()[-1]
        problem = self._errors.of_snapshot(latest, self._guarded(latest), ())
        if problem is not None:
            yield str(problem)
            return
        column = None if self._config.intervals is None else self._config.intervals.column
        partitioned_by = self._guarded(latest).partition_columns
        if column is not None and isinstance(self._intervals, ColumnIntervals):
            if (problem := self._intervals.problem(latest, self._guarded(latest))) is not None:
                yield str(problem)
        elif column is not None and column not in partitioned_by:
            yield str(self._errors.no_partition_column(latest, column, partitioned_by))
        schema = self._guarded(latest).schema
        own = (CHANGE_TYPE,) if self._config.gives_changes else ()
        yield from (problem.why for problem in column_problems(self._node, schema, self._config.path, own))

    # ---------------------------------------------------------------------------------------------------------- log

    def _versions(self) -> range:
        try:
            return self._log.versions()
        except TableMissingError as error:
            msg = (
                f"source '{self._name}': there is no Delta table {self._config.path}. Nothing was taken in. Bring it back (is its disk "
                f"mounted?), or correct sources.{self._name}.path, then run again."
            )
            raise SourceError(msg) from error

    def _guarded(self, version: int) -> TableState:
        try:
            return self._log.state(version)
        except (StoreError, TableMissingError) as error:
            raise self._damaged(version, error) from error

    def _damaged(self, version: int, error: Exception) -> SourceError:
        what = "write the table without it" if "nsupported" in str(error) else "repair it"
        return SourceError(
            f"source '{self._name}': the log of {self._config.path} does not give version {version}: {error}. Nothing was taken in; "
            f"{what}, then run again. {self._errors.way_out(version)}"
        )

    def _table_id(self, version: int) -> str:
        """Return the table's id at a version; that at the next one where the log does not have it any more."""
        try:
            return self._log.state(version).table_id
        except StoreError:
            return self._guarded(version + 1).table_id

    def _of_version(
        self,
        version: int,
        snapshot: int | None,
        versions: range,
        *,
        taken_in: TakenIn = _NOTHING_TAKEN,
        checked: bool = True,
    ) -> list[SourceFile] | SourceError:
        """Return the files of a version by name, or the error for which it has none. Files read before are not `checked` again."""
        if checked and version != snapshot and self._is_skipped(version):  # a snapshot is no commit
            return []
        if (version, version == snapshot) in self._files:
            return self._files[version, version == snapshot]
        if version < versions[0]:
            return self._errors.expired(version, versions[0] - 1)
        try:
            state = self._log.state(version)
            if version == snapshot:
                whole = self._log.files(version)
                problem = self._errors.of_snapshot(version, state, whole)
                files = [
                    file
                    for logged in (whole if problem is None else ())
                    for file in self._in_parts(version, SNAPSHOT, logged, state)
                ]
            else:
                commit = self._log.commit(version)
                if checked and self._passes_over(commit, taken_in):
                    self._passed_over[version] = _passed_version(commit)
                    return [*self._rewritten(commit, state)]
                problem = self._errors.of_commit(commit, state, taken_in)
                files = [] if problem is not None and checked else [*self._of_commit(commit, state)]
        except (StoreError, TableMissingError) as error:
            return self._damaged(version, error)
        except SourceError as error:
            return error
        if problem is not None and checked:
            return problem
        files.sort(key=lambda file: file.name)
        if problem is None:
            self._files[version, version == snapshot] = files
        return files

    def _in_parts(
        self, version: int, kind: str, logged: LoggedFile, state: TableState, *, rows: DeltaRows | None = None
    ) -> Iterator[SourceFile]:
        """Yield a file of the table as files of the source, one for each interval of its rows. `rows` as in `_file`."""
        for part in self._parts(version, logged, state):
            yield self._file(version, kind, logged, state, part, rows=rows)

    def _parts(self, version: int, logged: LoggedFile, state: TableState) -> Sequence[Part]:
        """Return the parts of a file by their intervals. Raises `SourceError` for a file without one, unless bad files go to the quarantine."""
        parts = (Part(),) if self._intervals is None else self._intervals.parts(version, logged, state)
        problem = next((part.problem for part in parts if part.problem is not None), None)
        if problem is not None and self._config.on_bad_file == "fail":
            raise self._errors.no_interval(version, logged.path, problem)
        return parts

    def times(self, version: int, logged: LoggedFile, state: TableState, column: str, zone: str) -> Times:
        """Read the times of a file's counting rows in a column. Raises `SourceError` for a missing file, and for an unreadable one."""
        path, facts = self._path_of(logged), self._facts_of(logged, state)
        try:
            times = column_times(self._storage.at(path), facts, column, zone)
            counts = facts.counts(self._storage.at(path), len(times.values))
        except FileNotFoundError as error:
            raise self._errors.missing(version, path, error) from error
        except UNREADABLE as error:
            raise unreadable(self._name, path, error) from error
        return times if counts is None else Times(times.values[counts], times.known[counts])

    def _tried(self, version: int, path: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns; None for an unreadable file in quarantine. Raises `SourceError` for any other, and for a missing one."""
        try:
            return read()
        except FileNotFoundError as error:
            raise self._errors.missing(version, path, error) from error
        except UNREADABLE as error:
            if self._config.on_bad_file == "quarantine" and is_damage(error):
                return None
            raise unreadable(self._name, path, error) from error

    def _rewritten(self, commit: DeltaCommit, state: TableState) -> Iterator[SourceFile]:
        """Yield what stands for a commit that is passed over in each of the intervals that it rewrote, where columns give them."""
        if self._intervals is None or not self._intervals.are_rewritten:
            return
        files = (*commit.dropped, *commit.appended)
        if any(file.partition is None for file in files):
            raise self._errors.without_partition(commit.version)
        correction = commit.correction
        changed: dict[int | None, bool] = {}
        for file in files:
            has_changed = correction is None or correction.has_changed(_values(file, state))
            for part in self._parts(commit.version, file, state):
                changed[part.start] = changed.get(part.start, False) or has_changed
        by = commit.operation if correction is None else f"promotion/{correction.job}"
        for start in sorted(start for start in changed if start is not None):
            name = file_name(commit.version, REWRITTEN if changed[start] else MOVED, by, start)
            yield SourceFile(name, self._config.path, 0)

    def _of_commit(self, commit: DeltaCommit, state: TableState) -> Iterator[SourceFile]:
        if self._config.change_feed and commit.changes:
            for logged in commit.changes:
                for side in (_MINUS, _PLUS):
                    yield from self._in_parts(commit.version, side, logged, state, rows=DeltaRows(side=side))
        elif self._config.change_feed:
            yield from self._sides(commit, state)
        elif self._config.on_change == "as_changes" and is_rewrite(commit):
            yield from self._net(commit, state)
        else:
            for logged in commit.appended:
                yield from self._in_parts(commit.version, APPENDED, logged, state)

    def _sides(self, commit: DeltaCommit, after: TableState) -> Iterator[SourceFile]:
        """Yield the files of a commit's removed rows, with the columns that they had, and those of its added rows.

        A file that the commit removes and adds has other deleted rows after it: these alone have changed.
        """
        removed = {file.path: file for file in commit.dropped}
        added = {file.path: file for file in commit.appended}
        before = self._before(commit, after)
        for side, files, others, state in ((_MINUS, removed, added, before), (_PLUS, added, removed, after)):
            kind = RowKind.DELETE if side == _MINUS else RowKind.INSERT
            for path, logged in files.items():
                only = others[path].vector if path in others else None
                if path not in others or only is not None:
                    rows = DeltaRows(kind=kind.symbol, only=only)
                    yield from self._in_parts(commit.version, side, logged, state, rows=rows)

    def _before(self, commit: DeltaCommit, after: TableState) -> TableState:
        """Return the state before a commit. Raises `SourceError` where a commit describes the table anew, and the log does not say how it was."""
        if commit.metadata is None or not commit.dropped:
            return after
        try:
            return self._log.state(commit.version - 1)
        except StoreError as error:
            raise self._errors.without_columns(commit.version, error) from error

    def _net(self, commit: DeltaCommit, state: TableState) -> Iterator[SourceFile]:
        """Yield the files with rows that a commit changed on balance. Raises `SourceError` where they cannot be compared."""
        files = sorted(self._sides(commit, state), key=lambda file: file.name)
        columns = {_MINUS: self._before(commit, state).columns, _PLUS: state.columns}
        changed = {
            side: [
                ChangedFile(self._storage.at(file.path), _logged(file), columns[side])
                for file in files
                if kind_of(file.name) == side
            ]
            for side in (_MINUS, _PLUS)
        }
        try:
            minus, plus = net_changes(changed[_MINUS], changed[_PLUS])
        except FileNotFoundError as error:
            paths = (file.path for file in files if not self._storage.at(file.path).has())
            raise self._errors.missing(commit.version, next(paths, files[0].path), error) from error
        except UNREADABLE as error:
            raise self._errors.not_compared(commit.version, error) from error
        for file, rows in zip(files, (*minus, *plus), strict=True):
            if rows.net != ():
                version, side, path = file.name.split("/", 2)  # such a file has no interval in its name
                name = f"{version}/{side}{_NET}/{path}"
                yield file._replace(name=name, facts=msgspec.Raw(msgspec.json.encode(rows)))

    def _file(
        self,
        version: int,
        kind: str,
        logged: LoggedFile,
        state: TableState,
        part: Part,
        *,
        rows: DeltaRows | None = None,
    ) -> SourceFile:
        """Return a part of a file as a file of the source. `rows` has the facts that are not in the log; None: the rows are new."""
        facts = self._facts_of(logged, state, rows)
        facts = msgspec.structs.replace(facts, within=part.within, problem=part.problem)
        name = file_name(version, f"{kind}{part.bounds}", logged.path, part.start)
        return SourceFile(name, self._path_of(logged), 0, self._config.format, msgspec.Raw(msgspec.json.encode(facts)))

    def _facts_of(self, logged: LoggedFile, state: TableState, rows: DeltaRows | None = None) -> DeltaRows:
        own = rows or DeltaRows(kind=RowKind.INSERT.symbol if self._config.gives_changes else None)
        return rows_of(logged, state, self._config.path, own)

    def _path_of(self, logged: LoggedFile) -> str:
        return place_of(logged.path, self._config.path) or logged.path

    # ------------------------------------------------------------------------------------------------------ position

    def _place(self, position: TablePosition | None, versions: range) -> _Place:
        if position is not None:
            return _Place(position.version + 1, position.snapshot)
        start, last = self._config.begins_at, versions[-1]
        if start.kind is StartKind.LATEST:
            return _Place(last + 1, is_provisional=True)
        if start.kind is StartKind.SNAPSHOT:
            return _Place(last, last, is_provisional=True)
        if start.kind is StartKind.TIME:
            return _Place(self._first_since(start.value, versions))
        return _Place(start.value)

    def _first_since(self, timestamp: int, versions: range) -> int:
        """Return the first version whose commit is not older than a timestamp (ms)."""
        try:
            first = next(
                (version for version in versions if self._log.commit(version).timestamp >= timestamp), versions[-1] + 1
            )
        except StoreError as error:
            raise self._damaged(versions[0], error) from error
        if first == versions[0] and first > 0:
            # Versions that the log no longer has may be younger than the timestamp, too.
            raise self._errors.expired(first - 1, first - 1)
        return first

    def _check_table(self, position: TablePosition | None, place: _Place, versions: range, taken_in: TakenIn) -> None:
        """Refuse another table at the place, and a `change_feed` that has changed in the middle of a version.

        A commit may give the table another id (CREATE OR REPLACE TABLE): it counts as a rewrite. Another table has another id at the
        version that was read.
        """
        if position is None:
            return
        version = min(max(position.version, versions[0]), versions[-1])
        if versions[0] <= place.version:
            table_id = self._guarded(version).table_id
            if table_id != position.table_id:
                raise self._errors.replaced(table_id, position.table_id, version, taken_in)
        if position.version > versions[-1]:
            raise self._errors.behind(versions[-1], position.version, taken_in)
        in_part = [position.last] if position.last and version_of(position.last) == place.version else []
        for name in (*in_part, *position.begun):
            if kind_of(name) != SNAPSHOT and version_of(name) in versions and not self._is_skipped(version_of(name)):
                self._check_reading(name, version_of(name), taken_in)

    def _check_reading(self, file: str, version: int, taken_in: TakenIn) -> None:
        """Refuse to read the rest of a version in another way than its beginning, which had this file."""
        try:
            commit = self._log.commit(version)
        except StoreError as error:
            raise self._damaged(version, error) from error
        kind = kind_of(file)
        is_net = self._config.on_change == "as_changes" and is_rewrite(commit) and not self._config.change_feed
        is_same = (kind.endswith(_NET), kind.partition("-")[0] == APPENDED) == (
            is_net,
            not (is_net or self._config.change_feed),
        )
        if not is_same or self._passes_over(commit, taken_in):
            msg = (
                f"source '{self._name}': 'change_feed' or 'on_change' has changed while version {version} of {self._config.path} was "
                "read in part. Nothing was taken in. Set it back until the version is read, then change it."
            )
            raise ConfigError(msg)

    def _unread(self, facts: SourceFacts) -> list[SourceFile]:
        """Return the files that micro-batches have begun and not finished."""
        wanted = [name for name in facts.begun if kind_of(name) == SNAPSHOT or not self._is_skipped(version_of(name))]
        files_by_name = self.find(wanted) if wanted else {}
        if missing := sorted({*wanted} - files_by_name.keys()):
            version, first = version_of(missing[0]), self._versions()[0]
            raise (
                self._errors.expired(version, first - 1)
                if version < first
                else self._errors.missing(version, missing[0])
            )
        return [files_by_name[name] for name in wanted]


def _logged(file: SourceFile | InputFile) -> DeltaRows:
    """Return the facts of a file's rows that are in the table's log."""
    return msgspec.json.decode(file.facts, type=DeltaRows)


def _passed_version(commit: DeltaCommit) -> PassedVersion:
    files, correction = len(commit.dropped) or len(commit.appended), commit.correction
    by = None if correction is None else correction.job
    return PassedVersion(commit.version, commit.operation or "unknown", files, commit.timestamp, by)


def _values(file: LoggedFile, state: TableState) -> dict[str, str | None]:
    """Return the values of partition columns by the names that the columns have in the table."""
    stored = file.partition or {}
    return {column.name: stored[column.stored] for column in state.columns if column.stored in stored}


def _listed_late(file: LateFile) -> ListedFile:
    return ListedFile(SourceFile(file.name, "", 0), Interval(file.start, file.end))


def _is_known(own: ListedFile, known: int, reached: int | None) -> bool:
    """Return whether a file was taken in, or recorded as late: its version was looked at, and its interval was taken in."""
    is_taken_in = reached is not None and own.interval is not None and own.interval.start < reached
    return is_taken_in and (version_of(own.file.name) <= known or kind_of(own.file.name) == MOVED)
