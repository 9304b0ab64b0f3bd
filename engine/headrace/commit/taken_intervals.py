"""Intervals that a line has taken in: whether they are done, and why they are not.

An interval is done if its input is as recorded, and nobody asked to compute it again. Ids of runs and attempts decide nothing: Airflow gives
the same id to another run, once the first one is deleted.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.input_changes import InputChange
from headrace.commit.interval_order import interval_of, intervals_of, position_of
from headrace.errors import IntervalError
from headrace.names import counted
from headrace.sources.interval import Interval, moment_text


def is_taken_in(wanted: Interval, line: Sequence[Checkpoint]) -> bool:
    """Return whether a line has taken in all of an interval."""
    position, parts = position_of(line), _parts(wanted, line)
    return position is not None and wanted.end <= position and bool(parts) and parts[0][0].start <= wanted.start


def is_computed_again(wanted: Interval, line: Sequence[Checkpoint], asked_at: int) -> bool:
    """Return whether all of a taken-in interval was computed after somebody asked for it again (ms)."""
    return all(by.committed_at >= asked_at for _, by in _parts(wanted, line))


def changes_within(wanted: Interval, line: Sequence[Checkpoint], changes: Sequence[InputChange]) -> list[InputChange]:
    """Return the changes of input that belong to an interval. A file that is gone belongs to the interval that its checkpoint took in."""
    taken_by = {checkpoint.checkpoint_id: interval_of(checkpoint) for checkpoint in line}
    placed = ((change, change.interval or taken_by.get(change.checkpoint_id)) for change in changes)
    return [change for change, interval in placed if interval is None or _meet(wanted, interval)]


def refusal(job: str, wanted: Interval, line: Sequence[Checkpoint], changes: Sequence[InputChange]) -> IntervalError:
    """Return the error for an interval that begins behind the job's position, and is not done: a file has changed, or somebody asked for it."""
    stands_at = position_of(line)
    start, end, reached = (moment_text(moment) for moment in (wanted.start, wanted.end, stands_at))
    if stands_at is not None and wanted.end > stands_at:
        return IntervalError(
            f"interval {wanted} has been taken in in part: the job has taken in everything up to {reached}. Nothing was changed. Run the rest, "
            f"{reached} to {end}; 'headrace backfill {job} --from {start} --to {reached}' computes the first part again, on a branch."
        )
    return IntervalError.of_taken_in(
        f"interval {wanted} has been taken in already: the job has taken in everything up to {reached}. {_why(changes)}Nothing was changed. "
        f"To compute it again, run 'headrace backfill {job} --from {start} --to {end}': it works on a branch, and shows how the result "
        "differs. In Airflow, the DAG of replays does the same.",
        tuple(map(str, changes)),
    )


def _why(changes: Sequence[InputChange]) -> str:
    if not changes:
        return "Its input is the same, but somebody asked for it again: if that was not meant, there is nothing to do. "
    more = f" ({counted(len(changes), 'such file')})" if len(changes) > 1 else ""
    return f"Its input has changed since: {changes[0]}{more}. "


def _parts(wanted: Interval, line: Sequence[Checkpoint]) -> list[tuple[Interval, Checkpoint]]:
    return [(part, by) for part, by in intervals_of(line) if _meet(part, wanted)]


def _meet(one: Interval, other: Interval) -> bool:
    return one.start < other.end and other.start < one.end
