"""Elements that wait for a service as rows of `async_requests`, and back (FLIP-232, retry state; design: durable retries)."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.async_io.element import AsyncElement
from headrace.async_io.stored_element import StoredElement, to_stored_element
from headrace.state.key_groups import KeyGroupRange
from headrace.tables.files import Storage
from headrace.tables.schemas import ASYNC_REQUESTS
from headrace.tables.stores import state_view


def waiting_element_rows(
    kept: Sequence[AsyncElement], removed: Sequence[AsyncElement], checkpoint_id: int
) -> tuple[list[StoredElement], list[bool]]:
    """What is to be written: rows that say something new, rows of elements that are gone, and which of them are the latter.

    An element that nothing happened to, such as one that is not due, keeps the row that it has.
    """
    rows = [to_stored_element(one, one.sequence or 0) for one in removed]
    for place, one in enumerate(kept):
        if one.sequence is None:
            rows.append(to_stored_element(one, (checkpoint_id << 32) + place))
        elif one.is_changed:
            rows.append(to_stored_element(one, one.sequence))
    return rows, [number < len(removed) for number in range(len(rows))]


def waiting_element_columns(
    rows: Sequence[StoredElement], deleted: Sequence[bool]
) -> dict[str, list[str | int | None]]:
    """The columns of `async_requests` that are its own; a row of an element that is gone has only its name."""
    names = ("status", "attempts", "first_attempt_at", "cost_ms", "next_attempt_at", "last_error", "element", "result")
    columns: dict[str, list[str | int | None]] = {"sequence": [row.sequence for row in rows]}
    for name in names:
        columns[name] = [None if gone else getattr(row, name) for row, gone in zip(rows, deleted, strict=True)]
    return columns


def load_waiting_elements(
    job_folder: str, version: int, operator: str, key_groups: KeyGroupRange, *, storage: Storage = None
) -> list[StoredElement]:
    """What waits for an operator in one range of key groups, as of a version of the table."""
    view = state_view(job_folder, ASYNC_REQUESTS, version, storage).of(operator, key_groups)
    return [StoredElement(**row) for row in view.live_rows(StoredElement.__struct_fields__)]


def waiting_for(job_folder: str, version: int, *, storage: Storage = None) -> set[str]:
    """The operators that elements wait for, as of a version of the table."""
    operators = state_view(job_folder, ASYNC_REQUESTS, version, storage).live(["operator"])
    return {*operators["operator"].to_pylist()}
