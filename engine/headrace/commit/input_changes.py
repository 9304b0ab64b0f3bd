"""Changes of input that checkpoints have taken in: files that are new, were written again, or are gone.

Intervals that a lineage has taken in: whether they are done, and why they are not.

An interval is done if its input is as recorded, and nobody asked to compute it again. Ids of runs and attempts decide nothing: Airflow gives
the same id to another run, once the first one is deleted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from headrace.config import JobConfig
from headrace.errors import ConfigError, IntervalError
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import beginning_of, interval_of, intervals_of, position_of, taken_in
from headrace.names import counted
from headrace.sources.folder.listing import UNKNOWN, content_digest, stamp
from headrace.sources.intake import Intake
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import NO_FACTS, SourceFacts, TablePosition, TakenFile, TopicPosition, digest
from headrace.sources.source import ListedFile, SourceFile
from headrace.storage.storage import Storage
from headrace.tables.folder import JobFolder

GONE: Final = ""
"""Mark of a file that is gone, and whose absence somebody has acknowledged."""

PASSED: Final = "passed"
"""Mark of a table's file that was passed over, and acknowledged. Such files never change."""


class ChangeOfInput(StrEnum):
    """Kind of change of an input file."""

    NEW = "new"
    CHANGED = "changed"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class InputChange:
    """File that differs from the input that the lineage took in. Checkpoint `checkpoint_id` took it in, or passed its place."""

    change: ChangeOfInput
    source: str
    file: str | None
    """Name of the file; None if it is gone, since checkpoints keep only digests of names."""
    checkpoint_id: int
    interval: Interval | None = None
    """Interval of the file; of one that is gone, that of its checkpoint. None without a pattern, and without interval runs."""

    def __str__(self) -> str:
        """Return the change as a clause."""
        if self.change is ChangeOfInput.NEW:
            return f"file {self.file} of source '{self.source}' is new since checkpoint {self.checkpoint_id} passed its place"
        if self.change is ChangeOfInput.CHANGED:
            return f"file {self.file} of source '{self.source}' has changed since checkpoint {self.checkpoint_id} took it in"
        return f"a file of source '{self.source}' that checkpoint {self.checkpoint_id} took in is gone"


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """Record that a lineage has of a file: the first checkpoint that made one, the last one that did, and its content."""

    first: Checkpoint
    last: Checkpoint
    mark: str
    """Digest of size and time of change; GONE if somebody acknowledged that the file is gone."""
    content: str
    """Digest of the content; UNKNOWN if no checkpoint took the file in."""

    def is_of(self, file: TakenFile) -> bool:
        """Return whether another record of a file of this name is of the same file, or of a copy."""
        is_known = self.content != UNKNOWN
        return self.mark == file.stamp or (is_known and self.content == file.content)

    def is_like(self, file: SourceFile, storage: Storage) -> bool:
        """Return whether a file is as recorded. Reads it only where its size or time of change differs."""
        return self.mark in {PASSED, stamp(file)} or self.is_touched(file, storage)

    def is_touched(self, file: SourceFile, storage: Storage) -> bool:
        """Return whether a file has another size or time of change than recorded, and the same content."""
        if self.mark in {GONE, PASSED, stamp(file)} or self.content == UNKNOWN:
            return False
        return self.content == _content_of(storage.at(file.path), file.modified, file.size)


def input_changes(
    lineage: Sequence[Checkpoint],
    listed: Mapping[str, Sequence[ListedFile]],
    storage: Storage,
    acknowledged: Mapping[str, Sequence[TakenFile]] | None = None,
) -> list[InputChange]:
    """Return how the `listed` files differ from the input of a lineage, the earliest checkpoint first.

    Leaves out files before the lineage's first interval, and files that are missing at the beginning of a source: users clean up old
    input that way, and its results stay. A file counts as changed when its size or modification time differs, and its content too.
    `acknowledged` are records that a branch takes over from its job.
    """
    changes: list[InputChange] = []
    for source, files in listed.items():
        recorded = recorded_files(lineage, source)
        for record in (acknowledged or {}).get(source, ()):
            first = recorded[record.name].first if record.name in recorded else lineage[-1]
            recorded[record.name] = RecordedFile(first, lineage[-1], record.stamp, record.content)
        changes += source_changes(lineage, source, files, storage, recorded)
    return sorted(changes, key=lambda change: (change.checkpoint_id, change.source, change.file or ""))


def listed_input(intake: Intake, lineage: Sequence[Checkpoint]) -> dict[str, Sequence[ListedFile]]:
    """Return by source the files that are there now, to compare them with the input of a lineage."""
    return intake.listed({name: taken_in(lineage, name) for name in intake.names})


def touched_files(
    lineage: Sequence[Checkpoint], source: str, files: Sequence[SourceFile], storage: Storage
) -> list[TakenFile]:
    """Return new records of files that were touched, or copied with the same content: so that no later run has to read them for that."""
    recorded = recorded_files(lineage, source)
    known = ((file, recorded[name]) for file in files if (name := digest(file.name)) in recorded)
    return [
        TakenFile(digest(file.name), stamp(file), record.content)
        for file, record in known
        if record.is_touched(file, storage)
    ]


