"""Landed files with rows that a checkpoint has not taken in yet. They change lines with the checkpoint.

A job and its branches land the rows of a Spark step in folders of their own. Files of the same name may differ: the source's file may
have been corrected between the two landings. So a line that takes in the rest of a file needs the file whose first rows it took in.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace.commit.checkpoint import Checkpoint
from headrace.config import JobConfig
from headrace.sources.derived import landed_file, stored_name
from headrace.sources.landed import landed_folder, list_landed
from headrace.tables.files import Storage, is_file, read_bytes, write_bytes
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
        _copy(sorted(landed_file(name) for name in names if stored_name(name) != name), origin, target, storage)


def copy_messages(checkpoint: Checkpoint, branch: JobConfig, job: JobConfig) -> None:
    """Copy the messages that a branch has landed, and its job has not, to the folders of the job.

    Called after a promotion is committed, until it succeeds. From then on the job can read them again, after a restore or a requeue,
    also where the topic has expired them. Raises `StorageError` where a file cannot be copied.
    """
    storage = branch.storage_options
    for source, offset in checkpoint.offsets.items():
        if offset.partitions:
            origin, target = (landed_folder(line.job_folder, source) for line in (branch, job))
            of_branch, of_job = ({file.name for file in list_landed(folder, storage)} for folder in (origin, target))
            _copy(sorted(of_branch - of_job), origin, target, storage)


def _copy(names: Iterable[str], origin: str, target: str, storage: Storage) -> None:
    for name in names:
        with storage_errors(f"to copy {origin}/{name} to {target}"):
            if is_file(f"{origin}/{name}", storage):
                write_bytes(f"{target}/{name}", read_bytes(f"{origin}/{name}", storage), storage)
