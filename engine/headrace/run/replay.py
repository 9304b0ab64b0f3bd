"""Replay: what a branch takes in again: the requested interval, and all input that the job took in after it.

The checkpoints of the job and of the branch have all information about it, so any later run can continue an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import interval_of, intervals_of, position_of
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts, frontiers


@dataclass(frozen=True, slots=True)
class Step:
    """Part of a replay: an interval, or the files that a former checkpoint took in of each source.

    Files if the former checkpoint had no interval, or if sources meet: then the rows of a micro-batch depended on the rows of the
    other sources, and on idle sources.
    """

    interval: Interval | None = None
    sources: Mapping[str, SourceFacts] | None = None
    requeue: Checkpoint | None = None
    """Former checkpoint that requeued rows and elements. The step requeues them again."""

    def __str__(self) -> str:
        """Return the interval, or the files, as text."""
        if self.requeue is not None:
            return f"what checkpoint {self.requeue.checkpoint_id} requeued from the quarantine"
        if self.interval is not None:
            return str(self.interval)
        files = sorted({facts.last for facts in (self.sources or {}).values() if facts.last})
        return f"files up to {', '.join(files)}"


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay on a branch: the requested interval, and the remaining steps."""

    asked: Interval
    steps: tuple[Step, ...]

    @property
    def missing(self) -> str:
        """Return as text the input that the branch lacks until the replay is complete."""
        first, last = self.steps[0], self.steps[-1]
        if first.interval is not None and last.interval is not None:
            return str(Interval(first.interval.start, last.interval.end))
        return str(first) if len(self.steps) == 1 else f"{first} and what follows, up to {last}"


def branch_replay(
    asked: Interval, live: Sequence[Checkpoint], branch: Sequence[Checkpoint], fork_id: int
) -> Replay | None:
    """Return the remaining replay of `asked` and all later input on a branch, cut like the live line; None if it is complete.

    `live` and `branch` are the two lines; the branch forks at checkpoint `fork_id` of the live one.
    """
    cut = [checkpoint.checkpoint_id for checkpoint in live].index(fork_id) + 1
    kept, behind = live[:cut], live[cut:]
    first = next((interval for interval, _ in intervals_of(behind)), None)
    if first is not None:  # from the fork's position to the end of the next cut, with gaps that had no files then
        position = position_of(kept)
        asked = Interval(min(asked.start, first.start) if position is None else position, first.end)
    return _rest(Replay(asked, tuple(_steps(asked, kept, behind))), branch)


def _rest(replay: Replay, trail: Sequence[Checkpoint]) -> Replay | None:
    """Return the part of a replay that a line has not taken in; None if it has all."""
    steps = tuple(_left(replay.steps, trail))
    return Replay(replay.asked, steps) if steps else None


def _steps(asked: Interval, kept: Sequence[Checkpoint], left_behind: Sequence[Checkpoint]) -> list[Step]:
    """Return the steps of a replay: the requested interval, and the input behind the fork, without gaps."""
    if any(len(checkpoint.sources) > 1 for checkpoint in left_behind):
        return _recorded_steps(asked, kept, left_behind)
    steps = [Step(asked)]
    position = position_of(kept)
    first = next((interval.start for interval, _ in intervals_of(left_behind)), asked.start)
    begin = first if position is None else position
    if begin < asked.start:
        steps.insert(0, Step(Interval(begin, asked.start)))
    reached, sources, adjoins = asked.end, _sources(kept), True
    for checkpoint in left_behind:
        interval = interval_of(checkpoint)
        if interval is not None:
            if adjoins and reached < interval.start:
                steps.append(Step(Interval(reached, interval.start)))
            steps.append(Step(interval))
            reached, adjoins = max(reached, interval.end), True
        elif checkpoint.kind is Kind.BATCH and frontiers(checkpoint.sources) != frontiers(sources):
            steps.append(Step(sources=checkpoint.sources))
            adjoins = False
        elif checkpoint.requeues:
            steps.append(Step(requeue=checkpoint))
        sources = {**sources, **checkpoint.sources}
    return steps


def _recorded_steps(asked: Interval, kept: Sequence[Checkpoint], left_behind: Sequence[Checkpoint]) -> list[Step]:
    """Return a step for each former micro-batch with input, and one for the rest of the requested interval."""
    steps: list[Step] = []
    places = frontiers(_sources(kept))
    for checkpoint in left_behind:
        if checkpoint.kind is Kind.BATCH and frontiers(checkpoint.sources) != places:
            steps.append(Step(interval_of(checkpoint), checkpoint.sources))
        elif checkpoint.requeues:
            steps.append(Step(requeue=checkpoint))
        places = frontiers(checkpoint.sources)
    reached = position_of([*kept, *left_behind])
    if reached is not None and reached < asked.end:
        steps.append(Step(Interval(reached, asked.end)))
    return steps


def _left(steps: Iterable[Step], trail: Sequence[Checkpoint]) -> Iterator[Step]:
    """Yield the steps that a line has not taken yet, without the parts of earlier steps."""
    reached, own = position_of(trail), _sources(trail)
    repeated = {checkpoint.repeats for checkpoint in trail}
    for step in steps:
        if step.requeue is not None:
            if step.requeue.checkpoint_id not in repeated:
                yield step
            continue
        if step.sources is not None:
            if any(facts.is_ahead_of(own.get(name)) for name, facts in step.sources.items()):
                yield step
            continue
        assert step.interval is not None  # noqa: S101 - a step has one of them
        start = step.interval.start if reached is None else max(step.interval.start, reached)
        if start < step.interval.end:
            yield Step(Interval(start, step.interval.end))
            reached = step.interval.end


def _sources(trail: Sequence[Checkpoint]) -> Mapping[str, SourceFacts]:
    """Return the facts of sources at a line's last checkpoint."""
    return trail[-1].sources if trail else {}
