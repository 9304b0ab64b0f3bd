"""Order of intervals: decide where an interval belongs, for any order in which a scheduler starts runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.errors import IntervalError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.lineage import Lineage
from headrace.sources.interval import Interval, timestamp_text
from headrace.sources.position import NO_FACTS, LateFile, TablePosition, TakenFile, digest
from headrace.sources.source import TakenIn


@dataclass(frozen=True, slots=True)
class IntervalPlace:
    """Place of an interval: after the last checkpoint, or after an earlier one: a branch that forks there can take it in again."""

    restore_to: int | None = None


def place_of(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> IntervalPlace:
    """Find where `wanted` belongs in the lineage that leads to the last one.

    Either the interval continues that lineage; or it begins earlier: then `restore_to` is the last checkpoint at or before its start.

        committed    |--- 1 ---|--- 2 ---|--- 3 ---|
        wanted                      |-4-|               restore 1

    Raises `IntervalError` when `wanted` would leave a gap after the last checkpoint.
    """
    lineage = Lineage(checkpoints).checkpoints
    stands_at = _stands_at(checkpoints, lineage)
    if stands_at is None or wanted.start == stands_at:
        return IntervalPlace()
    if wanted.start > stands_at:
        msg = (
            f"interval {wanted} would leave a gap: the job has taken in everything up to {timestamp_text(stands_at)}"
            f"{_restored_by_hand(lineage)}. Nothing was taken in. Run the interval that starts there first (--interval-start "
            f"{timestamp_text(stands_at)}). Or let the run take in all that is missing first: --fill, or run.gaps: fill in the job's file."
        )
        raise IntervalError.of_gap(msg)
    covered = [checkpoint for checkpoint in lineage if checkpoint.interval_end is not None]
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


def gap_before(wanted: Interval, checkpoints: Sequence[Checkpoint]) -> Interval | None:
    """Return what `wanted` would leave out behind the last checkpoint; None if nothing."""
    stands_at = _stands_at(checkpoints, Lineage(checkpoints).checkpoints)
    return None if stands_at is None or stands_at >= wanted.start else Interval(stands_at, wanted.start)


def _stands_at(checkpoints: Sequence[Checkpoint], lineage: Sequence[Checkpoint]) -> int | None:
    """Return the time from which the next interval must begin (ms); None: anywhere."""
    position = position_of(lineage)
    return _beginning(checkpoints) if position is None else position


def intervals_of(lineage: Iterable[Checkpoint]) -> list[tuple[Interval, Checkpoint]]:
    """Return the intervals that micro-batches of a lineage took in, each without the parts of earlier ones."""
    intervals: list[tuple[Interval, Checkpoint]] = []
    reached: int | None = None
    for checkpoint in lineage:
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


def taken_in(lineage: Sequence[Checkpoint], source: str) -> TakenIn:
    """Return the files of a source that the checkpoints of a lineage took in together."""
    times = commit_times_of(lineage, source)
    recorded = [checkpoint.sources[source].taken for checkpoint in lineage if source in checkpoint.sources]
    names = frozenset(file.name for files in recorded for file in files) if recorded else None
    intervals = tuple(interval for interval, _ in intervals_of(lineage))
    facts = [(c.checkpoint_id, c.sources.get(source, NO_FACTS)) for c in lineage if c.has_state]
    return TakenIn(
        names,
        intervals,
        beginning=beginning_of(lineage, source) or 0,
        lasts=tuple((number, own.last) for number, own in facts),
        versions=tuple((number, own.begun_version) for number, own in facts),
        late=late_files(lineage, source),
        facts=next((own for checkpoint in reversed(lineage) if (own := checkpoint.sources.get(source))), NO_FACTS),
        commit_times=times,
        dated=frozenset(times),
        began=lineage[0].committed_at if lineage else 0,
    )


def beginning_of(lineage: Sequence[Checkpoint], source: str) -> int | None:
    """Return the start of the first interval of a lineage (ms); the beginning of time if it had read the source's table before. None without one."""
    for checkpoint in lineage:
        if (interval := interval_of(checkpoint)) is not None:
            return interval.start
        if checkpoint.sources.get(source, NO_FACTS).position_as(TablePosition) is not None:
            return 0 if any(map(interval_of, lineage)) else None
    return None


