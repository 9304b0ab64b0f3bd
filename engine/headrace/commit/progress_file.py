"""How far a run has come within its micro-batch, in files beside the lease: `progress/` in the job's folder.

    progress/<attempt>.json             what the driver has added up, for `headrace status`
    progress/<attempt>/<stage>-<task>   what each task tells the driver, written over again and again

Nothing rests on these files. Each carries the attempt that wrote it in its name, so what a crashed run has left is never taken
for news of another one, and the next run removes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace.tables.files import Storage, list_files, read_bytes, remove_file, remove_folder, write_bytes

FOLDER = "progress"
_SECONDS_ON_A_DISK, _SECONDS_ON_A_STORE = 1.0, 10.0


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far one task has come with the operator that it works at."""

    operator: str
    rows: int = 0
    """Rows or elements that the operator has done."""
    of: int | None = None
    """How many it has to do; None where the task does not know."""
    in_flight: int = 0
    """Elements whose calls, or whose accesses to state, are under way."""
    waiting: int = 0
    """Elements that wait for a retry, or for an earlier one of their key."""


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far all tasks of a stage have come, added up."""

    checkpoint_id: int
    """The checkpoint that the micro-batch is going to be."""
    operator: str
    rows: int
    of: int | None
    in_flight: int
    waiting: int

    def described(self) -> str:
        """Return it as a text: `micro-batch 12, by_item: 4,000 of 20,000 rows, 32 in flight, 5 waiting`."""
        rows = f"{self.rows:,}" if self.of is None else f"{self.rows:,} of {self.of:,}"
        return (
            f"micro-batch {self.checkpoint_id}, {self.operator}: {rows} rows, {self.in_flight:,} in flight, "
            f"{self.waiting:,} waiting"
        )


_Progress = TypeVar("_Progress", TaskProgress, BatchProgress)


class ProgressFiles:
    """The files of one attempt. Every method raises `OSError` when the file system refuses."""

    def __init__(self, job_folder: str, attempt_id: str, storage: Storage = None) -> None:
        self._folder = f"{job_folder}/{FOLDER}"
        self._own = f"{self._folder}/{attempt_id}"
        self._storage = storage

    @property
    def seconds_between(self) -> float:
        """Return how often they are written: on an object store each time costs a request."""
        return _SECONDS_ON_A_STORE if "://" in self._folder else _SECONDS_ON_A_DISK

    def write_task(self, stage: str, task: str, progress: TaskProgress) -> None:
        """Write what a task of a stage tells, in place of what it told before."""
        write_bytes(f"{self._own}/{stage}-{task}", msgspec.json.encode(progress), self._storage)

    def read_tasks(self, stage: str) -> list[TaskProgress]:
        """Return what the tasks of a stage tell. A file that is just being written is left out."""
        names = sorted(name for name in list_files(self._own, self._storage) if name.startswith(f"{stage}-"))
        found = (_decoded(read_bytes(f"{self._own}/{name}", self._storage), TaskProgress) for name in names)
        return [progress for progress in found if progress is not None]

    def write(self, progress: BatchProgress) -> None:
        """Write what the driver has added up."""
        write_bytes(f"{self._own}.json", msgspec.json.encode(progress), self._storage)

    def read(self) -> BatchProgress | None:
        """Return what the driver has added up; None if there is nothing."""
        try:
            content = read_bytes(f"{self._own}.json", self._storage)
        except FileNotFoundError:
            return None
        return _decoded(content, BatchProgress)

    def remove(self) -> None:
        """Remove the files of this attempt."""
        remove_folder(self._own, self._storage)
        remove_file(f"{self._own}.json", self._storage)

    def remove_all(self) -> None:
        """Remove what earlier attempts have left, and the folder."""
        remove_folder(self._folder, self._storage)


def added_up(checkpoint_id: int, stage: str, of: int, tasks: Sequence[TaskProgress]) -> BatchProgress:
    """Return the progress of a stage that has `of` rows to do.

    A source's stage works at the source and then at its waits, operator by operator: it is shown by the operator that most of
    the tasks are at, and of these by the one that has come furthest.
    """
    tasks_at = Counter(task.operator for task in tasks)
    rows_at: Counter[str] = Counter()
    for task in tasks:
        rows_at[task.operator] += task.rows
    operator = max(tasks_at, key=lambda name: (tasks_at[name], rows_at[name]), default=stage)
    there = [task for task in tasks if task.operator == operator]
    rows = rows_at[operator]
    known = [task.of for task in there if task.of is not None]
    return BatchProgress(
        checkpoint_id=checkpoint_id,
        operator=operator,
        rows=rows,
        # Records that an earlier run has held come on top of those of the stage.
        of=max(rows, sum(known) if known else of),
        in_flight=sum(task.in_flight for task in there),
        waiting=sum(task.waiting for task in there),
    )


def _decoded(content: bytes, kind: type[_Progress]) -> _Progress | None:
    """Return what a file holds; None while somebody is writing it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        return None
