"""Replay: what a branch takes in again: the requested interval, and all input that the job took in after it.

The checkpoints of the job and of the branch have all information about it, so any later run can continue an interrupted one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.errors import ConfigError
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import interval_of, intervals_of, position_of
from headrace.sources.interval import Interval
from headrace.sources.position import SourceFacts, frontiers


@dataclass(frozen=True, slots=True)
class Part:
    """Part of a replay: an interval, or the files that a former checkpoint took in of each source.

    Files if the former checkpoint had no interval, or if sources or partitions meet: then the rows of a micro-batch depended on the rows of
    the other ones, and on idle ones. Of a topic, the recorded offsets count, and not the times of its messages.
    """

    interval: Interval | None = None
    sources: Mapping[str, SourceFacts] | None = None
    requeue: Checkpoint | None = None
    """Former checkpoint that requeued rows and elements. The part requeues them again."""

    def __str__(self) -> str:
        """Return the interval, or the files, as text."""
        if self.requeue is not None:
            return f"what checkpoint {self.requeue.checkpoint_id} requeued from the quarantine"
        if self.interval is not None:
            return str(self.interval)
        files = sorted({*map(_reached, (self.sources or {}).values())} - {""})
        return f"files up to {', '.join(files)}"


@dataclass(frozen=True, slots=True)
class Replay:
    """Replay on a branch: the requested interval, and the remaining parts."""

    requested: Interval
    parts: tuple[Part, ...]

    @property
    def rest(self) -> Replay | None:
        """Return the replay without its first part; None if there is no other."""
        return Replay(self.requested, self.parts[1:]) if self.parts[1:] else None

    @property
    def missing(self) -> str:
        """Return as text the input that the branch lacks until the replay is complete."""
        first, last = self.parts[0], self.parts[-1]
        if first.interval is not None and last.interval is not None:
            return str(Interval(first.interval.start, last.interval.end))
        return str(first) if len(self.parts) == 1 else f"{first} and what follows, up to {last}"


def branch_replay(
    requested: Interval,
    live: Sequence[Checkpoint],
    branch: Sequence[Checkpoint],
    fork_id: int,
    *,
    is_corrected: bool = False,
) -> Replay | None:
    """Return the remaining replay of `requested` and all later input on a branch, cut like the live lineage; None if it is complete.

    `live` and `branch` are the two lineages; the branch forks at checkpoint `fork_id` of the live one. With corrected input, the positions
    that the job has recorded are those of the branch.
    """
    cut = [checkpoint.checkpoint_id for checkpoint in live].index(fork_id) + 1
    kept, behind = live[:cut], live[cut:]
    first = next((interval for interval, _ in intervals_of(behind)), None)
    if first is not None:  # from the fork's position to the end of the next cut, with gaps that had no files then
        position = position_of(kept)
        requested = Interval(min(requested.start, first.start) if position is None else position, first.end)
    parts = _recorded_parts(requested, kept, behind) if is_corrected else _parts(requested, kept, behind)
    return _rest(Replay(requested, tuple(parts)), branch)


def _rest(replay: Replay, lineage: Sequence[Checkpoint]) -> Replay | None:
    """Return the part of a replay that a lineage has not taken in; None if it has all."""
    parts = tuple(_left(replay.parts, lineage))
    return Replay(replay.requested, parts) if parts else None


def _parts(requested: Interval, kept: Sequence[Checkpoint], left_behind: Sequence[Checkpoint]) -> list[Part]:
    """Return the parts of a replay: the requested interval, and the input behind the fork, without gaps."""
    if any(map(_is_merged, left_behind)):
        return _recorded_parts(requested, kept, left_behind)
    parts = [Part(requested)]
    position = position_of(kept)
    first = next((interval.start for interval, _ in intervals_of(left_behind)), requested.start)
    begin = first if position is None else position
    if begin < requested.start:
        parts.insert(0, Part(Interval(begin, requested.start)))
    reached, sources, adjoins = requested.end, _sources(kept), True
    for checkpoint in left_behind:
        interval = interval_of(checkpoint)
        if interval is not None:
            if adjoins and reached < interval.start:
                parts.append(Part(Interval(reached, interval.start)))
            parts.append(Part(interval))
            reached, adjoins = max(reached, interval.end), True
        elif checkpoint.kind is Kind.BATCH and frontiers(checkpoint.sources) != frontiers(sources):
            parts.append(Part(sources=checkpoint.sources))
            adjoins = False
        elif checkpoint.requeues:
            parts.append(Part(requeue=checkpoint))
        sources = {**sources, **checkpoint.sources}
    return parts


def _is_merged(checkpoint: Checkpoint) -> bool:
    """Return whether a micro-batch merged several sources, or the partitions of one, or had corrected input."""
    facts = checkpoint.sources.values()
    return len(facts) > 1 or any(own.partitions or own.corrected is not None for own in facts)


def _reached(facts: SourceFacts) -> str:
    """Return how far a source is read, as text; empty before its first row."""
    if facts.partitions and facts.position is not None:
        return f"offsets {facts.position.reached}"
    return facts.last_name


def _recorded_parts(requested: Interval, kept: Sequence[Checkpoint], left_behind: Sequence[Checkpoint]) -> list[Part]:
    """Return a part for each former micro-batch with input or an interval of its own, and one for the rest of the requested interval."""
    parts: list[Part] = []
    places = frontiers(_sources(kept))
    with_interval = {checkpoint.checkpoint_id for _, checkpoint in intervals_of([*kept, *left_behind])}
    for checkpoint in left_behind:
        is_interval = checkpoint.checkpoint_id in with_interval  # it may be empty
        if is_interval or (checkpoint.kind is Kind.BATCH and frontiers(checkpoint.sources) != places):
            parts.append(Part(interval_of(checkpoint), checkpoint.sources))
        elif checkpoint.requeues:
            parts.append(Part(requeue=checkpoint))
        places = frontiers(checkpoint.sources)
    reached = position_of([*kept, *left_behind])
    if reached is not None and reached < requested.end:
        parts.append(Part(Interval(reached, requested.end)))
    return parts


def _left(parts: Iterable[Part], lineage: Sequence[Checkpoint]) -> Iterator[Part]:
    """Yield the parts that a lineage has not taken yet, without the parts of earlier parts."""
    reached, own = position_of(lineage), _sources(lineage)
    repeated = {checkpoint.repeats for checkpoint in lineage}
    for part in parts:
        if part.requeue is not None:
            if part.requeue.checkpoint_id not in repeated:
                yield part
            continue
        if part.sources is not None:
            ends_ahead = part.interval is not None and (reached is None or part.interval.end > reached)
            if ends_ahead or any(facts.is_ahead_of(own.get(name)) for name, facts in part.sources.items()):
                yield part
            continue
        assert part.interval is not None  # noqa: S101 - a part has one of them
        start = part.interval.start if reached is None else max(part.interval.start, reached)
        if start < part.interval.end:
            yield Part(Interval(start, part.interval.end))
            reached = part.interval.end


def _sources(lineage: Sequence[Checkpoint]) -> Mapping[str, SourceFacts]:
    """Return the facts of sources at a lineage's last checkpoint."""
    return lineage[-1].sources if lineage else {}


def fork_of(job: str, lineage: Sequence[Checkpoint]) -> int:
    """Return the live checkpoint that a branch begins at. Raises `ConfigError` if the lineage is not a branch's."""
    for checkpoint in lineage:
        if checkpoint.kind is Kind.FORK and checkpoint.restored_from is not None:
            return checkpoint.restored_from
    msg = f"a run of mode backfill needs a branch of job '{job}': 'headrace backfill' makes one. Nothing was run."
    raise ConfigError(msg)
