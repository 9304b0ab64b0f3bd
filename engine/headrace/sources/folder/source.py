"""Folder of files as a source.

Files are read in the order of their names, or of their first listing (`order`), and must not change after they appear. Arrival order is
(file, the source's `order_by`, row). It does not depend on the files of each micro-batch.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from shlex import quote
from typing import ClassVar, Final, Self

import msgspec
import pyarrow as pa

from headrace.api.graph import SourceNode
from headrace.config import JobConfig, SourceConfig
from headrace.errors import ConfigError, SourceError
from headrace.names import counted
from headrace.records.source_columns import EventTimeLimit
from headrace.sources.folder.csv import CsvFiles
from headrace.sources.folder.first_seen import PlacedFiles, order_problem, placed_files
from headrace.sources.folder.format import UNREADABLE, FileRows, is_damage, unreadable
from headrace.sources.folder.formats import format_of, options_of
from headrace.sources.folder.listing import UNKNOWN, FolderContent, FolderListing, content_digests, stamp
from headrace.sources.folder.partitions import folder_problems, folder_values, read_in_folder
from headrace.sources.generations import generation_at
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.kafka.landed import Topic
from headrace.sources.position import NO_FACTS, FolderPosition, Position, SourceFacts, TakenFile, digest
from headrace.sources.row_check import column_changes, column_problems, event_times_of
from headrace.sources.source import (
    Ahead,
    InputFile,
    ListedFile,
    Outcome,
    Remark,
    Source,
    SourceFile,
    TakenIn,
    Want,
    first_files,
)
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

_SHOWN: Final = 5
_BAD_FILE: Final = "repair or remove it, or set on_bad_file: quarantine to go on without it"


class FolderSource(Source):
    """Folder, read by the driver of a job."""

    position: ClassVar[type[Position]] = FolderPosition

    @classmethod
    def of(cls, node: SourceNode, job: JobConfig, connection: Topic | None = None) -> Self:  # noqa: ARG003 - it has none
        """Make the source that the pipeline declares as `node`."""
        return cls(node, job.sources[node.name], JobFolder.of(job), job.job)

    def __init__(self, source: SourceNode, config: SourceConfig, storage: Storage, job: str = "JOB") -> None:
        """Keep the source as the pipeline declares it, and its `config` in the file of `job`."""
        self._job = job
        self._node = source
        self._name = source.name
        self._config = config
        self._storage = storage
        self._format = format_of(config.file_options)
        self.listing = FolderListing(source.name, config, storage)
        self._counts: dict[str, int] = {}
        self._digests: dict[tuple[str, str], str] = {}
        self._later: Sequence[SourceFile] = ()

    @staticmethod
    def read(file: SourceFile | InputFile, node: SourceNode, storage: Storage) -> FileRows:
        """Read all rows of a file. Raises one of `headrace.sources.folder.format.UNREADABLE`."""
        return read_in_folder(storage.at(file.path), file.name, node, options_of(file.format, file.facts))

    def remarks(self, since: SourceFacts = NO_FACTS) -> Iterator[Remark]:
        """Yield remarks on whether a run could list the folder, and read the columns of its newest file, after the position in `since`."""
        if (problem := order_problem(self._name, self._config, since)) is not None:
            yield Remark("fail", problem, "correct", "order")
            return
        try:
            content = self.listing.content()
        except SourceError as error:
            yield Remark("fail", str(error), "make it, or mend", "path")
            return
        if not content.files:
            what = f"{self._config.path} has no {self._wanted_files()}{_besides(content)}"
            yield Remark("warn", what, "a run would find nothing to do")
            return
        by_age = sorted(content.files, key=lambda file: (file.modified, file.name))
        oldest, newest = by_age[0], by_age[-1]
        problems = [
            *self._remarks_on_tables(content.tables),
            *self._problems_of_folders(content.files),
            *self._problems_of(newest),
        ]
        text = f"{self._config.path}: {counted(len(content.files), 'file')}{_besides(content)}"
        yield from problems or [Remark("ok", text)]
        yield from self._remarks_on_changes(oldest, newest)

    def _wanted_files(self) -> str:
        pattern = self._config.files
        return f"{self.listing.suffixes[0]} file" if pattern is None else f"file that fits '{pattern}'"

    def _remarks_on_tables(self, folders: Sequence[str]) -> Iterator[Remark]:
        """Yield a remark for each folder that is a Delta table."""
        for folder in folders:
            what = f"{self._config.path}{'/' if folder else ''}{folder} is a Delta table, and all of its files are read, also those that it has dropped"
            yield Remark("warn", what, "read it with format: delta, or write its folder under ignore")

    def _problems_of_folders(self, files: Sequence[SourceFile]) -> Iterator[Remark]:
        """Yield a remark for each value in the names of folders that does not fit the record."""
        for why, of_file in folder_problems((file.name for file in files), self._node):
            yield self._refusal(f"{self._config.path}: {why}", "correct the field, or the folder", of_file=of_file)

    def _problems_of(self, newest: SourceFile) -> Iterator[Remark]:
        """Yield a remark for each column of the newest file that a run would refuse, as its header or footer shows it."""
        try:
            schema = self._format.schema(self._storage.at(newest.path))
            own = [*folder_values(newest.name)]
            of_csv = self._format if isinstance(self._format, CsvFiles) else None
            header = "" if schema is None or of_csv is None else of_csv.about_header(schema.names)
        except UNREADABLE as error:
            of_file: Outcome = "fail" if self._config.on_bad_file == "fail" else "warn"
            yield Remark(of_file, f"{newest.path}, the newest file, cannot be read: {error}", _BAD_FILE)
            return
        for problem in () if schema is None else column_problems(self._node, schema, newest.path, own, header):
            yield self._refusal(problem.why, "correct the field, or the file", of_file=problem.of_file)

    def _remarks_on_changes(self, oldest: SourceFile, newest: SourceFile) -> Iterator[Remark]:
        """Yield a remark on columns that have changed between two files, if both tell theirs."""
        with suppress(*UNREADABLE):  # the newest has a remark of its own, and no run may need the oldest any more
            before, after = (self._format.schema(self._storage.at(file.path)) for file in (oldest, newest))
            if before is not None and after is not None and (changes := [*column_changes(self._node, before, after)]):
                yield Remark("ok", f"{newest.path}: {'; '.join(changes)}, compared with {oldest.name}")

    def _refusal(self, why: str, advice: str, *, of_file: bool) -> Remark:
        """Return the remark on a problem for which a run refuses a file, or rows of it."""
        fails = (self._config.on_bad_file if of_file else self._config.on_bad_row) == "fail"
        return Remark("fail" if fails else "warn", why, advice if of_file else f"its rows are refused: {advice}")

    def plan(self, since: SourceFacts, want: Want) -> Ahead:
        """Return the files to take in next.

        Raises `SourceError` where the folder or an unfinished file is missing, where a late file would never be read, and
        where a merged source's names do not sort by interval; `ConfigError` where the files were taken in in another order before.
        """
        if (problem := order_problem(self._name, self._config, since)) is not None:
            raise ConfigError(problem)
        listed = self._files()
        placed = self._placed(listed, since, want)
        files = placed.files
        taken_in, interval, until = want.taken_in, want.interval, want.until
        unread = [file for file in files if file.place in since.begun]
        if until is None:
            self._check_unread(unread, since)
        if until is None and interval is not None:
            self._check_no_late_intervals(files, taken_in)
            new = self._of_interval(files, interval)
            if want.meets:
                self._check_order(files)
                self._check_no_late_names(new, since, taken_in)
                new = _behind(new, since)
        else:
            if until is None and taken_in.names is not None:
                self._check_twins(_unrecorded(listed, taken_in), listed, since, taken_in)
            self._check_no_late_names(files, since, taken_in)
            new = [file for file in _behind(files, since) if until is None or self._is_taken_by(file, until, interval)]
        new = _unrecorded(new, taken_in)  # somebody may have acknowledged a file ahead of the position
        self._check_twins(new, listed, since, taken_in)
        self._check_complete(new, files)
        taken = (*unread, *(file for file in new if file not in unread))
        later = _unrecorded(_behind(files, since), taken_in)
        self._later = later
        beyond = [] if until is None else [file for file in later if file not in taken]
        return Ahead(want, taken, files, beyond=tuple(beyond), seen=placed.seen, has_waiting=placed.has_waiting)

    def _placed(self, listed: Sequence[SourceFile], since: SourceFacts, want: Want) -> PlacedFiles:
        """Return the files in the order of the source."""
        return placed_files(listed, since, want) if self._config.order == "first_seen" else PlacedFiles(tuple(listed))

    def listed(self, taken_in: TakenIn) -> Sequence[ListedFile]:  # noqa: ARG002 - all files, whatever was taken in
        """Return all files of the folder, in order. Raises `SourceError` where the folder is missing, or a name does not fit the pattern."""
        return [ListedFile(file, self.interval_of(file.name)) for file in self._files()]

    def find(self, names: Collection[str]) -> dict[str, SourceFile]:
        """Return the files with these names that exist. Raises `SourceError` where the folder is missing."""
        return {file.name: file for file in self._files() if file.name in names}

    def within_limits(self, files: Sequence[SourceFile], rows_taken: int = 0) -> Sequence[SourceFile]:
        """Return the first files, as many as one micro-batch may take."""
        return first_files(files, self._config, self.rows, rows_taken)

    def rows(self, file: SourceFile) -> int:
        """Count the rows of a file.

        Raises `SourceError` for an unreadable file, unless `on_bad_file` is quarantine: then it counts 0. Raises `StorageError` for
        one that the disk or the object store refuses to read.
        """
        try:
            if file.name not in self._counts:
                self._counts[file.name] = self._format.count(self._storage.at(file.path), self._node)
        except UNREADABLE as error:
            if self._config.on_bad_file == "quarantine" and is_damage(error):
                return 0
            raise unreadable(self._name, file.path, error) from error
        return self._counts[file.name]

    def event_times(self, file: SourceFile, limit: EventTimeLimit | None = None) -> pa.Int64Array:
        """Return the event times of a file in arrival order (ms), null for a row that is refused, also one beyond the `limit`.

        Raises `SourceError` as `rows` does; all times of an unreadable file in quarantine are null.
        """
        try:
            return event_times_of(self.read(file, self._node, self._storage), self._node, limit)
        except UNREADABLE as error:
            if self._config.on_bad_file == "quarantine" and is_damage(error):
                return pa.nulls(self.rows(file), pa.int64())
            raise unreadable(self._name, file.path, error) from error

    def facts_after(self, since: SourceFacts, ahead: Ahead, files: Sequence[SourceFile]) -> SourceFacts:
        """Return the facts after these files, with records of those that no checkpoint has yet."""
        places = {file.place for file in files}
        last = max(*places, since.last, "")
        new = self._new_files(ahead.listed, last, ahead.want)
        contents = self._contents([file for file in new.values() if file.place in places])
        taken = (TakenFile(name, stamp(file), contents.get(name, UNKNOWN)) for name, file in new.items())
        generation = generation_at(last) if last and self._config.order == "first_seen" else 0
        position = FolderPosition(last, since.begun, since.rows, generation)
        return msgspec.structs.replace(since, position=position, taken=tuple(taken), seen=ahead.seen)

    def interval_of(self, name: str) -> Interval | None:
        """Return the interval in a file's name; None without an `interval` pattern.

        Raises `SourceError` for a name that does not fit the pattern, and for an interval that ends after the year 9999.
        """
        return self.listing.interval_of(name)

    def whole_up_to(self, last: str) -> int | None:
        """Return the time before which the source has no rows behind file `last`, as it was planned last (ms); None without such files."""
        return min((self._start(file) for file in self._later if file.name > last), default=None)

    def check_intervals(self, taken_in: TakenIn) -> None:
        """Refuse an interval run that could not continue after `taken_in`. Raises `SourceError` for a late file of an interval taken in already."""
        self._check_no_late_intervals(self._files(), taken_in)

    def _files(self) -> list[SourceFile]:
        return [*self.listing.content().files]

    def _start(self, file: SourceFile) -> int:
        interval = self.interval_of(file.name)
        return 0 if interval is None else interval.start

    def _is_taken_by(self, file: SourceFile, last: str, interval: Interval | None) -> bool:
        """Return whether a micro-batch that ended at place `last` took this file, or would have taken it if it were not late."""
        if interval is None:
            return file.place <= last
        start = self._start(file)
        return start >= interval.start and (file.name <= last or start < interval.end)

    def _of_interval(self, files: Sequence[SourceFile], interval: Interval) -> list[SourceFile]:
        return [file for file in files if interval.start <= self._start(file) < interval.end]

    def _new_files(self, files: Sequence[SourceFile], last: str, want: Want) -> dict[str, SourceFile]:
        """Return the files that no later run takes up, as far as no checkpoint has recorded them, by the digests of their names."""
        known, interval = want.taken_in.names or frozenset(), want.interval
        behind = {
            digest(file.name): file
            for file in files
            if file.place <= last or (interval is not None and self._start(file) < interval.end)
        }
        return {name: behind[name] for name in sorted(behind.keys() - known)}

    def _contents(self, files: Sequence[SourceFile]) -> dict[str, str]:
        """Return the digests of the files' contents, by the digests of their names. A file is read once in the life of this reader."""
        unread = [file for file in files if (file.path, stamp(file)) not in self._digests]
        digests = content_digests([self._storage.at(file.path) for file in unread])
        self._digests.update({(file.path, stamp(file)): content for file, content in zip(unread, digests, strict=True)})
        return {digest(file.name): self._digests[file.path, stamp(file)] for file in files}

    def fingerprints(self, files: Sequence[SourceFile]) -> dict[str, str]:
        """Return the digests of files' contents, by name."""
        digests = self._contents(files)
        return {file.name: digests[digest(file.name)] for file in files}

    def _check_complete(self, new: Sequence[SourceFile], files: Sequence[SourceFile]) -> None:
        """Refuse a second file of an interval that one file holds all rows of: its rows would be late."""
        known: dict[int, str] = {}
        for file in (*files, *new) if self._config.complete_intervals and new else ():
            if (other := known.setdefault(self._start(file), file.name)) != file.name and file in new:
                msg = (
                    f"source '{self._name}': {other} and {file.name} have the same interval, and with complete_intervals one file holds all rows of its "
                    "interval: those of the other one would be late. Nothing was taken in. Put the rows into one file, give one of the files another "
                    "name, or leave complete_intervals out."
                )
                raise SourceError(msg)

    def _check_twins(
        self, new: Sequence[SourceFile], files: Sequence[SourceFile], facts: SourceFacts, taken_in: TakenIn
    ) -> None:
        """Refuse a file whose rows may be those of another one: the same name with another ending, compressed or not."""
        present, recorded = {file.name for file in files}, taken_in.names or frozenset()
        for file in new:
            for twin in self.listing.twins_of(file.name):
                if twin in present or digest(twin) in recorded or twin == facts.last_name:
                    raise _has_twin(
                        self._job,
                        self._name,
                        file.name,
                        twin,
                        is_taken=digest(twin) in recorded or twin not in present,
                        has_interval=self.interval_of(file.name) is not None,
                    )

    def _check_unread(self, unread: Sequence[SourceFile], facts: SourceFacts) -> None:
        """Refuse to skip files that micro-batches have begun and not finished."""
        missing = sorted({*map(facts.name_of, facts.begun)} - {file.name for file in unread})
        if missing:
            msg = (
                f"source '{self._name}': {', '.join(missing)} of {self._config.path} is gone, and not all of its rows were taken in "
                "yet: they wait for other sources. Nothing was taken in. Put it back, or restore a checkpoint before it."
            )
            raise SourceError(msg)

    def _check_order(self, files: Sequence[SourceFile]) -> None:
        """Refuse names that do not sort by interval: a position has only the last name that was taken up."""
        for earlier, later in itertools.pairwise(files):
            if self._start(later) < self._start(earlier):
                msg = (
                    f"source '{self._name}' meets another source, and the names of its files {earlier.name} and {later.name} do not sort "
                    "by interval. Nothing was taken in. Give them names that do (year first), or use --mode caught-up."
                )
                raise SourceError(msg)

    def _check_no_late_names(self, files: Sequence[SourceFile], facts: SourceFacts, taken_in: TakenIn) -> None:
        """Refuse files that sort before the position and that no slice has taken in."""
        late = _unrecorded([file for file in files if file.place <= facts.last], taken_in)
        if late:
            newest = max(late, key=lambda file: file.modified)
            msg = (
                f"source '{self._name}': {counted(len(late), 'file')} appeared behind the last file read ({facts.last}), the "
                f"newest is {newest.name}. {_never_read(late)}. Nothing was taken in. {self._ways_on(late[0], newest, taken_in)}"
            )
            raise SourceError(msg)

    def _check_no_late_intervals(self, files: Sequence[SourceFile], taken_in: TakenIn) -> None:
        """Refuse late files of intervals that were taken in already: no later interval has them."""
        if taken_in.names is None or not taken_in.intervals:
            return
        covered = Interval(taken_in.intervals[0].start, taken_in.intervals[-1].end)
        late = _unrecorded(self._of_interval(files, covered), taken_in)
        if late:
            msg = (
                f"source '{self._name}': {counted(len(late), 'file')} appeared in intervals that were taken in already, the first is "
                f"{late[0].name}. {_never_read(late)}. This interval was not taken in. {self._ways_on(late[0], late[0], taken_in)}"
            )
            raise SourceError(msg)

    def _ways_on(self, first: SourceFile, newest: SourceFile, taken_in: TakenIn) -> str:
        """Return what to do about late files: sentences with commands."""
        own, job = self.interval_of(first.name), self._job
        interval = None if own is None else taken_in.around(own.start)
        before = taken_in.checkpoint_before(first.name)
        ways = [
            f"'headrace input {job} --acknowledge {quote(newest.name)}' leaves a file out for good",
            (
                f"or go back to the last checkpoint before what sorts behind {first.name}, and run again: 'headrace restore {job} --to "
                f"{'ID' if before is None else before} --why ...' ('headrace checkpoints {job}' lists them)"
            ),
        ]
        if own is None:
            ways.insert(
                0,
                f"Give them later names; a new job with sources.{self._name}.order: first_seen takes files in as they come, whatever their names are",
            )
        if interval is not None:
            start, end = timestamp_text(interval.start), timestamp_text(interval.end)
            ways.insert(
                0, f"'headrace backfill {job} --from {start} --to {end}' computes its interval again, on a branch"
            )
        return f"{'; '.join(ways)}."


