"""Elements that wait for a service as rows of `async_requests`, and back (FLIP-232, retry state; design: durable retries)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.async_io.element import AsyncElement
from headrace.async_io.stored_element import StoredElement, stored
from headrace.checkpoint._delta import Options, open_table, read
from headrace.checkpoint.tables import ASYNC_REQUESTS, STATE_TABLES
from headrace.state.key_groups import KeyGroupRange


def rows_of(
    kept: Sequence[AsyncElement], removed: Sequence[AsyncElement], checkpoint_id: int
) -> tuple[list[StoredElement], list[bool]]:
    """What is to be written: rows that say something new, rows of elements that are gone, and which of them are the latter.

    An element that nothing happened to, such as one that is not due, keeps the row that it has.
    """
    rows = [stored(one, one.sequence or 0) for one in removed]
    for place, one in enumerate(kept):
        if one.sequence is None:
            rows.append(stored(one, (checkpoint_id << 32) + place))
        elif one.is_changed:
            rows.append(stored(one, one.sequence))
    return rows, [number < len(removed) for number in range(len(rows))]


def columns_of(rows: Sequence[StoredElement], deleted: Sequence[bool]) -> dict[str, list[str | int | None]]:
    """The columns of `async_requests` that are its own; a row of an element that is gone has only its name."""
    names = ("status", "attempts", "first_attempt_at", "cost_ms", "next_attempt_at", "last_error", "element", "result")
    columns: dict[str, list[str | int | None]] = {"sequence": [row.sequence for row in rows]}
    for name in names:
        columns[name] = [None if gone else getattr(row, name) for row, gone in zip(rows, deleted, strict=True)]
    return columns


def load(
    job_folder: str, version: int, operator: str, key_groups: KeyGroupRange, *, storage: Options = None
) -> list[StoredElement]:
    """What waits for an operator in one range of key groups, as of a version of the table."""
    predicate = f"operator = '{operator}' AND key_group >= {key_groups.first} AND key_group <= {key_groups.last}"
    rows = _read(job_folder, version, predicate, storage)
    last = {(row["key"], row["sequence"]): row for row in rows}
    names = StoredElement.__struct_fields__
    return [StoredElement(**{name: row[name] for name in names}) for row in last.values() if not row["deleted"]]


def waiting_for(job_folder: str, version: int, *, storage: Options = None) -> set[str]:
    """The operators that elements wait for, as of a version of the table."""
    rows = _read(job_folder, version, None, storage, columns=_NAMED)
    last = {(row["operator"], row["key"], row["sequence"]): row["deleted"] for row in rows}
    return {operator for (operator, _, _), gone in last.items() if not gone}


_NAMED = ("checkpoint_id", "operator", "key", "sequence", "deleted")


def _read(
    job_folder: str, version: int, predicate: str | None, storage: Options, *, columns: Sequence[str] = ()
) -> list[dict[str, Any]]:
    table = open_table(f"{job_folder}/{ASYNC_REQUESTS}", version=version, storage=storage)
    schema = STATE_TABLES[ASYNC_REQUESTS].schema
    rows = read(table, schema, columns=columns or schema.names, predicate=predicate).sort_by("checkpoint_id")
    for place, field in enumerate(rows.schema):
        if pa.types.is_timestamp(field.type):
            times = rows[field.name].cast(pa.timestamp("ms", tz="UTC")).cast(pa.int64())
            rows = rows.set_column(place, field.name, times)
    found: list[dict[str, Any]] = rows.to_pylist()
    return found
