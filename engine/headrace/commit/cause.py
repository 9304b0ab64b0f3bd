"""Cause of a checkpoint: why it was made, as data that later commands read. Notes are for people: no command reads them.

A requeue always has a cause. Its row without one was written by an earlier release, which recorded the cause in the note; only of
such rows is the note read (`cause_in_note`).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from headrace.sources.interval import Interval

_REPEATED: Final = re.compile(r"the requeue of checkpoint (\d+) again")
_BACKFILL: Final = re.compile(r"backfill of (\S+) to (\S+)")


class Requeued(msgspec.Struct, frozen=True, tag="requeue", omit_defaults=True):
    """Cause of a requeue."""

    repeats: int | None = None
    """Requeue of the job that a branch repeats: its checkpoint. None: somebody asked for it."""
    operators: tuple[str, ...] = ()
    """Async operators whose failed elements it moved."""


class Restored(msgspec.Struct, frozen=True, tag="restore", omit_defaults=True):
    """Cause of a restore: somebody asked for it."""


Cause = Requeued | Restored


def cause_in_note(kind: str, note: str | None) -> dict[str, Any] | None:
    """Return the cause of a checkpoint that an earlier release wrote, as stored; None for other kinds than requeues."""
    return msgspec.to_builtins(_requeued(note or "")) if kind == "requeue" else None


def interval_in_note(note: str | None) -> Interval | None:
    """Return the interval that an earlier release made a branch for; None if no backfill made it."""
    return _interval(_BACKFILL, note or "")


def _requeued(note: str) -> Cause:
    repeated = _REPEATED.fullmatch(note)
    return Requeued(None if repeated is None else int(repeated[1]))


def _interval(pattern: re.Pattern[str], note: str) -> Interval | None:
    match = pattern.fullmatch(note)
    return None if match is None else Interval.named(*match.groups())