def recorded_files(lineage: Sequence[Checkpoint], source: str) -> dict[str, RecordedFile]:
    """Return what a lineage has recorded of the files of a source, by the digests of their names. A later record takes the place of an earlier one."""
    files: dict[str, RecordedFile] = {}
    for checkpoint in lineage:
        for taken in checkpoint.sources.get(source, NO_FACTS).taken:
            first = files[taken.name].first if taken.name in files else checkpoint
            files[taken.name] = RecordedFile(first, checkpoint, taken.stamp, taken.content)
    return files


def cleaned_up(recorded: Mapping[str, RecordedFile], files: Sequence[SourceFile]) -> list[Checkpoint]:
    """Return for each file that is missing at the beginning of a source the checkpoint that took it in. Such files are no change.

    `recorded` has the source's files as `recorded_files` returns them.
    """
    _, oldest = _missing(recorded, {digest(file.name) for file in files})
    return oldest


def _missing(
    recorded: Mapping[str, RecordedFile], present: Collection[str]
) -> tuple[list[Checkpoint], list[Checkpoint]]:
    """Return the checkpoints that took in files that are missing now: those of withdrawn files, and those of the oldest files.

    Files whose absence was acknowledged are in neither.
    """
    kept = min((recorded[name].first.checkpoint_id for name in recorded if name in present), default=None)
    missing = [
        record.first for name, record in recorded.items() if name not in present and record.mark not in {GONE, PASSED}
    ]
    withdrawn = [first for first in missing if kept is not None and first.checkpoint_id > kept]
    oldest = [first for first in missing if kept is None or first.checkpoint_id <= kept]
    return withdrawn, oldest


def source_changes(
    lineage: Sequence[Checkpoint],
    source: str,
    files: Sequence[ListedFile],
    storage: Storage,
    recorded: Mapping[str, RecordedFile],
) -> Iterator[InputChange]:
    """Yield how the files of one source differ from its input of a lineage, as `input_changes` does, in no order.

    Leaves out files of intervals in which corrected input took the place of the source: nothing of them is taken in.
    `recorded` has the source's files as `recorded_files` returns them.
    """
    corrected = _corrected_intervals(lineage, source)
    for change in _source_changes(lineage, source, files, storage, recorded):
        if change.interval is None or not any(own.contains(change.interval) for own in corrected):
            yield change


def _corrected_intervals(lineage: Sequence[Checkpoint], source: str) -> list[Interval]:
    """Return the intervals in which other input took the place of a source's own."""
    taken = ((own, by.sources.get(source, NO_FACTS)) for own, by in intervals_of(lineage))
    return [own for own, facts in taken if facts.corrected is not None]


def _source_changes(
    lineage: Sequence[Checkpoint],
    source: str,
    files: Sequence[ListedFile],
    storage: Storage,
    recorded: Mapping[str, RecordedFile],
) -> Iterator[InputChange]:
    there = {digest(file.file.name): file for file in files}
    beginning = beginning_of(lineage, source)
    for name, record in recorded.items():
        if name not in there or (record.content == UNKNOWN and _begins_before(beginning, there[name])):
            continue
        file, interval = there[name]
        if not record.is_like(file, storage):
            yield InputChange(ChangeOfInput.CHANGED, source, file.name, record.first.checkpoint_id, interval)
    withdrawn, _ = _missing(recorded, there.keys())
    for first in withdrawn:
        yield InputChange(ChangeOfInput.GONE, source, None, first.checkpoint_id, interval_of(first))
    for listed in files:
        is_known = digest(listed.file.name) in recorded
        if is_known or listed.interval is None or beginning is None or _begins_before(beginning, listed):
            continue
        passed_by = _first_behind(lineage, source, listed)
        if passed_by is not None:
            yield InputChange(ChangeOfInput.NEW, source, listed.file.name, passed_by.checkpoint_id, listed.interval)


@lru_cache(maxsize=10_000)
def _content_of(file: Storage, _modified: int, _size: int) -> str:
    """Return the digest of a file's content. One process reads the file once, until it is written again."""
    return content_digest(file)


def _begins_before(beginning: int | None, file: ListedFile) -> bool:
    """Return whether a file's interval begins before the first one of the lineage: no run takes such a file in."""
    return beginning is not None and file.interval is not None and file.interval.start < beginning


def _first_behind(lineage: Sequence[Checkpoint], source: str, file: ListedFile) -> Checkpoint | None:
    """Return the first checkpoint whose position is after a file; None if the file is ahead of all."""
    return next((checkpoint for checkpoint in lineage if _is_behind(checkpoint, source, file)), None)


def _is_behind(checkpoint: Checkpoint, source: str, file: ListedFile) -> bool:
    interval = interval_of(checkpoint)
    if interval is not None and file.interval is not None and file.interval.start < interval.end:
        return True
    # Names decide the order where no interval was recorded, and where sources meet.
    last = checkpoint.sources[source].last if source in checkpoint.sources else ""
    return (interval is None or len(checkpoint.sources) > 1) and file.file.name <= last


