"""Which interval follows which. The order in which a scheduler starts runs is never trusted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from headrace.checkpoint.checkpoint import Checkpoint, Kind
from headrace.errors import ConfigError, IntervalError


@dataclass(frozen=True, slots=True)
class Interval:
    """From `start` (inclusive) to `end` (exclusive), in milliseconds."""

    start: int
    end: int

    @classmethod
    def of(cls, start: int | None, end: int | None) -> Interval:
        """Return the interval of a run.

        Raises `ConfigError` for one that is not given, or empty.
        """
        if start is None or end is None:
            msg = "an interval run needs --interval-start and --interval-end"
            raise ConfigError(msg)
        if start >= end:
            msg = f"the interval {moment_text(start)} to {moment_text(end)} is empty"
            raise ConfigError(msg)
        return cls(start, end)

    def __str__(self) -> str:
        """`2013-01-05 to 2013-01-06`, with times of day only where they matter."""
        return f"{moment_text(self.start)} to {moment_text(self.end)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an interval goes: behind the last checkpoint, behind an earlier one, or nowhere since this run has taken it in."""

    restore_to: int | None = None
    is_done: bool = False


class Run(Protocol):
    """Says which run, and which attempt of it, has written a checkpoint."""

    run_id: str
    attempt_id: str


def place_of(wanted: Interval, checkpoints: Sequence[Checkpoint], run: Run, *, replay: bool = False) -> Place:
    """Find where `wanted` belongs in the line of checkpoints that leads to the last one.

    It continues that line; or it begins further back: then `restore_to` names the last checkpoint at or before its start.

        committed    |--- 1 ---|--- 2 ---|--- 3 ---|
        wanted                      |-4-|               restore 1

    A retry of a `run` (same `run_id`) that has taken `wanted` in already goes nowhere. With `replay` that holds only if the
    run has gone back for it, or this attempt has taken it in. Raises `IntervalError` where `wanted` would leave a gap behind
    the last checkpoint.
    """
    trail = line(checkpoints)
    position = position_of(trail)
    if position is not None and wanted.end <= position and _is_done(wanted, trail, run, replay=replay):
        return Place(is_done=True)
    stands_at = _beginning(checkpoints) if position is None else position
    if stands_at is None or wanted.start == stands_at:
        return Place()
    if wanted.start > stands_at:
        msg = (
            f"interval {wanted} would leave a gap: the job has taken in everything up to {moment_text(stands_at)}"
            f"{_restored_by_hand(trail)}. Run the interval that starts there first."
        )
        raise IntervalError(msg)
    covered = [checkpoint for checkpoint in trail if checkpoint.interval_end is not None]
    if not covered:
        return Place()
    before = (checkpoint for checkpoint in reversed(covered) if (checkpoint.interval_end or 0) <= wanted.start)
    if (target := next(before, None)) is not None:
        return Place(target.checkpoint_id)
    return Place(next(checkpoint for checkpoint in covered if checkpoint.kind is Kind.BATCH).parent_id)


def refusal(wanted: Interval, checkpoints: Sequence[Checkpoint], *, finished_replay: bool) -> IntervalError:
    """Return the error for an interval that goes back without leave."""
    changed = "Nothing but the open replay, which was finished," if finished_replay else "Nothing"
    return IntervalError(
        f"interval {wanted} has been taken in already: the job has taken in everything up to "
        f"{moment_text(position_of(line(checkpoints)))}. {changed} was changed. If its input is the same, there is nothing to do: "
        "mark a cleared Airflow task as success. To take it in again, with all later intervals, which are missing from state "
        "and sinks meanwhile, run it with --replay (in Airflow: a backfill of this interval, or a new DAG run in mode "
        "interval, with the param replay=true)."
    )


def goes_back(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> bool:
    """Tell whether `wanted` begins before what the job has taken in at present."""
    position = position_of(line(checkpoints))
    return position is not None and wanted.start < position


def replay_note(wanted: Interval) -> str:
    """Return the note of the restore that begins a replay: it is how a later run knows what to go on with."""
    return f"interval {wanted} is run again"


def line(checkpoints: Sequence[Checkpoint], at: int | None = None) -> list[Checkpoint]:
    """Return the checkpoints that led to checkpoint `at` (the last one, unless given), oldest first.

    What was restored away is left out.
    """
    by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
    trail: list[Checkpoint] = []
    current = by_id[at] if at is not None else checkpoints[-1] if checkpoints else None
    while current is not None:
        trail.append(current)
        before = current.restored_from if current.kind is Kind.RESTORE else current.parent_id
        current = None if before is None else by_id.get(before)
    return trail[::-1]


def intervals_of(trail: Iterable[Checkpoint]) -> list[tuple[Interval, Checkpoint]]:
    """Return the intervals that micro-batches of a line have taken in, each without what an earlier one had."""
    intervals: list[tuple[Interval, Checkpoint]] = []
    reached: int | None = None
    for checkpoint in trail:
        interval = interval_of(checkpoint)
        if interval is None or (reached is not None and interval.end <= reached):
            continue
        start = interval.start if reached is None else max(interval.start, reached)
        intervals.append((Interval(start, interval.end), checkpoint))
        reached = interval.end
    return intervals


def interval_of(checkpoint: Checkpoint) -> Interval | None:
    """Return the interval of a micro-batch; None for other checkpoints, and for slices without one."""
    start, end = checkpoint.interval_start, checkpoint.interval_end
    if checkpoint.kind is not Kind.BATCH or start is None or end is None:
        return None
    return Interval(start, end)


def position_of(trail: Sequence[Checkpoint]) -> int | None:
    """Return up to where a line has taken in everything (ms); None if no interval was."""
    return next((c.interval_end for c in reversed(trail) if c.interval_end is not None), None)


def moment_text(moment: int | None) -> str:
    """Return a moment (ms) as ISO 8601 in UTC, as short as it can be."""
    if moment is None:
        return "the beginning"
    precision = "minutes" if moment % 60_000 == 0 else "milliseconds"
    text = datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec=precision).replace("+00:00", "Z")
    return text.removesuffix("T00:00Z")


def _is_done(wanted: Interval, trail: Sequence[Checkpoint], run: Run, *, replay: bool) -> bool:
    """Tell whether a run has gone back for an interval, or has taken it in without that."""
    note = replay_note(wanted)
    if any(c.kind is Kind.RESTORE and c.run_id == run.run_id and c.note == note for c in trail):
        return True
    parts = [(part, by) for part, by in intervals_of(trail) if part.start < wanted.end and wanted.start < part.end]
    if not parts or parts[0][0].start > wanted.start:
        return False
    return all(by.attempt_id == run.attempt_id if replay else by.run_id == run.run_id for _, by in parts)


def _restored_by_hand(trail: Sequence[Checkpoint]) -> str:
    """Name the restore behind which nothing was taken in yet, if the line ends in one."""
    for checkpoint in reversed(trail):
        if checkpoint.kind is Kind.RESTORE:
            return f" (checkpoint {checkpoint.checkpoint_id} restored it to checkpoint {checkpoint.restored_from})"
        if checkpoint.kind is Kind.BATCH:
            break
    return ""


def _beginning(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return where the first slice began that was ever taken in: a job restored to before it still has to go on there."""
    starts = (checkpoint.interval_start for checkpoint in checkpoints if checkpoint.kind is Kind.BATCH)
    return min((start for start in starts if start is not None), default=None)
