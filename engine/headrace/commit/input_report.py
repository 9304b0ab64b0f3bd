"""Report on a job's folders: files that differ from what was taken in, that came late, that look like others, and what is passed over.

`headrace run`, `check`, `status` and `input` name the same files, until a backfill takes them in, somebody moves them away, or acknowledges them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

from headrace.commit.input_changes import (
    ChangeOfInput,
    InputChange,
    RecordedFile,
    cleaned_up,
    recorded_files,
    source_changes,
    touched_files,
)
from headrace.config import JobConfig, SourceConfig
from headrace.errors import HeadraceError, SourceError
from headrace.log.checkpoint import Checkpoint
from headrace.log.intervals import late_files, taken_in
from headrace.log.warnings import RunWarning
from headrace.names import counted
from headrace.sources.delta.source import DeltaSource
from headrace.sources.folder.formats import format_of
from headrace.sources.folder.listing import FolderContent, FolderListing
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import TakenFile, digest
from headrace.sources.source import ListedFile
from headrace.tables.folder import JobFolder

_SHOWN = 5
_NAMED = 100
"""Files that are passed over and named in reports."""


class InputKind(StrEnum):
    """Kind of a remark on input."""

    CHANGED = "changed_file"
    GONE = "gone_file"
    CLEANED_UP = "cleaned_up"
    LATE = "late_file"
    ADDED = "added_file"
    CORRECTED = "pending_correction"
    TWIN = "twin_file"
    PASSED_OVER = "passed_over"
    UNREADABLE = "unreadable_folder"


_SENTENCES = {
    InputKind.CHANGED: (
        "source '{source}': {files_count} changed after the job took them in ({files}), and the tables have the former rows; 'headrace backfill "
        "{job} --from {start} --to {end}' takes such files in again, if the source has an interval, and 'headrace input {job} --acknowledge FILE' leaves "
        "the rows as they are"
    ),
    InputKind.GONE: (
        "source '{source}': {files_count} taken in by the job, and gone since ({files}); the tables have the rows; 'headrace backfill {job} "
        "--from {start} --to {end}' computes such intervals without them, and 'headrace input {job} --acknowledge gone' leaves the rows as they are"
    ),
    InputKind.CLEANED_UP: (
        "source '{source}': {files_count} taken in by the job, and gone since ({files}), no older file is left: this counts as a clean-up, and "
        "the tables have the rows; if it is none, put them back; 'headrace input {job} --acknowledge gone' ends this remark"
    ),
    InputKind.LATE: (
        "source '{source}': {files_count} came late ({files}), and no run takes them in; 'headrace backfill {job} --from {start} --to {end}' does, "
        "if the source has an interval, later names do, and 'headrace input {job} --acknowledge FILE' leaves them out"
    ),
    InputKind.ADDED: (
        "source '{source}': {files_count} came to intervals that the job had taken in before ({files}), and no run takes them in; 'headrace backfill {job} --from "
        "{start} --to {end}' does, and 'headrace input {job} --acknowledge FILE' leaves them out"
    ),
    InputKind.CORRECTED: (
        "source '{source}': {by} corrected what this job has taken in of {start} to {end} ({files}); 'headrace backfill {job} --pending' computes it again, and "
        "'headrace input {job} --acknowledge FILE' leaves it as it is, until a backfill of an earlier day computes it again, too"
    ),
    InputKind.TWIN: (
        "source '{source}': {files_count} with the name of another one, and another ending ({files}): rows would count twice, and no run takes "
        "them in; remove or rename them, or leave them out with 'headrace input {job} --acknowledge FILE'"
    ),
    InputKind.PASSED_OVER: (
        "source '{source}': {entries_count} of its folder passed over ({files}), since a source reads only files that end in {endings}, and none under "
        "two names; move or rename them, name them by sources.{source}.files, or write them under sources.{source}.ignore"
    ),
    InputKind.UNREADABLE: "{files}",
}


@dataclass(frozen=True, slots=True)
class InputRemark:
    """Remark on a file of a source. `file` is its name; of files that are gone, their number and the checkpoints that took them in."""

    kind: InputKind
    source: str
    file: str
    count: int = 1
    interval: Interval | None = None
    """Interval of the files, if it is known: a backfill of it takes them in again."""
    corrected_by: str | None = None
    """Job that has corrected the rows, of a pending correction."""


def input_remarks(config: JobConfig, lineage: Sequence[Checkpoint]) -> list[InputRemark]:
    """Return the remarks on all sources of a job, whose `lineage` of checkpoints leads to the last one. Reads only listings, and changed files."""
    stopping = (remark for name in _stopping_tables(config) for remark in _of_stopping_files(config, name, lineage))
    return [*_recorded_remarks(config, lineage), *stopping]


def _recorded_remarks(config: JobConfig, lineage: Sequence[Checkpoint]) -> list[InputRemark]:
    """Return the remarks without those on a table's files at which the next run stops: it says so itself."""
    folders = {name: source for name, source in config.sources.items() if source.kind.is_folder}
    return [
        *(remark for name, source in folders.items() for remark in _of_folder(config, name, source, lineage)),
        *(remark for name in config.sources for remark in _of_passed_files(name, lineage)),
    ]


