"""Migrations of the stored format: each step brings a job from one format number to the next.

Format 1 is the first one. A new format adds its step to `MIGRATIONS`, and raises `FORMAT_VERSION`.

Each step is a separate checkpoint (kind `migration`), prepared and committed like any other; a restore undoes it. A
crash before its commit leaves tables ahead of the last checkpoint. The next opening undoes that, then tries again.
A step changes state tables: readers of an older checkpoint take a missing column for null.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


MIGRATIONS: tuple[FormatMigration, ...] = ()
"""All steps, in order, without a gap: the first one is number 2."""


def next_migration(format_version: int) -> FormatMigration | None:
    """Return the step that state of a format takes next; None if it has this program's format."""
    return next((migration for migration in MIGRATIONS if migration.number > format_version), None)
