"""Requeue: take elements and rows of sources out of the quarantine, for the next run to process again."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import pyarrow as pa

from headrace import clock, faults
from headrace.api import AsyncWait
from headrace.api.stream_types import input_type
from headrace.async_io.element import AsyncElement
from headrace.async_io.stored_element import came, is_element
from headrace.commit.cause import Requeued
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.protocol import OpenJob, open_job
from headrace.commit.requeued_rows import QuarantinedRow, RefusedRows, count_requeued, refused_place
from headrace.config import JobConfig
from headrace.errors import ConfigError, SourceError
from headrace.plan.keys import key_reader
from headrace.plan.pipelines import plan_of
from headrace.plan.stages import Plan, waits_of
from headrace.sources.offset import SourceOffset
from headrace.sources.requeued import RequeuedRows, with_more
from headrace.state.codec import encode
from headrace.tables.async_requests import waiting_element_rows
from headrace.tables.changelog import Changelog
from headrace.tables.files import StagedFile
from headrace.tables.schemas import ASYNC_REQUESTS, QUARANTINE, STATE_TABLES


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
    requeued_then = {name: former.offsets[name].requeued for name in sources & former.offsets.keys()}
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
        # A keyed wait also has answers in quarantine whose key for the next operator is null.
        if not files and row["operator"] in waits and is_element(row["raw"], row["position"]):
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
        files[QUARANTINE] = [_stage(job, QUARANTINE, _removed(job, [*back.elements, *back.refused]))]
    for name, wait in waits.items():
        if mine := [row for row in back.elements if row["operator"] == name]:
            files.setdefault(ASYNC_REQUESTS, []).append(_stage(job, ASYNC_REQUESTS, _waiting(job, wait, mine)))
    faults.reached("requeue.staged")
    counts = {"requeued": len(back.elements) + len(back.refused), "requeued_elements": len(back.elements)}
    return job.commit(
        Kind.REQUEUE,
        files=files,
        offsets=_offsets(job, len(back.elements), requeued),
        metrics={**counts, **count_requeued(requeued)},
        note=note,
        cause=Requeued(repeats, tuple(sorted({row["operator"] for row in back.elements}))),
    )


def _quarantined(job: OpenJob) -> list[QuarantinedRow]:
    rows: list[QuarantinedRow] = job.view(QUARANTINE).live().to_pylist()
    return rows


def _removed(job: OpenJob, rows: Sequence[QuarantinedRow]) -> pa.Table:
    removals = [{**row, "raw": None, "checkpoint_id": job.next_id, "deleted": True} for row in rows]
    return pa.Table.from_pylist(removals, STATE_TABLES[QUARANTINE].schema)


def _waiting(job: OpenJob, wait: AsyncWait, rows: Sequence[QuarantinedRow]) -> pa.Table:
    elements = []
    for row in rows:
        try:
            element = AsyncElement(came(row["raw"], input_type(wait.function)))
        except msgspec.MsgspecError as error:
            msg = (
                f"what is in quarantine at {row['position']} does not fit {input_type(wait.function).__name__}: {error}"
            )
            raise ConfigError(msg) from error
        element.key_json, element.last_error = _key(wait, element) or row["key"].encode(), row["error"]
        elements.append(element)
    changelog = Changelog(wait.name, job.next_id, job.last.max_parallelism)
    return changelog.requests(*waiting_element_rows(elements, [], job.next_id))


def _key(wait: AsyncWait, element: AsyncElement) -> bytes | None:
    """Return the element's key by the present code of a keyed-ordered wait. It may differ from the key when the element failed."""
    return None if wait.key is None else encode(key_reader(wait.key)(element.emitted.record))


def _stage(job: OpenJob, table: str, rows: pa.Table) -> StagedFile:
    return job.stage(table, "requeue", rows)


def _offsets(job: OpenJob, elements: int, requeued: Mapping[str, Sequence[RequeuedRows]]) -> dict[str, SourceOffset]:
    """Return the offsets with the number of waiting elements, so that the next run resumes them even without input."""
    offsets = {
        name: msgspec.structs.replace(offset, requeued=with_more(offset.requeued, requeued.get(name, ())))
        for name, offset in job.last.offsets.items()
    }
    if not elements:
        return offsets
    return {
        name: msgspec.structs.replace(offset, pending=offset.pending + elements, due=clock.now())
        for name, offset in offsets.items()
    }
