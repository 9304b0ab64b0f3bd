"""Landed files with rows that a checkpoint has not taken in yet. They change lines with the checkpoint.

A job and its branches land the rows of a Spark step in folders of their own. Files of the same name may differ: the source's file may
have been corrected between the two landings. So a line that takes in the rest of a file needs the file whose first rows it took in.
"""

from __future__ import annotations

from headrace.commit.checkpoint import Checkpoint
from headrace.config import JobConfig
from headrace.sources.derived import landed_file, stored_name
from headrace.sources.landed import landed_folder
from headrace.tables.files import is_file, read_bytes, write_bytes
from headrace.tables.store import storage_errors


def copy_begun_files(checkpoint: Checkpoint, source_line: JobConfig, target_line: JobConfig) -> None:
    """Copy the landed files that a checkpoint has begun, or requeued rows of, from one line's folders to the other's.

    Called after the fork of a branch is listed, and after a promotion is committed, until it succeeds. Replaces files of the target.
    Raises `StorageError` where a file cannot be copied.
    """
    storage = source_line.storage_options
    for source, offset in checkpoint.offsets.items():
        origin, target = (landed_folder(line.job_folder, source) for line in (source_line, target_line))
        names = {*offset.unread, *(rows.file for rows in offset.requeued)}
        for name in sorted(landed_file(name) for name in names if stored_name(name) != name):
            with storage_errors(f"to copy {origin}/{name} to {target}"):
                if is_file(f"{origin}/{name}", storage):
                    write_bytes(f"{target}/{name}", read_bytes(f"{origin}/{name}", storage), storage)
