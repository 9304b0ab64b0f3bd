"""What a replay takes in again: the interval that was asked for, and all that the job had taken in behind it.

It is read from the checkpoints alone, so any later run can go on with a replay that broke off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.commit.interval_order import interval_of, intervals_of, position_of
from headrace.commit.lineage import Lineage
from headrace.commit.requeue import again_note
from headrace.sources.interval import Interval, moment_text
from headrace.sources.offset import SourceOffset

_NOTE = re.compile(r"interval (\S+) to (\S+) is run again")
"""What `replay_note` writes."""


@dataclass(frozen=True, slots=True)
class Step:
    """A part of a replay: an interval, or what a former checkpoint took in of each source.

    The latter where the former checkpoint had no interval, and where sources meet: which rows a micro-batch took depended on
    what there was of the others, and on which source was idle.
    """

    interval: Interval | None = None
    offsets: Mapping[str, SourceOffset] | None = None
    requeue: Checkpoint | None = None
    """The former checkpoint that took rows of sources out of the quarantine: they leave it again."""

    def __str__(self) -> str:
        """Name the interval, or the files."""
        if self.requeue is not None:
            return f"what checkpoint {self.requeue.checkpoint_id} requeued from the quarantine"
        if self.interval is not None:
            return str(self.interval)
        files = sorted({offset.last_file for offset in (self.offsets or {}).values() if offset.last_file is not None})
        return f"files up to {', '.join(files)}"


@dataclass(frozen=True, slots=True)
class Replay:
    """A replay that is not through: the interval that was asked for, who asked, and the steps that are left."""

    asked: Interval
    run_id: str
    steps: tuple[Step, ...]

    @property
    def missing(self) -> str:
        """Say what state and sinks lack until the replay is through."""
        first, last = self.steps[0], self.steps[-1]
        if first.interval is not None and last.interval is not None:
            return str(Interval(first.interval.start, last.interval.end))
        return str(first) if len(self.steps) == 1 else f"{first} and what follows, up to {last}"


def open_replay(checkpoints: Sequence[Checkpoint]) -> Replay | None:
    """Return the replay that the last restore began and nobody has finished; None if there is none.

    It takes in the interval that was asked for, and all that the restore took out of the line: an interval for each former
    checkpoint. A restore by hand is no replay, and ends one. A reconciliation of job and sinks that goes back to what the replay
    has made ends none.

        committed    |--- 1 ---|--- 2 ---|--- 3 ---|
        asked                       |---|               restore 1; steps: 2 up to it, it, the rest of 3
    """
    replay: Replay | None = None
    begun_by: Checkpoint | None = None
    for position, restore in enumerate(checkpoints):
        if restore.kind is Kind.RESTORE and not _goes_on(restore, checkpoints, begun_by):
            replay, begun_by = _begun(restore, checkpoints[:position], replay), restore
    return None if replay is None else _rest(replay, Lineage(checkpoints).line)


def branch_replay(
    asked: Interval, run_id: str, live: Sequence[Checkpoint], branch: Sequence[Checkpoint], fork_id: int
) -> Replay | None:
    """Return what a branch has left of a replay of `asked` and of all that came later, cut as the live line did; None if nothing.

    `live` and `branch` are the lines of both; the branch forks behind checkpoint `fork_id` of the live one.
    """
    cut = [checkpoint.checkpoint_id for checkpoint in live].index(fork_id) + 1
    kept, behind = live[:cut], live[cut:]
    first = next((interval for interval, _ in intervals_of(behind)), None)
    if (
        first is not None
    ):  # from where the fork stands to the end of the first cut behind it, with gaps that had no files then
        position = position_of(kept)
        asked = Interval(min(asked.start, first.start) if position is None else position, first.end)
    return _rest(Replay(asked, run_id, tuple(_steps(asked, kept, behind))), branch)


def outage(wanted: Interval, checkpoints: Sequence[Checkpoint], target: int, sinks: Iterable[str]) -> str:
    """Say what a replay takes out of state and sinks, and when it is back."""
    kept = Lineage(checkpoints, target).line
    gone = Lineage(checkpoints).line[len(kept) :]
    rows = sum(checkpoint.metrics.get("rows_in", 0) for checkpoint in gone)
    ids = f"{gone[0].checkpoint_id} to {gone[-1].checkpoint_id}" if len(gone) > 1 else str(gone[0].checkpoint_id)
    end = max(wanted.end, position_of(gone) or wanted.end)
    intervals = [interval for interval, _ in intervals_of(gone)]
    span = f"{Interval(intervals[0].start, intervals[-1].end)}, " if intervals else ""
    back = [
        f"{sink} to {_last_published(sink, kept)}"
        for sink in sorted(sinks)
        if any(checkpoint.outputs.get(sink) for checkpoint in gone)
    ]
    return (
        f"interval {wanted} is run again, with all later ones: checkpoints {ids} ({span}{rows:,} rows in) leave state and sinks "
        f"until they are taken in again. Sinks go back: {', '.join(back) or 'none'}. All is whole again when this run, or a "
        f"later one that goes on with it, has come to {moment_text(end)}."
    )


def _goes_on(restore: Checkpoint, checkpoints: Sequence[Checkpoint], begun_by: Checkpoint | None) -> bool:
    """Return whether a restore is a reconciliation that leaves the job within the replay that `begun_by` began."""
    line = Lineage(checkpoints, restore.checkpoint_id)
    return _asked_in(restore.note) is None and line.begins_incarnation(restore) and begun_by in line.line


def _begun(restore: Checkpoint, earlier: Sequence[Checkpoint], outer: Replay | None) -> Replay | None:
    """Return the replay that a restore begins, if it is none by hand; it goes on with what is left of an `outer` one that it breaks off."""
    asked = _asked_in(restore.note)
    former = Lineage(earlier).line
    ids = [checkpoint.checkpoint_id for checkpoint in former]
    if asked is None or restore.restored_from not in ids:
        return None
    cut = ids.index(restore.restored_from) + 1
    rest = None if outer is None else _rest(outer, former)
    return Replay(asked, restore.run_id, (*_steps(asked, former[:cut], former[cut:]), *(rest.steps if rest else ())))


def _rest(replay: Replay, trail: Sequence[Checkpoint]) -> Replay | None:
    """Return what a line has left of a replay; None if that is nothing."""
    steps = tuple(_left(replay.steps, trail))
    return Replay(replay.asked, replay.run_id, steps) if steps else None


def _steps(asked: Interval, kept: Sequence[Checkpoint], gone: Sequence[Checkpoint]) -> list[Step]:
    """Return the steps of a replay: the interval asked for, and what the restore took out. Intervals leave no gap between them."""
    if any(len(checkpoint.offsets) > 1 for checkpoint in gone):
        return _recorded_steps(asked, kept, gone)
    steps = [Step(asked)]
    position = position_of(kept)
    first = next((interval.start for interval, _ in intervals_of(gone)), asked.start)
    begin = first if position is None else position
    if begin < asked.start:
        steps.insert(0, Step(Interval(begin, asked.start)))
    reached, offsets, adjoins = asked.end, _offsets(kept), True
    for checkpoint in gone:
        interval = interval_of(checkpoint)
        if interval is not None:
            if adjoins and reached < interval.start:
                steps.append(Step(Interval(reached, interval.start)))
            steps.append(Step(interval))
            reached, adjoins = max(reached, interval.end), True
        elif checkpoint.kind is Kind.BATCH and read_positions(checkpoint.offsets) != read_positions(offsets):
            steps.append(Step(offsets=checkpoint.offsets))
            adjoins = False
        elif _requeues_rows(checkpoint):
            steps.append(Step(requeue=checkpoint))
        offsets = {**offsets, **checkpoint.offsets}
    return steps


def _recorded_steps(asked: Interval, kept: Sequence[Checkpoint], gone: Sequence[Checkpoint]) -> list[Step]:
    """Return a step for each former micro-batch that took something in, and what is asked for behind the last one."""
    steps: list[Step] = []
    places = read_positions(_offsets(kept))
    for checkpoint in gone:
        if checkpoint.kind is Kind.BATCH and read_positions(checkpoint.offsets) != places:
            steps.append(Step(interval_of(checkpoint), checkpoint.offsets))
        elif _requeues_rows(checkpoint):
            steps.append(Step(requeue=checkpoint))
        places = read_positions(checkpoint.offsets)
    reached = position_of([*kept, *gone])
    if reached is not None and reached < asked.end:
        steps.append(Step(Interval(reached, asked.end)))
    return steps


def _left(steps: Iterable[Step], trail: Sequence[Checkpoint]) -> Iterator[Step]:
    """Yield the steps that a line has not taken yet, without what an earlier step takes."""
    reached, places = position_of(trail), read_positions(_offsets(trail))
    notes = {checkpoint.note for checkpoint in trail if checkpoint.kind is Kind.REQUEUE}
    for step in steps:
        if step.requeue is not None:
            if again_note(step.requeue.checkpoint_id) not in notes:
                yield step
            continue
        if step.offsets is not None:
            if any(place > places.get(name, NOTHING_READ) for name, place in read_positions(step.offsets).items()):
                yield step
            continue
        assert step.interval is not None  # noqa: S101 - a step has one of them
        start = step.interval.start if reached is None else max(step.interval.start, reached)
        if start < step.interval.end:
            yield Step(Interval(start, step.interval.end))
            reached = step.interval.end


def _requeues_rows(checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint took rows of sources out of the quarantine."""
    return checkpoint.kind is Kind.REQUEUE and any(offset.requeued for offset in checkpoint.offsets.values())


def _asked_in(note: str | None) -> Interval | None:
    """Return the interval that a restore's note names; None unless it is the note of a replay."""
    match = _NOTE.fullmatch(note or "")
    return None if match is None else Interval.named(*match.groups())


def _last_published(sink: str, kept: Sequence[Checkpoint]) -> str:
    ids = [checkpoint.checkpoint_id for checkpoint in kept if checkpoint.outputs.get(sink)]
    return f"checkpoint {ids[-1]}" if ids else "its beginning"


_ReadPosition = tuple[str, float]
NOTHING_READ: _ReadPosition = ("", 0)


def _offsets(trail: Sequence[Checkpoint]) -> Mapping[str, SourceOffset]:
    """Return how far a line has read."""
    return trail[-1].offsets if trail else {}


def read_positions(offsets: Mapping[str, SourceOffset]) -> dict[str, _ReadPosition]:
    """Return by source the first file that was not taken in as a whole, and the rows taken of it; or the last one that was."""
    return {
        name: (offset.unread[0], offset.rows_taken) if offset.unread else (offset.last_file or "", math.inf)
        for name, offset in offsets.items()
        if offset.last_file is not None
    }
