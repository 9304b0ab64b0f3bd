"""Cause of a checkpoint: why it was made, as data that later commands read. Notes are for people: no command reads them.

Restores and requeues always have a cause. A row of theirs without one was written by an earlier release, which recorded the cause in
the note; only of such rows is the note read (`cause_in_note`).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from headrace.sources.interval import Interval

_REPLAY: Final = re.compile(r"interval (\S+) to (\S+) is run again")
_REPEATED: Final = re.compile(r"the requeue of checkpoint (\d+) again")
_BACKFILL: Final = re.compile(r"backfill of (\S+) to (\S+)")


class Requeued(msgspec.Struct, frozen=True, tag="requeue", omit_defaults=True):
    """Cause of a requeue."""

    repeats: int | None = None
    """Requeue of the job that a branch repeats, or former requeue that a replay repeats: its checkpoint. None: somebody asked for it."""
    operators: tuple[str, ...] = ()
    """Async operators whose failed elements it moved."""


class Restored(msgspec.Struct, frozen=True, tag="restore", omit_defaults=True):
    """Cause of a restore."""

    replays: Interval | None = None
    """Interval that the run takes in again after the restore; None: the restore begins no replay."""


Cause = Requeued | Restored


def cause_in_note(kind: str, note: str | None) -> dict[str, Any] | None:
    """Return the cause of a checkpoint that an earlier release wrote, as stored; None for kinds without causes."""
    causes = {"requeue": _requeued, "restore": _restored}
    return None if kind not in causes else msgspec.to_builtins(causes[kind](note or ""))


def interval_in_note(note: str | None) -> Interval | None:
    """Return the interval that an earlier release made a branch for; None if no backfill made it."""
    return _interval(_BACKFILL, note or "")


def _requeued(note: str) -> Cause:
    repeated = _REPEATED.fullmatch(note)
    return Requeued(None if repeated is None else int(repeated[1]))


def _restored(note: str) -> Cause:
    return Restored(_interval(_REPLAY, note))


def _interval(pattern: re.Pattern[str], note: str) -> Interval | None:
    match = pattern.fullmatch(note)
    return None if match is None else Interval.named(*match.groups())
