"""Order of intervals: decide where an interval belongs, for any order in which a scheduler starts runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from headrace.errors import IntervalError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.sources.interval import Interval, moment_text
from headrace.sources.position import NO_FACTS
from headrace.sources.source import TakenIn


@dataclass(frozen=True, slots=True)
class IntervalPlace:
    """Place of an interval: after the last checkpoint, or after an earlier one: a branch that forks there can take it in again."""

    restore_to: int | None = None


def place_of(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> IntervalPlace:
    """Find where `wanted` belongs in the line of checkpoints that leads to the last one.

    Either the interval continues that line; or it begins earlier: then `restore_to` is the last checkpoint at or before its start.

        committed    |--- 1 ---|--- 2 ---|--- 3 ---|
        wanted                      |-4-|               restore 1

    Raises `IntervalError` when `wanted` would leave a gap after the last checkpoint.
    """
    trail = Lineage(checkpoints).line
    position = position_of(trail)
    stands_at = _beginning(checkpoints) if position is None else position
    if stands_at is None or wanted.start == stands_at:
        return IntervalPlace()
    if wanted.start > stands_at:
        msg = (
            f"interval {wanted} would leave a gap: the job has taken in everything up to {moment_text(stands_at)}"
            f"{_restored_by_hand(trail)}. Nothing was taken in. Run the interval that starts there first (--interval-start "
            f"{moment_text(stands_at)})."
        )
        raise IntervalError(msg)
    covered = [checkpoint for checkpoint in trail if checkpoint.interval_end is not None]
    if not covered:
        return IntervalPlace()
    # Checkpoints that a promotion brought have no state to restore: use the fork of that branch, or a checkpoint before it.
    before = (
        checkpoint
        for checkpoint in reversed(covered)
        if checkpoint.has_state and (checkpoint.interval_end or 0) <= wanted.start
    )
    if (target := next(before, None)) is not None:
        return IntervalPlace(target.checkpoint_id)
    return IntervalPlace(next(checkpoint for checkpoint in covered if checkpoint.kind is Kind.BATCH).parent_id)


def intervals_of(trail: Iterable[Checkpoint]) -> list[tuple[Interval, Checkpoint]]:
    """Return the intervals that micro-batches of a line took in, each without the parts of earlier ones."""
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
    """Return the interval of a micro-batch; None for other checkpoints, and for micro-batches without an interval."""
    return checkpoint.interval if checkpoint.kind is Kind.BATCH else None


def taken_in(trail: Sequence[Checkpoint], source: str) -> TakenIn:
    """Return the files of a source that the checkpoints of a line took in together."""
    recorded = [checkpoint.sources[source].taken for checkpoint in trail if source in checkpoint.sources]
    names = frozenset(file.name for files in recorded for file in files) if recorded else None
    intervals = tuple(interval for interval, _ in intervals_of(trail))
    return TakenIn(names, intervals, tuple(_last_files(trail, source)))


def _last_files(trail: Sequence[Checkpoint], source: str) -> Iterator[tuple[int, str]]:
    for checkpoint in trail:
        if checkpoint.has_state:
            yield checkpoint.checkpoint_id, checkpoint.sources.get(source, NO_FACTS).last


def position_of(trail: Sequence[Checkpoint]) -> int | None:
    """Return the end of the input that a line has taken in without gaps (ms); None without intervals."""
    return next((c.interval_end for c in reversed(trail) if c.interval_end is not None), None)


def _restored_by_hand(trail: Sequence[Checkpoint]) -> str:
    """Return a clause on the restore after which no micro-batch ran yet; empty if there is none."""
    for checkpoint in reversed(trail):
        if checkpoint.kind is Kind.RESTORE:
            return f" (checkpoint {checkpoint.checkpoint_id} restored it to checkpoint {checkpoint.restored_from})"
        if checkpoint.kind is Kind.BATCH:
            break
    return ""


def _beginning(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return the start of the first interval ever taken in. A job that was restored to before it still continues there."""
    starts = (checkpoint.interval_start for checkpoint in checkpoints if checkpoint.kind is Kind.BATCH)
    return min((start for start in starts if start is not None), default=None)
