"""Delta tables of a job: their names and columns. All of them are in the job's folder.

Every job has the `STATE_TABLES`. A job has `responses` from the first run on in which a service keeps responses.

All of them are append-only changelogs. The state at checkpoint *c* is the last row of each entry, by `checkpoint_id`, in the
version of the table that *c* records.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import pyarrow as pa

FORMAT_VERSION = 1
"""Version of the stored format, recorded in every checkpoint. `headrace.commit.migrations` brings a job to it."""

ARROW_TIMESTAMP = pa.timestamp("us", tz="UTC")

CHECKPOINTS = "checkpoints"
KEYED_STATE = "keyed_state"
TIMERS = "timers"
BUFFERED_REQUESTS = "buffered_requests"
ASYNC_REQUESTS = "async_requests"
MATERIALIZER_HISTORY = "materializer_history"
QUARANTINE = "quarantine"
RESPONSES = "responses"

_ENTRY = [
    pa.field("operator", pa.string(), nullable=False),
    pa.field("key_group", pa.int32(), nullable=False),
    pa.field("key", pa.string(), nullable=False),
]
_CHANGE = [
    pa.field("checkpoint_id", pa.int64(), nullable=False),
    pa.field("deleted", pa.bool_(), nullable=False),
]


@dataclass(frozen=True, slots=True)
class StateTable:
    """State table: its columns, and those of them that identify an entry."""

    name: str
    schema: pa.Schema
    entry: tuple[str, ...]


def _table(name: str, identity: list[pa.Field], rest: list[pa.Field]) -> StateTable:
    entry = ("operator", "key_group", "key", *(field.name for field in identity))
    return StateTable(name, pa.schema([*_ENTRY, *identity, *rest, *_CHANGE]), entry)


STATE_TABLES: dict[str, StateTable] = {
    table.name: table
    for table in (
        _table(
            KEYED_STATE,
            [
                pa.field("state", pa.string(), nullable=False),
                pa.field("namespace", pa.string()),
                pa.field("user_key", pa.string()),
            ],
            [
                pa.field("value", pa.string()),
                pa.field("last_access", ARROW_TIMESTAMP),
                pa.field("expires_at", ARROW_TIMESTAMP),
                pa.field("ttl_ms", pa.int64()),
            ],
        ),
        _table(
            TIMERS,
            [
                pa.field("domain", pa.string(), nullable=False),
                pa.field("timestamp", ARROW_TIMESTAMP, nullable=False),
                pa.field("namespace", pa.string()),
            ],
            [],
        ),
        _table(
            BUFFERED_REQUESTS,
            [pa.field("sequence", pa.int64(), nullable=False)],
            [
                pa.field("block_id", pa.string()),
                pa.field("request", pa.string()),
                pa.field("record", pa.string()),
                pa.field("input", pa.int32()),
            ],
        ),
        _table(
            ASYNC_REQUESTS,
            [pa.field("sequence", pa.int64(), nullable=False)],
            [
                pa.field("status", pa.string()),
                pa.field("attempts", pa.int32()),
                pa.field("first_attempt_at", ARROW_TIMESTAMP),
                pa.field("cost_ms", pa.int64()),
                pa.field("next_attempt_at", ARROW_TIMESTAMP),
                pa.field("last_error", pa.string()),
                pa.field("element", pa.string()),
                pa.field("result", pa.string()),
            ],
        ),
        _table(
            MATERIALIZER_HISTORY,
            [pa.field("sequence_number", pa.int64(), nullable=False)],
            [
                pa.field("upsert_key", pa.string()),
                pa.field("row", pa.string()),
                pa.field("row_kind", pa.string()),
                pa.field("inserted_at", ARROW_TIMESTAMP),
            ],
        ),
        # The quarantine keeps input that could not be processed. Rows are only added, so the source and the position of a
        # row identify its entry. `origin` says what it is; a row, a part or a whole file of a source names the file's rows.
        _table(
            QUARANTINE,
            [
                pa.field("source", pa.string(), nullable=False),
                pa.field("position", pa.string(), nullable=False),
            ],
            [
                pa.field("raw", pa.string()),
                pa.field("error", pa.string(), nullable=False),
                pa.field("origin", pa.string(), nullable=False),
                pa.field("file", pa.string()),
                pa.field("first_row", pa.int64()),
                pa.field("rows", pa.int64()),
            ],
        ),
    )
}
"""Tables of every job."""

OPTIONAL_TABLES: dict[str, StateTable] = {
    RESPONSES: _table(
        RESPONSES,
        [
            pa.field("digest", pa.string(), nullable=False),
            pa.field("position", pa.string(), nullable=False),
        ],
        [
            pa.field("ordinal", pa.int64()),
            pa.field("service", pa.string()),
            pa.field("status", pa.string()),
            pa.field("attempts", pa.int32()),
            pa.field("request", pa.string()),
            pa.field("result", pa.string()),
            pa.field("error", pa.string()),
            pa.field("responded_at", ARROW_TIMESTAMP),
            pa.field("expires_at", ARROW_TIMESTAMP),
        ],
    )
}
"""Tables that a job has from the first run on that needs them. Earlier checkpoints name no version of them."""

ALL_TABLES: dict[str, StateTable] = STATE_TABLES | OPTIONAL_TABLES


def tables_in(versions: Container[str]) -> list[str]:
    """Return the names of the tables that a checkpoint with these versions has."""
    return [name for name in ALL_TABLES if name in versions]


CHECKPOINTS_SCHEMA = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64()),
        pa.field("parent_id", pa.int64()),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string()),
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("attempt_id", pa.string(), nullable=False),
        pa.field("interval_start", ARROW_TIMESTAMP),
        pa.field("interval_end", ARROW_TIMESTAMP),
        pa.field("watermark", ARROW_TIMESTAMP),
        pa.field("max_parallelism", pa.int32()),
        pa.field("sources", pa.string()),
        pa.field("timelines", pa.string()),
        pa.field("held", pa.int64()),
        pa.field("pending", pa.int64()),
        pa.field("due", ARROW_TIMESTAMP),
        pa.field("versions", pa.string()),
        pa.field("outputs", pa.string()),
        pa.field("operators", pa.string()),
        pa.field("edges", pa.string()),
        pa.field("pauses", pa.string()),
        pa.field("declared", pa.string()),
        pa.field("declared_by", pa.int64()),
        pa.field("metrics", pa.string()),
        pa.field("seconds", pa.string()),
        pa.field("services", pa.string()),
        pa.field("row_times", pa.string()),
        pa.field("watermark_steps", pa.string()),
        pa.field("restored_from", pa.int64()),
        pa.field("incarnation", pa.int64()),
        pa.field("erased", pa.string()),
        pa.field("note", pa.string()),
        pa.field("cause", pa.string()),
        pa.field("processing_time", ARROW_TIMESTAMP),
        pa.field("ended_at", ARROW_TIMESTAMP),
        pa.field("follows", pa.int64()),
        pa.field("committed_at", ARROW_TIMESTAMP, nullable=False),
        pa.field("lease_expires_at", ARROW_TIMESTAMP),
        pa.field("holder", pa.string()),
        pa.field("log_version", pa.int64(), nullable=False),
        pa.field("format_version", pa.int32(), nullable=False),
    ]
)
