"""Clean-up of landed files of topics: find those that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from urllib.parse import unquote

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.log_cleanup import KeptCheckpoints
from headrace.sources.derived import landed_file, stored_name
from headrace.sources.landed import LANDED, digest_of, parse_landed
from headrace.sources.offset import SourceOffset
from headrace.sources.pieces import read_up_to

_PARTS: Final = 3
"""Parts of a landed file's path: folder, source, name."""


def unneeded_landed(
    files: Collection[str], kept: KeptCheckpoints, last: Checkpoint, forks: Iterable[Checkpoint] = ()
) -> set[str]:
    """Return landed `files` (paths relative to the job's folder) whose rows no kept checkpoint still has to take in.

    Files that the next run reads stay as well, and messages behind the `forks` of branches, which read them in place: the topic may
    have deleted the messages.
    """
    waiting = {
        f"{LANDED}/{source}/{name}"
        for checkpoint in (*kept.recent, *kept.savepoints, last)
        for source, offset in checkpoint.offsets.items()
        for file in (*offset.unread, *(rows.file for rows in offset.requeued))
        for name in {stored_name(file), landed_file(file) if stored_name(file) != file else file}
    }
    forks = [*forks]
    return {
        file
        for file in files
        if file not in waiting
        and not _is_ahead(file, last)
        and not any(is_needed_by_branch(file, fork) for fork in forks)
    }


def is_needed_by_branch(file: str, fork: Checkpoint) -> bool:
    """Return whether a file has messages that a branch may take in that begins at the checkpoint `fork`."""
    offset = fork.offsets.get(file.split("/")[1], SourceOffset()) if file.count("/") == _PARTS - 1 else SourceOffset()
    landed = parse_landed(file.rpartition("/")[2])
    if landed is None or (offset.table is not None and digest_of(offset.table) != landed.topic_id):
        return False
    reached = {partition.partition: read_up_to(partition) for partition in offset.partitions}
    return landed.range.end > reached.get(landed.range.partition, 0)


def _is_ahead(file: str, last: Checkpoint) -> bool:
    """Return whether the rows of a landed file come after the last checkpoint's position in their source or partition."""
    parts = file.split("/")
    offset = last.offsets.get(parts[1], SourceOffset()) if len(parts) == _PARTS else SourceOffset()
    stored = unquote(stored_name(parts[-1]))
    landed = parse_landed(stored)
    if landed is None and stored != parts[-1]:
        return offset.last_file is None or stored > offset.last_file
    if landed is None or offset.table is None or digest_of(offset.table) != landed.topic_id:
        return False
    positions = {partition.partition: partition.position for partition in offset.partitions}
    return landed.range.first >= positions.get(landed.range.partition, 0)