def _besides(content: FolderContent) -> str:
    """Return the files that lie beside those of the source, as a clause; empty without them."""
    parts = (
        (content.passed_over, ("entry", "entries"), "passed over"),
        (content.unmatched, ("other file", "other files"), "not named by 'files'"),
    )
    return "".join(
        f", and {counted(len(names), *noun)} {why} ({', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''})"
        for names, noun, why in parts
        if names
    )


def _never_read(late: Sequence[SourceFile]) -> str:
    return f"{'It' if len(late) == 1 else 'They'} would never be read"


def _has_twin(job: str, source: str, name: str, twin: str, *, is_taken: bool, has_interval: bool) -> SourceError:
    """Return the error for a file that may be another one. A correction has a backfill if the file has an interval."""
    other = "was taken in before" if is_taken else "is in the folder too"
    backfill = f"if it is a correction, 'headrace backfill {job} --from ... --to ...' takes it in instead; "
    return SourceError(
        f"source '{source}': {name} has the name of {twin} with another ending, and {twin} {other}: its rows would count twice. Nothing was "
        f"taken in. Remove one of them. If {name} has other rows, rename it; {backfill if has_interval else ''}"
        f"'headrace input {job} --acknowledge {quote(name)}' passes it over for good."
    )


def _unrecorded(files: Sequence[SourceFile], taken_in: TakenIn) -> list[SourceFile]:
    return [file for file in files if digest(file.name) not in (taken_in.names or ())]


def _behind(files: Sequence[SourceFile], facts: SourceFacts) -> list[SourceFile]:
    return [file for file in files if file.place > facts.last]