def input_warnings(config: JobConfig, lineage: Sequence[Checkpoint]) -> list[RunWarning]:
    """Return the warnings on a job's input; none for a branch, which reads the input of its job."""
    return [] if config.branch is not None else warnings_of(config, input_remarks(config, lineage))


def run_warnings(config: JobConfig, lineage: Sequence[Checkpoint]) -> list[RunWarning]:
    """Return the warnings of a run on its input: pending corrections are none of them where the job never follows these."""
    warnings = input_warnings(config, lineage)
    return [own for own in warnings if own.kind != InputKind.CORRECTED or config.replay.follow != "never"]


def pending_correction(config: JobConfig, lineage: Sequence[Checkpoint]) -> Interval | None:
    """Return the interval from the first to the last pending correction that checkpoints have recorded; None without one."""
    files = [file for name in config.sources for file in late_files(lineage, name) if file.corrected_by is not None]
    return Interval(min(file.start for file in files), max(file.end for file in files)) if files else None


def warnings_of(config: JobConfig, remarks: Sequence[InputRemark]) -> list[RunWarning]:
    """Return a warning for each source and kind of remark."""
    groups = groupby(sorted(remarks, key=_group_of), key=_group_of)
    return [_warning(config, InputKind(kind), source, list(of_kind)) for (source, kind), of_kind in groups]


def touched_input(config: JobConfig, lineage: Sequence[Checkpoint]) -> dict[str, Sequence[TakenFile]]:
    """Return by source the new records of files that were touched, or copied, since the job took them in; see `touched_files`."""
    touched: dict[str, Sequence[TakenFile]] = {}
    for name, source in config.sources.items():
        if source.kind.is_folder and config.branch is None:
            with suppress(SourceError):  # the run itself reports a folder that is gone
                files = FolderListing(name, source, JobFolder.of(config)).content().files
                touched[name] = touched_files(lineage, name, files, JobFolder.of(config))
    return touched


def refuse_changed_files(config: JobConfig, lineage: Sequence[Checkpoint]) -> None:
    """Raise `SourceError` if a file of a source with `on_changed_file: fail` has changed, or is gone, since it was taken in."""
    watched = {name for name, source in config.sources.items() if source.on_changed_file == "fail"}
    if not watched or config.branch is not None:
        return
    kinds = {InputKind.CHANGED, InputKind.GONE, InputKind.ADDED}
    remarks = [
        remark for remark in _recorded_remarks(config, lineage) if remark.source in watched and remark.kind in kinds
    ]
    if remarks:
        msg = f"{'. '.join(warning.message for warning in warnings_of(config, remarks))}. Nothing was taken in (on_changed_file: fail)."
        raise SourceError(msg)


