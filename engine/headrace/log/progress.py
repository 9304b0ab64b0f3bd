"""Progress of a run within its micro-batch, in files in `progress/` in the job's folder.

    progress/<attempt>.json             sums of the driver, for `headrace status`
    progress/<attempt>/<stage>-<task>   report of each task to the driver, overwritten again and again

No result depends on these files. Each has the attempt that wrote it in its name, so nobody takes a crashed run's files for those of
another run; the next run removes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from headrace.names import counted
from headrace.tables.folder import JobFolder

FOLDER = "progress"
_SECONDS_ON_A_DISK, _SECONDS_ON_A_STORE = 1.0, 10.0


class TaskProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of one task with its present operator."""

    operator: str
    rows: int = 0
    """Number of rows or elements done by the operator."""
    of: int | None = None
    """Number of rows or elements to do; None if the task does not know."""
    in_flight: int = 0
    """Number of elements with a call or an access to state under way."""
    waiting: int = 0
    """Number of elements that wait for a retry, or for an earlier element of their key."""


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """Progress of all tasks of a stage together."""

    checkpoint_id: int
    """Id of the checkpoint that the micro-batch will become."""
    operator: str
    rows: int
    of: int | None
    in_flight: int
    waiting: int

    def described(self) -> str:
        """Return the progress as text: `micro-batch 12, by_item: 4,000 of 20,000 rows, 32 in flight, 5 waiting`."""
        rows = counted(self.rows, "row") if self.of is None else f"{self.rows:,} of {counted(self.of, 'row')}"
        return (
            f"micro-batch {self.checkpoint_id}, {self.operator}: {rows}, {self.in_flight:,} in flight, "
            f"{self.waiting:,} waiting"
        )


_Progress = TypeVar("_Progress", TaskProgress, BatchProgress)


class ProgressFiles:
    """Progress files of one attempt. Every method raises `StorageError` when the storage refuses."""

    def __init__(self, folder: JobFolder, attempt_id: str) -> None:
        self._folder = folder.below(FOLDER)
        self._own = attempt_id

    @property
    def seconds_between(self) -> float:
        """Return the time between two writes (s). On an object store each write costs a request."""
        return _SECONDS_ON_A_DISK if self._folder.is_on_local_disk else _SECONDS_ON_A_STORE

    def write_task(self, stage: str, task: str, progress: TaskProgress) -> None:
        """Write the report of a task of a stage over its former one."""
        self._folder.write(f"{self._own}/{stage}-{task}", msgspec.json.encode(progress))

    def read_tasks(self, stage: str) -> list[TaskProgress]:
        """Return the reports of the tasks of a stage. Skips files that are being written."""
        names = sorted(name for name in self._folder.files(self._own) if name.startswith(f"{stage}-"))
        reports = (_decoded(self._folder.read(f"{self._own}/{name}"), TaskProgress) for name in names)
        return [progress for progress in reports if progress is not None]

    def write(self, progress: BatchProgress) -> None:
        """Write the driver's sums."""
        self._folder.write(f"{self._own}.json", msgspec.json.encode(progress))

    def read(self) -> BatchProgress | None:
        """Return the driver's sums; None if there are none."""
        content = self._folder.find(f"{self._own}.json")
        return None if content is None else _decoded(content, BatchProgress)

    def remove(self) -> None:
        """Remove the files of this attempt."""
        self._folder.remove_folder(self._own)
        self._folder.remove_file(f"{self._own}.json")

    def remove_all(self) -> None:
        """Remove the files of all attempts, and the folder."""
        self._folder.remove_folder()


def added_up(checkpoint_id: int, stage: str, of: int, tasks: Sequence[TaskProgress]) -> BatchProgress:
    """Return the progress of a stage that has `of` rows to do.

    The tasks of a source's stage work at the source, then at its waits, operator by operator. The result names the operator that
    most tasks work at; on a tie, the furthest one.
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
        # Records that an earlier run has held are not counted in `of`.
        of=max(rows, sum(known) if known else of),
        in_flight=sum(task.in_flight for task in there),
        waiting=sum(task.waiting for task in there),
    )


def _decoded(content: bytes, kind: type[_Progress]) -> _Progress | None:
    """Return the decoded content of a file; None while somebody is writing it."""
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError:
        return None
