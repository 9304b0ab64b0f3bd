"""Lineage: the checkpoints that led to a head, without those that restores left behind.

    checkpoints    0 -- 1 -- 2 -- 3 -- 4 (restore to 1) -- 5
    lineage of 5      0 -- 1 -- 4 -- 5

Ids only grow, so a lineage is sorted by id; a restore may skip ids. Checkpoints that a restore left behind stay in the
log, and have separate lineages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from headrace.log.checkpoint import Checkpoint, Kind


class Lineage:
    """Lineage that leads to a head, by default the last checkpoint. Empty for a job without checkpoints."""

    def __init__(self, checkpoints: Sequence[Checkpoint], head: int | None = None) -> None:
        """Follow parents from the checkpoint with id `head`. `checkpoints` has all of the job, oldest first."""
        self._checkpoints = checkpoints
        self._by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
        last = checkpoints[-1] if checkpoints else None
        self.head = last if head is None else self._by_id[head]

    @cached_property
    def checkpoints(self) -> list[Checkpoint]:
        """Return the checkpoints of the lineage, oldest first."""
        return list(self.newest_first())[::-1]

    def newest_first(self) -> Iterator[Checkpoint]:
        """Yield the lineage from the head back to its beginning."""
        checkpoint = self.head
        while checkpoint is not None:
            yield checkpoint
            checkpoint = self.before(checkpoint)

    def before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the checkpoint that another one continues from: its parent; for a restore, the restored checkpoint."""
        before = checkpoint.restored_from if checkpoint.kind is Kind.RESTORE else checkpoint.parent_id
        return None if before is None else self._by_id.get(before)

    def get(self, checkpoint_id: int) -> Checkpoint | None:
        """Return the job's checkpoint with an id, on this lineage or not; None if there is none."""
        return self._by_id.get(checkpoint_id)

    def behind(self, checkpoint_id: int) -> Iterator[Checkpoint]:
        """Yield the job's checkpoints with higher ids, on this lineage or not, oldest first."""
        return iter(
            self._checkpoints[
                bisect_right(self._checkpoints, checkpoint_id, key=lambda checkpoint: checkpoint.checkpoint_id) :
            ]
        )

    @cached_property
    def incarnations(self) -> dict[int, int]:
        """Return the incarnations of the job so far, each with the last checkpoint that has it."""
        return {c.incarnation: c.checkpoint_id for c in self._checkpoints}

    @property
    def uid(self) -> int | None:
        """Return the number that the job keeps for life: its first incarnation; None before its checkpoint 0."""
        return next(iter(self.incarnations), None)

    @property
    def sinks(self) -> set[str]:
        """Return the names of all sinks that the job has or had."""
        return {name for c in self._checkpoints for name in {*c.outputs, *c.sink_tables}}

    @property
    def ancestors(self) -> tuple[int, ...]:
        """Return the incarnations before the present one, newest first."""
        return tuple(self.incarnations)[-2::-1]

    def begins_incarnation(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is a restore that gave the job a new incarnation: a reconciliation of job and sinks."""
        parent = None if checkpoint.parent_id is None else self._by_id.get(checkpoint.parent_id)
        return checkpoint.kind is Kind.RESTORE and parent is not None and parent.incarnation != checkpoint.incarnation

    def to(self, checkpoint: Checkpoint) -> Lineage:
        """Return the lineage that leads to another checkpoint."""
        return Lineage(self._checkpoints, checkpoint.checkpoint_id)

    def last_of(self, kind: Kind) -> Checkpoint | None:
        """Return the latest checkpoint of a kind."""
        return next((checkpoint for checkpoint in self.newest_first() if checkpoint.kind is kind), None)

    def as_of(self, timestamp: int) -> Checkpoint | None:
        """Return the latest checkpoint that was committed at or before a timestamp (ms)."""
        return next((checkpoint for checkpoint in self.newest_first() if checkpoint.committed_at <= timestamp), None)

    @property
    def with_watermarks(self) -> list[tuple[Checkpoint, int]]:
        """Return the checkpoints of the lineage that have a watermark, with it (ms), oldest first."""
        return [
            (checkpoint, checkpoint.watermark) for checkpoint in self.checkpoints if checkpoint.watermark is not None
        ]

    def next_by_watermark(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the first checkpoint of the lineage with a later watermark than that of a checkpoint which has one."""
        later = (own for own, watermark in self.with_watermarks if watermark > (checkpoint.watermark or 0))
        return next(later, None)

    def last_micro_batch(self) -> int | None:
        """Return when the last micro-batch of the lineage ended (ms), by the clock of the lineage; None before the first.

        Compactions and savepoints do not count. After a restore, this is the micro-batch of the restored checkpoint: for the
        state, the time since then did not happen.
        """
        batch = self.last_of(Kind.BATCH)
        return None if batch is None else batch.lineage_time

    def was_published(self, checkpoint: Checkpoint, published: Collection[int]) -> bool:
        """Return whether a sink with the checkpoints `published` has this one, too, or a later one of this lineage.

        In the second case the sink's log no longer has the commit of this one.
        """
        if checkpoint.checkpoint_id in published:
            return True
        later = min((number for number in published if number > checkpoint.checkpoint_id), default=None)
        if later is None or later not in self._by_id:
            return False
        lineage = self.to(self._by_id[later]).newest_first()
        return any(before.checkpoint_id == checkpoint.checkpoint_id for before in lineage)
