"""Requeue: elements and rows of sources leave the quarantine, and come back as input.

The next run processes them again. A refused row of a source can be taken in again only if its file still has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from headrace import clock, crash_points
from headrace.api.graph import AsyncWait, SourceNode
from headrace.api.types import input_type
from headrace.async_io.pending_call import PendingCall, came
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.errors import ConfigError, SourceError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.facts import JobWork, Requeued
from headrace.plan.loader import plan_of
from headrace.plan.stages import Plan, waits_of
from headrace.records.keys import key_reader
from headrace.sources.folder.format import UNREADABLE, FileRows
from headrace.sources.position import NO_FACTS, RequeuedRows, SourceFacts, count_rows, ranges_of, rows_in, with_more
from headrace.sources.registry import read_rows_of, source_of
from headrace.sources.source import Source, SourceFile
from headrace.state.codec import encode
from headrace.storage.files import StagedFile
from headrace.tables.changelog import Changelog
from headrace.tables.requests import waiting_element_rows
from headrace.tables.schemas import ASYNC_REQUESTS, QUARANTINE, STATE_TABLES

QuarantinedRow = dict[str, Any]


class RefusedPlace(NamedTuple):
    """Input that a source has refused: rows of a file with numbers in [`start`, `end`).

    A single row has its number in the stored file; a part of a file has numbers in arrival order. `start` None: the whole file.
    """

    source: str
    file: str
    start: int | None = None
    end: int | None = None
    is_part: bool = False

    def is_among(self, requeued: Iterable[RequeuedRows]) -> bool:
        """Return whether the requeued rows include this place."""
        return any(rows.file == self.file and self._is_of(rows) for rows in requeued)

    def _is_of(self, rows: RequeuedRows) -> bool:
        if self.start is None or rows.ranges is None:
            return self.start is None and rows.ranges is None
        return any(start <= self.start < end for start, end in rows.ranges)


def refused_place(row: QuarantinedRow, sources: Collection[str]) -> RefusedPlace | None:
    """Return the refused input behind a row of the quarantine; None if none of these sources refused it.

    For example a record with a null key: its source has taken it in, and other parts of the pipeline may have it.
    """
    if row["operator"] not in sources or row["file"] is None:
        return None
    start, rows = row["first_row"], row["rows"]
    if start is None:
        return RefusedPlace(row["operator"], row["file"])
    return RefusedPlace(row["operator"], row["file"], start, start + rows, row["origin"] == "part")


@dataclass(slots=True)
class _FileEntries:
    """Entries of one file in the quarantine."""

    is_whole: bool = False
    parts: list[tuple[int, int]] = field(default_factory=list)
    raw: dict[int, str | None] = field(default_factory=dict)
    """Text of each refused row, by its number in the file."""

    def add(self, place: RefusedPlace, raw: str | None) -> None:
        """Add a row of the quarantine."""
        if place.start is None or place.end is None:
            self.is_whole = True
        elif place.is_part:
            self.parts.append((place.start, place.end))
        else:
            self.raw[place.start] = raw


class RefusedRows:
    """Reader of refused rows in the files of a job's sources."""

    def __init__(self, job: OpenJob, sources: Iterable[SourceNode]) -> None:
        """Take the `sources` of the job's pipeline."""
        self._job = job
        self._nodes = {node.name: node for node in sources}

    def requeued(self, rows: Iterable[QuarantinedRow]) -> dict[str, tuple[RequeuedRows, ...]]:
        """Return the rows to take in again, by source.

        Raises `SourceError` for a file that is gone, cannot be read, or has other rows than those that were refused, and
        `ConfigError` for a part of a file whose rows are unknown; nothing was changed then.
        """
        by_source: dict[str, dict[str, _FileEntries]] = defaultdict(lambda: defaultdict(_FileEntries))
        for row in rows:
            place = refused_place(row, self._nodes)
            if place is not None:
                by_source[place.source][place.file].add(place, row["raw"])
        return {name: self._of_source(name, files) for name, files in sorted(by_source.items())}

    def _of_source(self, name: str, files: Mapping[str, _FileEntries]) -> tuple[RequeuedRows, ...]:
        config = self._job.config.sources[name]
        source = source_of(self._nodes[name], self._job.config)
        stored = source.find(files.keys())
        if missing := sorted(files.keys() - stored.keys()):
            raise SourceError(
                f"source '{name}': {_listed(missing)} of {config.place} {'is' if len(missing) == 1 else 'are'} gone, and only the "
                "file has the rows as they were: the quarantine has a text of them. Nothing was requeued. Put the file back, or "
                "name the files to requeue rows of (--file NAME); or deliver the rows again in a new file."
            )
        return tuple(self._of_file(name, stored[file], files[file], source) for file in sorted(files))

    def _of_file(self, name: str, file: SourceFile, entries: _FileEntries, source: Source) -> RequeuedRows:
        if entries.is_whole:
            self._check_whole(name, file, entries, source)
            return RequeuedRows(file.name)
        if entries.parts and self._nodes[name].order_by:
            raise ConfigError(
                f"source '{name}': a part of {file.path} was refused when it was read in parts, and its order_by may have "
                "changed since, so nobody can tell which rows these are. Nothing was requeued. Requeue other files (--file "
                "NAME), and deliver these rows again in a new file."
            )
        try:
            rows = read_rows_of(file, self._nodes[name], self._job.folder)
        except UNREADABLE as error:
            msg = f"source '{name}': cannot read {file.path}: {error}. Nothing was requeued. Put the former file back."
            raise SourceError(msg) from error
        for number, raw in sorted(entries.raw.items()):
            _check_same(name, file, rows, number, raw)
        ranges = ranges_of([*entries.raw, *rows_in(entries.parts)])
        if ranges[-1][1] > rows.table.num_rows:
            raise _changed(name, file, ranges[-1][1] - 1)
        return RequeuedRows(file.name, ranges, rows.table.num_rows)

    def _check_whole(self, name: str, file: SourceFile, entries: _FileEntries, source: Source) -> None:
        """Raise `ConfigError` for a file that was taken in partly before it was refused as a whole."""
        facts = (point.sources.get(name, NO_FACTS) for point in self._job.lineage.checkpoints)
        taken = max(
            (own.rows for own in facts if own.begun and file.name in {own.begun[0], own.name_of(own.begun[0])}),
            default=0,
        )
        if entries.parts or entries.raw or 0 < taken < source.rows(file):
            raise ConfigError(
                f"source '{name}': {file.path} was read in parts, and the quarantine does not say which of them was refused. "
                "Nothing was requeued. Requeue other files (--file NAME), and deliver the rows that are missing in a new file."
            )


