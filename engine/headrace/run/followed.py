"""Followed lineage: a branch makes the same micro-batches as its job, at the times that the job has recorded.

A branch that takes in input of its job cuts it at the same places, and its clock shows the job's times. So entries expire, and timers
fire, as they did on the job. After the job's last checkpoint a branch uses the wall clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping
from itertools import pairwise

from headrace import clock
from headrace.commit.protocol import OpenJob
from headrace.config import JobConfig
from headrace.edits.fork import log_of
from headrace.log.checkpoint import Checkpoint, Kind
from headrace.log.intervals import interval_of
from headrace.log.log import CheckpointLog
from headrace.sources.interval import Interval
from headrace.sources.position import NO_FACTS, SourceFacts, frontiers, stored_name

_CORRECTION = 1000


class FollowedLineage:
    """Micro-batches of the job that its branch has not followed yet. A job itself follows nothing."""

    def __init__(self, config: JobConfig, job: OpenJob, sources: Collection[str]) -> None:
        """Read the job's log. `job` is the opened branch. A branch with other `sources` than the job follows nothing."""
        self._job = job
        self.live = None if config.branch is None else log_of(config.itself)
        """Log of the job, as of construction or of the last refresh; None if the job itself is run."""
        self._is_branch = self.live is not None
        self._is_corrected = bool(config.replay.sources)
        ahead = [] if self.live is None else [*_ahead(self.live, job)]
        known = {name for _, batch in ahead for name in batch.sources}
        # A source of the job that never had a file has no facts.
        has_same = known == {*sources} or (known < {*sources} and "pipeline" not in config.settings)
        self._ahead = deque(ahead if has_same else ())
        self._requeues = deque([] if self.live is None else _requeues(self.live, job))

    def next(self) -> Checkpoint | None:
        """Return the job's next micro-batch; None if the branch has followed all."""
        while self._ahead and not self._comes_next(*self._ahead[0]):
            self._ahead.popleft()
        return self._ahead[0][1] if self._ahead else None

    def next_requeue(self) -> Checkpoint | None:
        """Return the job's next requeue that the branch has to repeat; None before the branch has read as far as the job had then.

        A branch that has read a topic further than the job repeats none: it has landed files of its own, with other rows.
        """
        while self._requeues and self._requeues[0].checkpoint_id in self._repeated():
            self._requeues.popleft()
        if not self._requeues:
            return None
        requeue, batch = self._requeues[0], self.next()
        comes_first = batch is None or requeue.checkpoint_id < batch.checkpoint_id
        is_there = _is_at(self._job.last, requeue) and _has_read(self._job.last, requeue)
        return requeue if comes_first and is_there else None

    def pass_over(self) -> None:
        """Skip the next micro-batch: the branch has no input for it."""
        self._ahead.popleft()

    def takes_input(self) -> bool:
        """Return whether the next micro-batch took in input, or an empty interval. Others ran for timers, waiting elements or held records."""
        before, batch = self._ahead[0]
        return interval_of(batch) is not None or frontiers(before.sources) != frontiers(batch.sources)

    def of_interval(self, interval: Interval) -> Checkpoint | None:
        """Return the first micro-batch of the job that took in all of an interval; None if there is none."""
        if self.next() is None:
            return None
        ends = ((batch, interval_of(batch)) for _, batch in self._ahead)
        return next((batch for batch, taken in ends if taken is not None and taken.end >= interval.end), None)

    def later(self, followed: Checkpoint | None) -> list[Mapping[str, SourceFacts]]:
        """Return the facts of sources after a micro-batch of the job that the branch follows, and after each later one; none without one."""
        return [
            batch.sources
            for _, batch in self._ahead
            if followed is not None and batch.checkpoint_id >= followed.checkpoint_id
        ]

    def now(self) -> int:
        """Return the time of the lineage (ms). It never goes back, and stands still while a branch makes a micro-batch that its job did not make."""
        if self._is_branch and self.next() is not None:
            return self._reached()
        return max(clock.now(), self._reached())

    def clock_behind(self) -> int:
        """Return how long the clock is behind the job's last micro-batch (ms); 0 on a branch, which may follow at any time.

        Less than a second counts as 0: clocks are corrected by so much at any time.
        """
        behind = self._reached() - clock.now()
        return 0 if self._is_branch or behind < _CORRECTION else behind

    def began(self, followed: Checkpoint) -> int:
        """Return the begin (ms) of the micro-batch that follows one of the job; never before the begin of an earlier one."""
        recorded = followed.committed_at if followed.processing_time is None else followed.processing_time
        return max(recorded, self._reached())

    def ended(self, followed: Checkpoint | None) -> int | None:
        """Return the end (ms) of the micro-batch by the clock of the lineage; None: the time of its commit."""
        if followed is not None:
            return max(followed.lineage_time, self._reached())
        return self._reached() if self._is_branch and self.next() is not None else None

    def _repeated(self) -> set[int | None]:
        return {checkpoint.repeats for checkpoint in self._job.lineage.checkpoints}

    def _reached(self) -> int:
        last = self._job.lineage.last_of(Kind.BATCH)
        return 0 if last is None else last.lineage_time

    def _comes_next(self, before: Checkpoint, batch: Checkpoint) -> bool:
        if not self._is_corrected and not _is_at(self._job.last, before):
            return False  # the branch has read topics beyond the job's last checkpoint: files and ranges are its own
        own = self._job.last.sources
        if frontiers(before.sources) == frontiers(batch.sources):
            is_there = frontiers(own) == frontiers(before.sources)
            return is_there and batch.checkpoint_id > _followed(self._job)
        return any(facts.is_ahead_of(own.get(name)) for name, facts in batch.sources.items())


