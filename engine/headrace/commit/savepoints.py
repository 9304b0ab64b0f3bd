"""Savepoints that retention keeps: all whose name was not dropped since."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.commit.checkpoint import Checkpoint, Kind


def live_savepoints(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the savepoints that were not dropped, oldest first. A name may be given again after it was dropped."""
    dropped = {
        checkpoint.name: checkpoint.checkpoint_id
        for checkpoint in checkpoints
        if checkpoint.kind is Kind.SAVEPOINT_DROP
    }
    savepoints = (checkpoint for checkpoint in checkpoints if checkpoint.kind is Kind.SAVEPOINT)
    return [checkpoint for checkpoint in savepoints if checkpoint.checkpoint_id > dropped.get(checkpoint.name, -1)]


def drop_of(checkpoints: Sequence[Checkpoint], name: str) -> Checkpoint | None:
    """Return the last checkpoint that dropped the savepoints with a name; None if there is none."""
    drops = (
        checkpoint
        for checkpoint in reversed(checkpoints)
        if checkpoint.kind is Kind.SAVEPOINT_DROP and checkpoint.name == name
    )
    return next(drops, None)