def refuse_renamed_sources(
    job: str, lineage: Sequence[Checkpoint], declared: Collection[str], taken: Mapping[str, SourceFacts]
) -> None:
    """Refuse a slice of a source that is new if another one, which is not declared any more, had read the same: it would count again.

    `taken` has the facts of the slice's sources after it. Raises `ConfigError`; nothing was taken in then.
    """
    known: Mapping[str, SourceFacts] = lineage[-1].sources if lineage else {}
    for new, facts in taken.items():
        for old in () if new in known else sorted(known.keys() - set(declared)):
            if _reads_again(facts, known[old], recorded_files(lineage, old)):
                msg = (
                    f"source '{new}' is new, and reads what source '{old}' has read, which the pipeline has no more: all of that input would "
                    f"count again. Nothing was taken in. If it was renamed, give it its former name back: '{old}'. To read all input under the "
                    f"new name, go back first (headrace restore {job} --to 0 --why ...), or begin a new job."
                )
                raise ConfigError(msg)


def _reads_again(after: SourceFacts, former: SourceFacts, recorded: Mapping[str, RecordedFile]) -> bool:
    """Return whether the facts after a slice tell of a table, a topic, or a file that a former source has read."""
    match after.position, former.position:
        case TablePosition() as now, TablePosition() as then:
            return now.table_id == then.table_id
        case TopicPosition() as now, TopicPosition() as then:
            return now.topic_id == then.topic_id
        case _:
            return any(file.name in recorded and recorded[file.name].is_of(file) for file in after.taken)


def is_taken_in(wanted: Interval, lineage: Sequence[Checkpoint]) -> bool:
    """Return whether a lineage has taken in all of an interval."""
    position, parts = position_of(lineage), _parts(wanted, lineage)
    return position is not None and wanted.end <= position and bool(parts) and parts[0][0].start <= wanted.start


def is_computed_again(wanted: Interval, lineage: Sequence[Checkpoint], asked_at: int) -> bool:
    """Return whether all of a taken-in interval was computed after somebody asked for it again (ms)."""
    return all(by.committed_at >= asked_at for _, by in _parts(wanted, lineage))


def changes_within(
    wanted: Interval, lineage: Sequence[Checkpoint], changes: Sequence[InputChange]
) -> list[InputChange]:
    """Return the changes of input that belong to an interval. A file that is gone belongs to the interval that its checkpoint took in."""
    taken_by = {checkpoint.checkpoint_id: interval_of(checkpoint) for checkpoint in lineage}
    placed = ((change, change.interval or taken_by.get(change.checkpoint_id)) for change in changes)
    return [change for change, interval in placed if interval is None or _meet(wanted, interval)]


def refusal(job: str, wanted: Interval, lineage: Sequence[Checkpoint], changes: Sequence[InputChange]) -> IntervalError:
    """Return the error for an interval that begins behind the job's position, and is not done: a file has changed, or somebody asked for it."""
    stands_at = position_of(lineage)
    start, end, reached = (timestamp_text(timestamp) for timestamp in (wanted.start, wanted.end, stands_at))
    if stands_at is not None and wanted.end > stands_at:
        return IntervalError(
            f"interval {wanted} has been taken in in part: the job has taken in everything up to {reached}. Nothing was changed. Run the rest, "
            f"{reached} to {end}; 'headrace backfill {job} --from {start} --to {reached}' computes the first part again, on a branch."
        )
    return IntervalError.of_taken_in(
        f"interval {wanted} has been taken in already: the job has taken in everything up to {reached}. {_why(changes)}Nothing was changed. "
        f"To compute it again, run 'headrace backfill {job} --from {start} --to {end}': it works on a branch, and shows how the result "
        "differs. In Airflow, the DAG of replays does the same.",
        tuple(map(str, changes)),
    )


def _why(changes: Sequence[InputChange]) -> str:
    if not changes:
        return "Its input is the same, but somebody asked for it again: if that was not meant, there is nothing to do. "
    more = f" ({counted(len(changes), 'such file')})" if len(changes) > 1 else ""
    return f"Its input has changed since: {changes[0]}{more}. "


def _parts(wanted: Interval, lineage: Sequence[Checkpoint]) -> list[tuple[Interval, Checkpoint]]:
    return [(part, by) for part, by in intervals_of(lineage) if _meet(part, wanted)]


def _meet(one: Interval, other: Interval) -> bool:
    return one.start < other.end and other.start < one.end


def refuse_unless_done(
    wanted: Interval,
    lineage: Sequence[Checkpoint],
    listed: Mapping[str, Sequence[ListedFile]],
    config: JobConfig,
    *,
    asked_at: int | None,
) -> None:
    """Raise `IntervalError` for an interval behind the job's position whose input has changed, or that somebody asked for again.

    `listed` are the files that are there now, by source; somebody asked at `asked_at` (ms).
    """
    has_all, changes = is_taken_in(wanted, lineage), []
    if has_all:
        changes = changes_within(wanted, lineage, input_changes(lineage, listed, JobFolder.of(config)))
    if not has_all or changes or (asked_at is not None and not is_computed_again(wanted, lineage, asked_at)):
        raise refusal(config.job, wanted, lineage, changes)
