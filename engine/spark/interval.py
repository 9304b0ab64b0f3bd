"""Which interval follows which. The order in which a scheduler starts runs is never trusted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from engine.checkpoint.checkpoint import Checkpoint, Kind
from engine.errors import ConfigError, IntervalError


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` (inclusive) to `end` (exclusive), in milliseconds."""

    start: int
    end: int

    @classmethod
    def of(cls, start: int | None, end: int | None) -> Interval:
        """The interval of a run.

        Raises `ConfigError` for one that is not given, or empty.
        """
        if start is None or end is None:
            msg = "an interval run needs --interval-start and --interval-end"
            raise ConfigError(msg)
        if start >= end:
            msg = f"the interval {_text(start)} to {_text(end)} is empty"
            raise ConfigError(msg)
        return cls(start, end)

    def __str__(self) -> str:
        """`2013-01-05 to 2013-01-06`, with times of day only where they matter."""
        return f"{_text(self.start)} to {_text(self.end)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an interval goes: after restoring a checkpoint and replaying what lies between, if anything."""

    restore_to: int | None = None
    replay: Interval | None = None


def place_of(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> Place:
    """Find where `wanted` belongs in the line of checkpoints that leads to the last one.

    It continues that line; or it begins further back: then the last checkpoint at or before its start
    is restored, and what a larger slice had taken in from there up to the start is replayed. What came
    later is taken in again by the intervals that follow, or by the next caught-up run.

        committed    |--- 1 ---|--- 2 ---|--- 3 ---|
        wanted                      |-4-|               restore 1, replay up to 4, then run 4

    Raises `IntervalError` where it would leave a gap behind the last checkpoint.
    """
    covered = [checkpoint for checkpoint in _line(checkpoints) if checkpoint.interval_end is not None]
    position = covered[-1].interval_end if covered else _beginning(checkpoints)
    if position is None or wanted.start == position:
        return Place()
    if wanted.start > position:
        made = [checkpoint for checkpoint in checkpoints if checkpoint.kind is not Kind.MIGRATION]
        if made[-1].note == why_restored(wanted):  # an attempt that broke off before its replay
            return Place(replay=_between(position, wanted.start))
        msg = (
            f"interval {wanted} would leave a gap: the job has taken in everything up to {_text(position)}. "
            f"Run the interval that starts there first."
        )
        raise IntervalError(msg)
    if not covered:
        return Place()
    for checkpoint in reversed(covered):
        end = checkpoint.interval_end or 0
        if end <= wanted.start:
            return Place(checkpoint.checkpoint_id, _between(end, wanted.start))
    first = next(checkpoint for checkpoint in covered if checkpoint.kind is Kind.BATCH)
    return Place(first.parent_id, _between(first.interval_start or 0, wanted.start))


def why_restored(wanted: Interval) -> str:
    """The note of the restore that makes room for an interval."""
    return f"interval {wanted} is run again"


def _beginning(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Where the first slice began that was ever taken in: a job restored to before it still has to go on there."""
    starts = (checkpoint.interval_start for checkpoint in checkpoints if checkpoint.kind is Kind.BATCH)
    return min((start for start in starts if start is not None), default=None)


def _between(start: int, end: int) -> Interval | None:
    return Interval(start, end) if start < end else None


def _line(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The checkpoints that led to the last one, oldest first; what was restored away is left out."""
    by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
    line: list[Checkpoint] = []
    current = checkpoints[-1] if checkpoints else None
    while current is not None:
        line.append(current)
        before = current.restored_from if current.kind is Kind.RESTORE else current.parent_id
        current = None if before is None else by_id.get(before)
    return line[::-1]


def _text(moment: int | None) -> str:
    if moment is None:
        return "the beginning"
    text = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="minutes").replace("+00:00", "Z")
    return text.removesuffix("T00:00Z")