def count_requeued(requeued: Mapping[str, Sequence[RequeuedRows]]) -> dict[str, int]:
    """Return the numbers of rows and of whole files to take in again, as metrics of the checkpoint."""
    every = [rows for files in requeued.values() for rows in files]
    return {
        "requeued_rows": sum(count_rows(rows.ranges) for rows in every if rows.ranges is not None),
        "requeued_files": sum(rows.ranges is None for rows in every),
    }


def _check_same(name: str, file: SourceFile, rows: FileRows, number: int, raw: str | None) -> None:
    if not rows.has(number, raw):
        raise _changed(name, file, number)


def _changed(name: str, file: SourceFile, number: int) -> SourceError:
    return SourceError(
        f"source '{name}': row {number} of {file.path} is not the row that was refused: the file has changed, so others of its rows "
        "might be taken in twice. Nothing was requeued. Put the former file back, or name the files to requeue rows of "
        "(--file NAME); deliver rows that you have repaired in a new file."
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"  # noqa: PLR2004 - names in a message


def requeue(
    config: JobConfig,
    run_id: str,
    *,
    operator: str | None = None,
    files: Collection[str] = (),
    why: str | None = None,
) -> Checkpoint | None:
    """Take failed elements of async operators, and refused rows of sources, out of `quarantine`, as a checkpoint.

    `operator` names an async operator or a source, to move its rows only; `files` name files of sources, to move their rows only.
    Elements go to `async_requests`: each gets all its attempts and its whole timeout again, at its old place in
    arrival order, so downstream it may be late. Rows of sources go to the offset of their source: the next run reads them from
    their files again and takes them in before all that is new, with new ordinals. A row that is still bad comes back.
    Records whose key was null, and retractions that matched nothing, stay.

    Returns None when there is nothing to move. Raises `ConfigError` when the pipeline has no such async operator or source, or an
    element no longer fits its record type, and `SourceError` when a file is gone or does not have the refused rows any more.
    Nothing was changed then.
    """
    plan = plan_of(config.code)
    waits = {wait.name: wait for wait in waits_of(plan)}
    sources = {node.name: node for node in plan.sources}
    if operator is not None and operator not in waits and operator not in sources:
        known = ", ".join([*waits, *sources]) or "none"
        raise ConfigError(
            f"the pipeline has no async operator or source '{operator}' (it has: {known}); only what those have set aside can be "
            "requeued"
        )
    with open_job(config, run_id) as job:
        rows = (row for row in _quarantined(job) if operator in {None, row["operator"]})
        back = _selected(rows, waits, sources, files)
        if not any(back):
            return None
        return _commit(job, back, waits, RefusedRows(job, plan.sources).requeued(back.refused), why)


def requeue_again(job: OpenJob, plan: Plan, former: Checkpoint) -> Checkpoint:
    """Repeat the requeue of a `former` checkpoint: on a branch of its job, or after a restore has put its rows back into the quarantine.

    Takes only rows that are in quarantine now: a replay may have taken in the files of others again. Of operators whose elements the
    former requeue moved, takes all failed elements. If a file is gone or has changed, warns and leaves all rows of sources, so that
    the replay continues.
    """
    sources = {node.name for node in plan.sources}
    waits = {wait.name: wait for wait in waits_of(plan) if wait.name in former.requeued_operators}
    requeued_then = {name: former.sources[name].requeued for name in sources & former.sources.keys()}
    quarantined = _quarantined(job)
    places = [(row, refused_place(row, requeued_then)) for row in quarantined]
    rows = [row for row, place in places if place is not None and place.is_among(requeued_then[place.source])]
    requeued: Mapping[str, Sequence[RequeuedRows]] = {}
    try:
        requeued = RefusedRows(job, plan.sources).requeued(rows)
    except (SourceError, ConfigError) as error:
        job.notify("warning", f"rows that checkpoint {former.checkpoint_id} requeued stay in the quarantine. {error}")
        rows = []
    back = _Back(_selected(quarantined, waits, (), ()).elements, rows)
    note = f"the requeue of checkpoint {former.checkpoint_id} again"
    return _commit(job, back, waits, requeued, note, repeats=former.checkpoint_id)


class _Back(NamedTuple):
    """Rows that leave the quarantine: elements of async operators, and refused rows of sources."""

    elements: Sequence[QuarantinedRow]
    refused: Sequence[QuarantinedRow]


def _selected(
    rows: Iterable[QuarantinedRow], waits: Container[str], sources: Collection[str], files: Collection[str]
) -> _Back:
    """Return the rows that can leave the quarantine; with `files`, only rows of these files."""
    elements: list[QuarantinedRow] = []
    refused: list[QuarantinedRow] = []
    for row in rows:
        place = refused_place(row, sources)
        if place is not None and (not files or place.file in files):
            refused.append(row)
        # A keyed wait also has responses in quarantine whose key for the next operator is null: these are records.
        if not files and row["operator"] in waits and row["origin"] == "call":
            elements.append(row)
    return _Back(elements, refused)


def _commit(
    job: OpenJob,
    back: _Back,
    waits: Mapping[str, AsyncWait],
    requeued: Mapping[str, Sequence[RequeuedRows]],
    note: str | None,
    *,
    repeats: int | None = None,
) -> Checkpoint:
    files: dict[str, list[StagedFile]] = {}
    if any(back):
        files[QUARANTINE] = [_stage(job, QUARANTINE, removed_rows([*back.elements, *back.refused], job.next_id))]
    for name, wait in waits.items():
        if mine := [row for row in back.elements if row["operator"] == name]:
            files.setdefault(ASYNC_REQUESTS, []).append(_stage(job, ASYNC_REQUESTS, _waiting(job, wait, mine)))
    crash_points.reached("requeue.staged")
    counts = {"requeued": len(back.elements) + len(back.refused), "requeued_elements": len(back.elements)}
    return job.commit(
        Kind.REQUEUE,
        files=files,
        sources=_sources(job, requeued),
        work=_work(job, len(back.elements)),
        metrics={**counts, **count_requeued(requeued)},
        note=note,
        cause=Requeued(repeats, tuple(sorted({row["operator"] for row in back.elements}))),
    )


def _quarantined(job: OpenJob) -> list[QuarantinedRow]:
    rows: list[QuarantinedRow] = job.view(QUARANTINE).live().to_pylist()
    return rows


def removed_rows(rows: Sequence[QuarantinedRow], checkpoint_id: int) -> pa.Table:
    """Return the rows with which a checkpoint removes rows of the quarantine."""
    removals = [{**row, "raw": None, "checkpoint_id": checkpoint_id, "deleted": True} for row in rows]
    return pa.Table.from_pylist(removals, STATE_TABLES[QUARANTINE].schema)


def _waiting(job: OpenJob, wait: AsyncWait, rows: Sequence[QuarantinedRow]) -> pa.Table:
    elements = []
    for row in rows:
        try:
            element = PendingCall(came(row["raw"], input_type(wait.function)))
        except msgspec.MsgspecError as error:
            msg = (
                f"what is in quarantine at {row['position']} does not fit {input_type(wait.function).__name__}: {error}"
            )
            raise ConfigError(msg) from error
        element.key_json, element.last_error = _key(wait, element) or row["key"].encode(), row["error"]
        elements.append(element)
    changelog = Changelog(wait.name, job.next_id, job.last.max_parallelism)
    return changelog.requests(*waiting_element_rows(elements, [], job.next_id))


def _key(wait: AsyncWait, element: PendingCall) -> bytes | None:
    """Return the element's key by the present code of a keyed-ordered wait. It may differ from the key when the element failed."""
    return None if wait.key is None else encode(key_reader(wait.key)(element.emitted.record))


def _stage(job: OpenJob, table: str, rows: pa.Table) -> StagedFile:
    return job.stage(table, "requeue", rows)


def _sources(job: OpenJob, requeued: Mapping[str, Sequence[RequeuedRows]]) -> dict[str, SourceFacts]:
    """Return the facts of sources, with the rows to take in again."""
    return {
        name: msgspec.structs.replace(facts, requeued=with_more(facts.requeued, requeued.get(name, ())))
        for name, facts in job.last.sources.items()
    }


def _work(job: OpenJob, elements: int) -> JobWork:
    """Return the work with further elements that wait, due at once: so the next run resumes them even without input."""
    work = job.last.work
    return work.with_pending(work.pending + elements, clock.now()) if elements else work