def _has_read(own: Checkpoint, other: Checkpoint) -> bool:
    """Return whether a branch has read each source at least as far as its job had at a checkpoint."""
    return not any(facts.is_ahead_of(own.sources.get(name)) for name, facts in other.sources.items())


def _is_at(own: Checkpoint, before: Checkpoint) -> bool:
    """Return whether a branch has read as much of each topic as its job had at a checkpoint."""
    return all(
        _topic_place(own.sources.get(name, NO_FACTS)) == _topic_place(facts) for name, facts in before.sources.items()
    )


def _topic_place(facts: SourceFacts) -> list[tuple[int, int, list[str], int]]:
    return [
        (number, partition.next, [*map(stored_name, partition.begun)], partition.rows)
        for number, partition in facts.partitions.items()
    ]


def _ahead(live: CheckpointLog, branch: OpenJob) -> Iterator[tuple[Checkpoint, Checkpoint]]:
    """Yield the micro-batches of the job after the fork, each with the checkpoint before it; none if a restore left the fork behind."""
    pairs = pairwise(_since_fork(live, branch))
    yield from ((before, checkpoint) for before, checkpoint in pairs if checkpoint.kind is Kind.BATCH)


def _requeues(live: CheckpointLog, branch: OpenJob) -> Iterator[Checkpoint]:
    """Yield the requeues of the job after the fork; none if a restore left the fork behind."""
    yield from (checkpoint for checkpoint in _since_fork(live, branch)[1:] if checkpoint.requeues)


def _since_fork(live: CheckpointLog, branch: OpenJob) -> list[Checkpoint]:
    """Return the job's lineage from the fork on; nothing if a restore left the fork behind."""
    fork, lineage = _fork_of(branch), live.lineage.checkpoints
    is_there = fork in {checkpoint.checkpoint_id for checkpoint in lineage}
    return [checkpoint for checkpoint in lineage if is_there and checkpoint.checkpoint_id >= fork]


def _followed(branch: OpenJob) -> int:
    """Return the last checkpoint of the job that the branch has followed, or its fork."""
    followed = (checkpoint.follows for checkpoint in branch.lineage.newest_first() if checkpoint.follows is not None)
    return next(followed, _fork_of(branch))


def _fork_of(branch: OpenJob) -> int:
    """Return the checkpoint of the job that the branch begins at."""
    fork = next(checkpoint for checkpoint in branch.checkpoints if checkpoint.kind is Kind.FORK)
    assert fork.restored_from is not None  # noqa: S101 - every fork has it
    return fork.restored_from
