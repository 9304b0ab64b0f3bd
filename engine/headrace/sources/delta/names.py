"""Names of a table's files in a source: VERSION/KIND/PATH, and before it the start of the interval where a column gives it.

Versions have 20 digits, as in Delta's log, and starts have the same length, so names sort as (interval, version, kind, path):

    00000000000000000007/add/part-00000.parquet
    2026-03-02T000000.000Z/00000000000000000007/add/day=2026-03-02/part-00000.parquet

A kind ends with what else the part of a file has beside the rows of its interval, where a column gives the intervals: `add-early` also has
earlier times and nulls, `add-late` later times, `add-any` both.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

REWRITTEN: Final = "rewrite"
"""Kind of what stands for a commit that was passed over, in each interval of which it removed or rewrote rows. It has no rows."""

MOVED: Final = "move"
"""Kind of what stands for a commit that was passed over, in each interval of which it wrote the rows into other files. It has no rows."""

SNAPSHOT: Final = "snapshot"
"""Kind of the files of a version that is taken in as a whole."""

_START_TEXT: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{6}\.[0-9]{3}"
_NAME: Final = re.compile(rf"(?:{_START_TEXT}Z/)?([0-9]{{1,20}})/(?:([^/]+)/(.*))?", re.DOTALL)
_IN_INTERVAL: Final = re.compile(rf"({_START_TEXT})Z(?:/.*)?", re.DOTALL)
_START: Final = "%Y-%m-%dT%H%M%S.%f"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def file_name(version: int, kind: str, path: str, start: int | None = None) -> str:
    """Return the name of a file: its `path` in the table's folder, and the start of its interval (ms) if a column gives it."""
    name = f"{version_text(version)}/{kind}/{path}"
    return name if start is None else f"{_start_text(start)}/{name}"


def end_place(end: int) -> str:
    """Return the place behind all files whose intervals start before `end` (ms), and before all others."""
    return _start_text(end)


def version_text(version: int) -> str:
    """Return a version with all of its digits."""
    return f"{version:020d}"


def version_of(name: str) -> int:
    """Return the version in the name of a table's file; -1 without one."""
    match = _NAME.fullmatch(name)
    return -1 if match is None else int(match[1])


def kind_of(name: str) -> str:
    """Return the kind in the name of a table's file: appended rows, a snapshot, or one side of changes."""
    match = _NAME.fullmatch(name)
    return "" if match is None else match[2] or ""


def path_of(name: str) -> str:
    """Return the path in the table's folder in the name of a table's file."""
    match = _NAME.fullmatch(name)
    return "" if match is None else match[3] or ""


def start_of(name: str) -> int | None:
    """Return the start of the interval in the name of a table's file, or the end in an `end_place` (ms); None without one."""
    match = _IN_INTERVAL.fullmatch(name)
    if match is None:
        return None
    return (datetime.strptime(match[1], _START).replace(tzinfo=UTC) - _EPOCH) // _MILLISECOND


def _start_text(start: int) -> str:
    text = (_EPOCH + start * _MILLISECOND).strftime("%m-%dT%H%M%S.%f")[:-3]
    return f"{(_EPOCH + start * _MILLISECOND).year:04d}-{text}Z"