def late_files(lineage: Sequence[Checkpoint], source: str) -> tuple[LateFile, ...]:
    """Return the files of a source that the micro-batches of a lineage passed over, in order, without those acknowledged since."""
    known = {file.name for checkpoint in lineage for file in checkpoint.sources.get(source, NO_FACTS).taken}
    late = {file.name: file for checkpoint in lineage for file in checkpoint.sources.get(source, NO_FACTS).late}
    return tuple(file for name, file in late.items() if digest(name) not in known)


def acknowledged_since_fork(job: Sequence[Checkpoint], branch: Sequence[Checkpoint], source: str) -> list[TakenFile]:
    """Return the records that a job's acknowledgements since the fork made of a source's files, as far as they count on the branch and it lacks them.

    They count for files that were taken in before the fork, and for files that the job never took in: it leaves them out. The branch reads all others
    again, as they are now. `job` and `branch` are the two lineages.
    """
    fork = next((checkpoint for checkpoint in branch if checkpoint.kind is Kind.FORK), None)
    if fork is None or all(checkpoint.checkpoint_id != fork.restored_from for checkpoint in job):
        return []
    since = [checkpoint for checkpoint in job if checkpoint.checkpoint_id > (fork.restored_from or 0)]
    acknowledged = _records_of((c for c in since if c.kind is Kind.ACKNOWLEDGEMENT), source)
    taken = _records_of((c for c in since if c.kind is not Kind.ACKNOWLEDGEMENT), source)
    kept, own = _records_of(branch[: branch.index(fork)], source), _records_of(branch, source)
    return [
        record
        for name, record in acknowledged.items()
        if (name in kept or name not in taken) and own.get(name) != record
    ]


def _records_of(checkpoints: Iterable[Checkpoint], source: str) -> dict[str, TakenFile]:
    return {file.name: file for checkpoint in checkpoints for file in checkpoint.sources.get(source, NO_FACTS).taken}


def commit_times_of(checkpoints: Iterable[Checkpoint], source: str) -> dict[int, int]:
    """Return the commit times of a table that checkpoints have recorded, on one lineage or several, by version."""
    recorded = (checkpoint.sources.get(source, NO_FACTS).commit_times for checkpoint in checkpoints)
    return {version: time for times in recorded for version, time in times}


def generations_of(checkpoints: Iterable[Checkpoint], source: str) -> dict[str, int]:
    """Return the generations of a source's files that checkpoints have recorded, on one lineage or several, by the digests of names.

    A file that was missed, and has come back, has the later one of its generations.
    """
    known: dict[str, int] = {}
    for checkpoint in checkpoints:
        if (seen := checkpoint.sources.get(source, NO_FACTS).seen) is not None:
            known.update({name: max(seen.number, known.get(name, 0)) for name in seen.names})
    return known


def position_of(lineage: Sequence[Checkpoint]) -> int | None:
    """Return the end of the input that a lineage has taken in without gaps (ms); None without intervals."""
    return next((c.interval_end for c in reversed(lineage) if c.interval_end is not None), None)


def _restored_by_hand(lineage: Sequence[Checkpoint]) -> str:
    """Return a clause on the restore after which no micro-batch ran yet; empty if there is none."""
    for checkpoint in reversed(lineage):
        if checkpoint.kind is Kind.RESTORE:
            return f" (checkpoint {checkpoint.checkpoint_id} restored it to checkpoint {checkpoint.restored_from})"
        if checkpoint.kind is Kind.BATCH:
            break
    return ""


def _beginning(checkpoints: Sequence[Checkpoint]) -> int | None:
    """Return the start of the first interval ever taken in. A job that was restored to before it still continues there."""
    starts = (checkpoint.interval_start for checkpoint in checkpoints if checkpoint.kind is Kind.BATCH)
    return min((start for start in starts if start is not None), default=None)
