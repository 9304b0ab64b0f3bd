"""Back from the quarantine: elements that an async operator gave up on are asked for again by the next run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from headrace import clock
from headrace.api import AsyncWait
from headrace.api.stream_types import input_type
from headrace.async_io.element import AsyncElement
from headrace.async_io.stored_element import came, is_element
from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.protocol import OpenJob, open_job
from headrace.config import JobConfig
from headrace.errors import ConfigError
from headrace.plan.keys import key_reader
from headrace.plan.pipelines import plan_of
from headrace.plan.stages import waits_of
from headrace.state.codec import encode
from headrace.tables.async_requests import waiting_element_rows
from headrace.tables.changelog import Changelog
from headrace.tables.files import StagedFile
from headrace.tables.schemas import ASYNC_REQUESTS, QUARANTINE, STATE_TABLES

QuarantinedRow = dict[str, Any]


def requeue(
    config: JobConfig, run_id: str, *, operator: str | None = None, why: str | None = None
) -> Checkpoint | None:
    """Move what async operators (or `operator` alone) gave up on from `quarantine` to `async_requests`, as a checkpoint.

    Each element gets all its attempts and its whole timeout again. It has its old place in arrival order, so downstream it
    may be late. Returns None when there is nothing to move. Raises `ConfigError` when the pipeline has no such async
    operator, or an element no longer fits its record type.
    """
    waits = {wait.name: wait for wait in waits_of(plan_of(config.code))}
    if operator is not None and operator not in waits:
        known = ", ".join(waits) or "none"
        raise ConfigError(
            f"the pipeline has no async operator '{operator}' (it has: {known}); only those can be asked again"
        )
    with open_job(config, run_id) as job:
        asked = {operator} if operator else waits.keys()
        # A keyed wait has other rows there as well: answers whose key for the operator after it is null.
        rows = [
            row for row in _quarantined(job) if row["operator"] in asked and is_element(row["raw"], row["position"])
        ]
        if not rows:
            return None
        files: dict[str, list[StagedFile]] = {
            ASYNC_REQUESTS: [],
            QUARANTINE: [_stage(job, QUARANTINE, _removed(job, rows))],
        }
        for name, wait in waits.items():
            mine = [row for row in rows if row["operator"] == name]
            if mine:
                files[ASYNC_REQUESTS].append(_stage(job, ASYNC_REQUESTS, _waiting(job, wait, mine)))
        return job.commit(
            Kind.REQUEUE, files=files, offsets=_offsets(job, len(rows)), metrics={"requeued": len(rows)}, note=why
        )


def _quarantined(job: OpenJob) -> list[QuarantinedRow]:
    rows: list[QuarantinedRow] = job.view(QUARANTINE).live().to_pylist()
    return rows


def _removed(job: OpenJob, rows: Sequence[QuarantinedRow]) -> pa.Table:
    gone = [{**row, "raw": None, "checkpoint_id": job.next_id, "deleted": True} for row in rows]
    return pa.Table.from_pylist(gone, STATE_TABLES[QUARANTINE].schema)


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
    """The key of a keyed-ordered wait: it may have been another one, or none, when the element was given up on."""
    return None if wait.key is None else encode(key_reader(wait.key)(element.emitted.record))


def _stage(job: OpenJob, table: str, rows: pa.Table) -> StagedFile:
    return job.stage(table, "requeue", rows)


def _offsets(job: OpenJob, requeued: int) -> dict[str, Any]:
    """What waits is counted with the source; the next run takes it up even if there is no input."""
    return {
        name: msgspec.structs.replace(offset, pending=offset.pending + requeued, due=clock.now())
        for name, offset in job.last.offsets.items()
    }
