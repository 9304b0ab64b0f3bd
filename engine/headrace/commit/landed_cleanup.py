"""Clean-up of landed files of topics: find those that nobody needs any more."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final
from urllib.parse import unquote

from headrace.commit.checkpoint import Checkpoint
from headrace.commit.log_cleanup import KeptCheckpoints
from headrace.sources.derived import landed_file, stored_name
from headrace.sources.landed import LANDED, digest_of, parse_landed
from headrace.sources.offset import SourceOffset

_PARTS: Final = 3
"""Parts of a landed file's path: folder, source, name."""


def unneeded_landed(files: Collection[str], kept: KeptCheckpoints, last: Checkpoint) -> set[str]:
    """Return landed `files` (paths relative to the job's folder) whose rows no kept checkpoint still has to take in.

    Files that the next run reads stay as well: the topic may have deleted their messages.
    """
    waiting = {
        f"{LANDED}/{source}/{name}"
        for checkpoint in (*kept.recent, *kept.savepoints, last)
        for source, offset in checkpoint.offsets.items()
        for file in (*offset.unread, *(rows.file for rows in offset.requeued))
        for name in {stored_name(file), landed_file(file) if stored_name(file) != file else file}
    }
    return {file for file in files if file not in waiting and not _is_ahead(file, last)}


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
