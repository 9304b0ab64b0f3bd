"""Migrations of the stored format: each step brings a job from one format number to the next.

    format   since        what is new
    1        0.1.0
    2        Unreleased   `keyed_state` has `ttl_ms`; `checkpoints` has `state_ttl`, `state_schemas`, `timers_fired`
    3        Unreleased   `buffered_requests` has `input`; null is the first one

Each step is a separate checkpoint (kind `migration`), prepared and committed like any other; a restore undoes it. A
crash before its commit leaves tables ahead of the last checkpoint. The next opening undoes that, then tries again.
`checkpoints` itself needs no step: a row with more columns adds them, and readers take a missing one for null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.tables.schemas import BUFFERED_REQUESTS, KEYED_STATE, STATE_TABLES

if TYPE_CHECKING:
    from headrace.commit.job_tables import JobTables, Versions


@dataclass(frozen=True, slots=True)
class FormatMigration:
    """Step to format `number`."""

    number: int
    what: str
    """Text for the checkpoint's note."""

    prepare: Callable[[JobTables, Versions], Versions]
    """Function that migrates tables from the former format, and returns the versions of all tables. A second call does nothing."""


def _adds(table: str, column: str) -> Callable[[JobTables, Versions], Versions]:
    def prepare(tables: JobTables, versions: Versions) -> Versions:
        field = STATE_TABLES[table].schema.field(column)
        return {**versions, table: tables.add_columns(table, [field], versions[table])}

    return prepare


MIGRATIONS = (
    FormatMigration(2, "keyed_state has the column ttl_ms", _adds(KEYED_STATE, "ttl_ms")),
    FormatMigration(3, "buffered_requests has the column input", _adds(BUFFERED_REQUESTS, "input")),
)
"""All steps, in order, without a gap."""


def next_migration(format_version: int) -> FormatMigration | None:
    """Return the step that state of a format takes next; None if it has this program's format."""
    return next((migration for migration in MIGRATIONS if migration.number > format_version), None)