def _of_folder(
    config: JobConfig, name: str, source: SourceConfig, lineage: Sequence[Checkpoint]
) -> Iterator[InputRemark]:
    listing = FolderListing(name, source, JobFolder.of(config))
    try:
        content = listing.content()
        listed = [ListedFile(file, listing.interval_of(file.name)) for file in content.files]
    except SourceError as error:
        yield InputRemark(InputKind.UNREADABLE, name, str(error).rstrip("."))
        return
    yield from _passed_over(name, [*_of_no_source(config, name, content.passed_over)])
    recorded = recorded_files(lineage, name)
    changes = sorted(source_changes(lineage, name, listed, JobFolder.of(config), recorded), key=_order_of)
    for change in changes:
        if change.change is ChangeOfInput.CHANGED and change.file is not None:
            yield InputRemark(InputKind.CHANGED, name, change.file, interval=change.interval)
    yield from _gone([change for change in changes if change.change is ChangeOfInput.GONE])
    yield from _cleaned_up(name, cleaned_up(recorded, content.files))
    new = [file for file in content.files if digest(file.name) not in recorded]
    last = lineage[-1].sources[name].last if lineage and name in lineage[-1].sources and source.order == "name" else ""
    passed = {change.file for change in changes if change.change is ChangeOfInput.NEW}
    for file in new:
        if _twin_of(listing, content, file.name, recorded) is not None:
            yield InputRemark(InputKind.TWIN, name, file.name)
        elif file.name in passed or file.name <= last:
            yield InputRemark(InputKind.LATE, name, file.name, interval=listing.interval_of(file.name))


def _of_passed_files(name: str, lineage: Sequence[Checkpoint]) -> Iterator[InputRemark]:
    """Yield a remark for each file that micro-batches passed over, since its interval had been taken in."""
    for file in late_files(lineage, name):
        kind = InputKind.ADDED if file.corrected_by is None else InputKind.CORRECTED
        interval = Interval(file.start, file.end)
        yield InputRemark(kind, name, file.name, interval=interval, corrected_by=file.corrected_by)


def _stopping_tables(config: JobConfig) -> list[str]:
    """Return the tables with `on_changed_file: fail`: no checkpoint records their late files, since a run stops before it takes anything in."""
    sources = config.sources.items() if config.branch is None else ()
    tables = (
        (name, source) for name, source in sources if source.intervals is not None and source.intervals.by != "name"
    )
    return [name for name, source in tables if source.on_changed_file == "fail"]


def _of_stopping_files(config: JobConfig, name: str, lineage: Sequence[Checkpoint]) -> Iterator[InputRemark]:
    """Yield a remark for each late file of a table that no checkpoint has recorded."""
    known = {file.name for file in late_files(lineage, name)}
    listed: Sequence[ListedFile] = ()
    with suppress(HeadraceError):  # the run itself reports a table that cannot be read
        listed = DeltaSource.to_list(name, config).listed(taken_in(lineage, name))
    for change in source_changes(lineage, name, listed, JobFolder.of(config), recorded_files(lineage, name)):
        if change.change is ChangeOfInput.NEW and change.file is not None and change.file not in known:
            yield InputRemark(InputKind.ADDED, name, change.file, interval=change.interval)


def _twin_of(
    listing: FolderListing, content: FolderContent, name: str, recorded: Mapping[str, RecordedFile]
) -> str | None:
    """Return a file with the same stem that is in the folder, or was taken in."""
    present = {file.name for file in content.files}
    return next((twin for twin in listing.twins_of(name) if twin in present or digest(twin) in recorded), None)


