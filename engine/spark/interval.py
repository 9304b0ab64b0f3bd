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
    """Where an interval goes: on top of what is committed, or after restoring a checkpoint."""

    restore_to: int | None


def place_of(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> Place:
    """Find where `wanted` belongs in the line of checkpoints that leads to the last one.

    It continues that line, or it starts where one of its checkpoints ends: then that one is
    restored, and what came after it is replayed by the intervals that follow. Raises
    `IntervalError` where it would leave a gap or cut a committed slice in two.
    """
    line = _line(checkpoints)
    covered = [checkpoint for checkpoint in line if checkpoint.interval_end is not None]
    if not covered:
        return Place(None)
    position = covered[-1].interval_end or 0
    if wanted.start == position:
        return Place(None)
    if wanted.start > position:
        msg = (
            f"interval {wanted} would leave a gap: the job has taken in everything up to {_text(position)}. "
            f"Run the interval that starts there first."
        )
        raise IntervalError(msg)
    for checkpoint in reversed(covered):
        if checkpoint.interval_end == wanted.start:
            return Place(checkpoint.checkpoint_id)
    first = next(c for c in covered if c.kind is Kind.BATCH)
    if wanted.start == first.interval_start:
        before = first.parent_id
        return Place(before)
    starts = ", ".join(_text(c.interval_start) for c in covered[-6:] if c.interval_start is not None)
    msg = (
        f"interval {wanted} cuts a committed slice in two: slices begin at {starts}. "
        "Restore an earlier checkpoint with 'headrace restore', then run the intervals from there."
    )
    raise IntervalError(msg)


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
