"""Checkpoints that have rows of a key which was erased later: refuse to read or restore them.

An erasure rewrites the present state. Earlier checkpoints keep their table versions, and with them the rows, until retention
ends. `Checkpoint.erased` lists the ids of these checkpoints. The key itself is not recorded: the record would stay for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from headrace.commit.checkpoint import Checkpoint, Kind
from headrace.errors import ConfigError, StorageError

IdRanges = tuple[tuple[int, int], ...]
"""Ranges of checkpoint ids, both ends included."""


def id_ranges(ids: Collection[int]) -> IdRanges:
    """Return ids as sorted ranges."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(ids):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return tuple(ranges)


def ids_of(ranges: IdRanges) -> set[int]:
    """Return the ids in ranges."""
    return {number for first, last in ranges for number in range(first, last + 1)}


def erased_ids(checkpoints: Sequence[Checkpoint]) -> set[int]:
    """Return ids of the checkpoints that have, or had, rows which were erased later."""
    return {number for erasure in _of_kind(checkpoints, Kind.ERASURE) for number in ids_of(erasure.erased)}


def purged_ids(checkpoints: Sequence[Checkpoint]) -> set[int]:
    """Return ids of the checkpoints whose files a purge deleted because they had rows of an erased key."""
    return {number for purge in _of_kind(checkpoints, Kind.VACUUM) for number in ids_of(purge.erased)}


def refuse_purged(checkpoints: Sequence[Checkpoint], target_id: int) -> None:
    """Raise `StorageError` if a purge deleted files of a checkpoint because they had rows of an erased key."""
    purge = _naming(checkpoints, Kind.VACUUM, target_id)
    if purge is not None:
        msg = (
            f"checkpoint {target_id} can no longer be read or restored: its files had rows of an erased key, and "
            f"checkpoint {purge.checkpoint_id} deleted them ({purge.note}). 'headrace checkpoints' lists all."
        )
        raise StorageError(msg)


def refuse_erased(job: str, checkpoints: Sequence[Checkpoint], target_id: int, *, brings_back: bool) -> None:
    """Refuse to restore a checkpoint that has rows of an erased key.

    Raises `StorageError` if its files were deleted for that reason, else `ConfigError`, unless `brings_back`.
    """
    refuse_purged(checkpoints, target_id)
    erasure = _naming(checkpoints, Kind.ERASURE, target_id)
    if erasure is not None and not brings_back:
        msg = (
            f"checkpoint {target_id} has rows of a key that checkpoint {erasure.checkpoint_id} erased ({erasure.note}); restoring "
            f"it would bring them back. Nothing was changed. Restore checkpoint {erasure.checkpoint_id} or a later one. If it has to "
            f"be this one, run 'headrace restore {job} --to {target_id} --bring-back-erased --why ...', and erase the key again "
            "at once."
        )
        raise ConfigError(msg)


def _naming(checkpoints: Sequence[Checkpoint], kind: Kind, target_id: int) -> Checkpoint | None:
    """Return the last checkpoint of a kind that names another one as erased; None if none does."""
    of_kind = reversed([*_of_kind(checkpoints, kind)])
    return next((checkpoint for checkpoint in of_kind if any(a <= target_id <= b for a, b in checkpoint.erased)), None)


def _of_kind(checkpoints: Sequence[Checkpoint], kind: Kind) -> Iterator[Checkpoint]:
    return (checkpoint for checkpoint in checkpoints if checkpoint.kind is kind)