def _gone(changes: Sequence[InputChange]) -> Iterator[InputRemark]:
    """Yield a remark for each checkpoint that took in files that are gone."""
    for (source, number, interval), of_checkpoint in Counter(map(_taken_by, changes)).items():
        of_interval = "" if interval is None else f", of {interval}"
        text = f"{counted(of_checkpoint, 'file')} that checkpoint {number} took in{of_interval}"
        yield InputRemark(InputKind.GONE, source, text, of_checkpoint, interval)


def _taken_by(change: InputChange) -> tuple[str, int, Interval | None]:
    return change.source, change.checkpoint_id, change.interval


def _cleaned_up(source: str, taken_by: Sequence[Checkpoint]) -> Iterator[InputRemark]:
    """Yield one remark on all files that are missing at the beginning of a source; `taken_by` has the checkpoint of each."""
    if taken_by:
        ids = sorted(checkpoint.checkpoint_id for checkpoint in taken_by)
        checkpoints = f"checkpoint {ids[0]}" if ids[0] == ids[-1] else f"checkpoints {ids[0]} to {ids[-1]}"
        text = f"{counted(len(ids), 'file')} that {checkpoints} took in"
        yield InputRemark(InputKind.CLEANED_UP, source, text, len(taken_by))


def _order_of(change: InputChange) -> tuple[int, str]:
    return change.checkpoint_id, change.file or ""


def _of_no_source(config: JobConfig, name: str, files: Sequence[str]) -> Iterator[str]:
    """Yield the files of a source's folder that no other source of the job reads."""
    path = config.sources[name].path
    sharing = [
        FolderListing(key, other, JobFolder.of(config))
        for key, other in config.sources.items()
        if key != name and other.kind.is_folder and other.path == path
    ]
    yield from (file for file in files if not any(other.is_input(file) for other in sharing))


def _passed_over(source: str, files: Sequence[str]) -> Iterator[InputRemark]:
    """Yield a remark for each of the first files, and one for all others: there may be as many as in a lake."""
    yield from (InputRemark(InputKind.PASSED_OVER, source, file) for file in files[:_NAMED])
    if (more := len(files) - _NAMED) > 0:
        yield InputRemark(InputKind.PASSED_OVER, source, f"{more:,} more", more)


def _group_of(remark: InputRemark) -> tuple[str, str]:
    return remark.source, remark.kind.value


def _warning(config: JobConfig, kind: InputKind, source: str, remarks: Sequence[InputRemark]) -> RunWarning:
    files, count = [remark.file for remark in remarks], sum(remark.count for remark in remarks)
    left = (count if kind is InputKind.PASSED_OVER else len(files)) - _SHOWN
    more = f" and {left:,} more" if left > 0 else ""
    start, end = _bounds([remark.interval for remark in remarks])
    message = _SENTENCES[kind].format(
        files=f"{', '.join(files[:_SHOWN])}{more}",
        files_count=counted(count, "file"),
        entries_count=counted(count, "entry", "entries"),
        source=source,
        job=config.job,
        endings=", ".join(_endings(config.sources[source])),
        start=start,
        end=end,
        by=_correctors(remarks),
    )
    return RunWarning(kind.value, message, {"source": source, "files": files})


def _correctors(remarks: Sequence[InputRemark]) -> str:
    jobs = sorted({remark.corrected_by for remark in remarks if remark.corrected_by is not None})
    listed = ", ".join(f"'{job}'" for job in jobs)
    return f"job {listed} has" if len(jobs) == 1 else f"jobs {listed} have"


def _endings(source: SourceConfig) -> Sequence[str]:
    return format_of(source.file_options).suffixes if source.kind.is_folder else ()


def _bounds(intervals: Sequence[Interval | None]) -> tuple[str, str]:
    """Return the timestamps between which intervals lie, for a command; a word in their place if one of them is unknown."""
    known = [interval for interval in intervals if interval is not None]
    if len(known) < len(intervals):
        return "DAY", "DAY"
    return timestamp_text(min(interval.start for interval in known)), timestamp_text(
        max(interval.end for interval in known)
    )
