"""The checkpoints that count for a head: those that led to it, without what restores left behind.

    checkpoints    0 -- 1 -- 2 -- 3 -- 4 (restore to 1) -- 5
    line of 5      0 -- 1 -- 4 -- 5

Ids only ever grow, so a line is ordered by id; a restore may leave ids out. Checkpoints that a restore left behind stay in the log, and have lines of their own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property

from headrace.commit.checkpoint import Checkpoint, Kind


class Lineage:
    """The line of checkpoints that leads to a head, by default the last checkpoint. Empty for a job without checkpoints."""

    def __init__(self, checkpoints: Sequence[Checkpoint], head: int | None = None) -> None:
        """`checkpoints` has all of the job, oldest first; `head` is the id of one of them."""
        self._checkpoints = checkpoints
        self._by_id = {checkpoint.checkpoint_id: checkpoint for checkpoint in checkpoints}
        last = checkpoints[-1] if checkpoints else None
        self.head = last if head is None else self._by_id[head]

    @cached_property
    def line(self) -> list[Checkpoint]:
        """The checkpoints of the line, oldest first."""
        return list(self.newest_first())[::-1]

    def newest_first(self) -> Iterator[Checkpoint]:
        """Walk the line from the head back to its beginning."""
        checkpoint = self.head
        while checkpoint is not None:
            yield checkpoint
            checkpoint = self.before(checkpoint)

    def before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return what a checkpoint continues from: its parent; for a restore, the checkpoint that was restored."""
        before = checkpoint.restored_from if checkpoint.kind is Kind.RESTORE else checkpoint.parent_id
        return None if before is None else self._by_id.get(before)

    def get(self, checkpoint_id: int) -> Checkpoint | None:
        """Return the job's checkpoint with an id, on this line or not; None if there is none."""
        return self._by_id.get(checkpoint_id)

    def behind(self, checkpoint_id: int) -> Iterator[Checkpoint]:
        """Walk the job's checkpoints with higher ids than this one, on this line or not, oldest first."""
        return iter(
            self._checkpoints[bisect_right(self._checkpoints, checkpoint_id, key=lambda one: one.checkpoint_id) :]
        )

    @cached_property
    def incarnations(self) -> dict[int, int]:
        """The incarnations of the job so far, each with the last checkpoint that has it."""
        return {c.incarnation: c.checkpoint_id for c in self._checkpoints if c.incarnation is not None}

    @property
    def ancestors(self) -> tuple[int, ...]:
        """The incarnations before the present one, newest first."""
        return tuple(self.incarnations)[-2::-1]

    def begins_incarnation(self, checkpoint: Checkpoint) -> bool:
        """Return whether a checkpoint is a restore that gave the job a new incarnation: a reconciliation of job and sinks."""
        parent = None if checkpoint.parent_id is None else self._by_id.get(checkpoint.parent_id)
        return checkpoint.kind is Kind.RESTORE and parent is not None and parent.incarnation != checkpoint.incarnation

    def to(self, checkpoint: Checkpoint) -> Lineage:
        """Return the line that leads to another checkpoint."""
        return Lineage(self._checkpoints, checkpoint.checkpoint_id)

    def last_of(self, kind: Kind) -> Checkpoint | None:
        """Return the latest checkpoint of a kind."""
        return next((checkpoint for checkpoint in self.newest_first() if checkpoint.kind is kind), None)

    def as_of(self, moment: int) -> Checkpoint | None:
        """Return the latest checkpoint that was committed at or before a moment (ms)."""
        return next((checkpoint for checkpoint in self.newest_first() if checkpoint.committed_at <= moment), None)

    def last_micro_batch(self) -> int | None:
        """Return when the micro-batch ended that left the present state (ms), by the clock of the line; None before the first.

        Compactions and savepoints in between are no sign of life. After a restore it is the one that was restored: for the
        state, all time since then was lost.
        """
        batch = self.last_of(Kind.BATCH)
        return None if batch is None else batch.line_time

    def was_published(self, checkpoint: Checkpoint, published: Collection[int]) -> bool:
        """Return whether a sink that has the checkpoints `published` has this one, too, or something on top of it.

        In the second case its MERGE changed nothing: earlier releases made no commit for it.
        """
        if checkpoint.checkpoint_id in published:
            return True
        later = min((number for number in published if number > checkpoint.checkpoint_id), default=None)
        if later is None or later not in self._by_id:
            return False
        line = self.to(self._by_id[later]).newest_first()
        return any(before.checkpoint_id == checkpoint.checkpoint_id for before in line)
