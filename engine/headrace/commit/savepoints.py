"""Which savepoints retention spares: all that were made, but for those whose name was dropped since."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.commit.checkpoint import Checkpoint, Kind


def live_savepoints(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Return the savepoints that were not dropped, oldest first. A name that was given again is a savepoint again."""
    dropped = {each.name: each.checkpoint_id for each in checkpoints if each.kind is Kind.SAVEPOINT_DROP}
    savepoints = (each for each in checkpoints if each.kind is Kind.SAVEPOINT)
    return [each for each in savepoints if each.checkpoint_id > dropped.get(each.name, -1)]


def drop_of(checkpoints: Sequence[Checkpoint], name: str) -> Checkpoint | None:
    """Return the checkpoint that dropped the savepoints of a name last; None if none did."""
    drops = (each for each in reversed(checkpoints) if each.kind is Kind.SAVEPOINT_DROP and each.name == name)
    return next(drops, None)
