"""Conversion between elements that wait for a service and rows of `async_requests` (FLIP-232, retry state)."""

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
    """Return the rows to write, for removed elements and for new or changed ones, and a flag for each row: removed or not.

    An element that has not changed, such as one that was not due, keeps its row.
    """
    rows = [to_stored_element(element, element.sequence or 0) for element in removed]
    for place, element in enumerate(kept):
        if element.sequence is None:
            rows.append(to_stored_element(element, (checkpoint_id << 32) + place))
        elif element.is_changed:
            rows.append(to_stored_element(element, element.sequence))
    return rows, [number < len(removed) for number in range(len(rows))]


def waiting_element_columns(
    rows: Sequence[StoredElement], deleted: Sequence[bool]
) -> dict[str, list[str | int | None]]:
    """Return the own columns of `async_requests`; rows of removed elements have only their sequence number."""
    names = ("status", "attempts", "first_attempt_at", "cost_ms", "next_attempt_at", "last_error", "element", "result")
    columns: dict[str, list[str | int | None]] = {"sequence": [row.sequence for row in rows]}
    for name in names:
        columns[name] = [
            None if is_deleted else getattr(row, name) for row, is_deleted in zip(rows, deleted, strict=True)
        ]
    return columns


def load_waiting_elements(
    job_folder: str, version: int, operator: str, key_groups: KeyGroupRange, *, storage: Storage = None
) -> list[StoredElement]:
    """Return the elements of an operator that wait, in one range of key groups, at a version of the table."""
    view = state_view(job_folder, ASYNC_REQUESTS, version, storage).of(operator, key_groups)
    return [StoredElement(**row) for row in view.live_rows(StoredElement.__struct_fields__)]


def waiting_for(job_folder: str, version: int, *, storage: Storage = None) -> set[str]:
    """Return the operators with waiting elements, at a version of the table."""
    operators = state_view(job_folder, ASYNC_REQUESTS, version, storage).live(["operator"])
    return {*operators["operator"].to_pylist()}
