"""Watch of a running micro-batch: progress of its tasks, and the sign to stop.

Tasks write their progress to files, and the driver adds it up:

    task     rows 4,000, 32 in flight  ->  progress/<attempt>/stage0-1   ┐
    task     rows 5,000, 12 in flight  ->  progress/<attempt>/stage0-2   ├-> driver: event, and progress/<attempt>.json
                                                                         ┘

A task reads the clock when it checks whether to stop, once in some hundred records. It writes at most once in
`ProgressFiles.seconds_between`, and first when the micro-batch has lasted that long: a quick one costs nothing.

A task stops when the time of its run is over, or when somebody wants the run to end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

from headrace import clock, threads
from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.log.progress import BatchProgress, ProgressFiles, TaskProgress, added_up
from headrace.run.messages import BatchSettings, KeyedTask, SourceTask
from headrace.run.output import transit_folder
from headrace.tables.folder import JobFolder

Measure = Callable[[], TaskProgress]

SOURCES = "sources"
"""Name of the stage of all sources."""

CALLS = "calls"
"""Name of the stage that makes the calls behind shared sources."""


def keyed_stage(number: int) -> str:
    """Return the name of a keyed stage in file names."""
    return f"stage{number}"


class TaskNotes:
    """Progress notes of one task of a stage to the driver."""

    def __init__(self, batch: BatchSettings, stage: str, task: str) -> None:
        """Prepare the notes. Writes none if the batch has no time from which on to report."""
        self._files = ProgressFiles(batch.folder, batch.attempt_id)
        self._from = self._next = batch.progress_from
        self._stage, self._task = stage, task
        self._measure: Measure | None = None

    def asked_along(self, stop: Callable[[], bool], measure: Measure) -> Callable[[], bool]:
        """Return `stop`, extended: each call also notes the progress if it is due."""
        self._measure = measure

        def noted_stop() -> bool:
            self.note()
            return stop()

        return noted_stop

    def measured_by(self, measure: Measure) -> None:
        """Take progress from `measure` from now on."""
        self._measure = measure

    def note(self) -> None:
        """Write the task's progress if it is due."""
        if self._next is None or self._measure is None or (now := clock.now()) < self._next:
            return
        self._next = now + round(self._files.seconds_between * 1000)
        # A store that does not respond must not fail the task: no result depends on these files.
        with suppress(StorageError):
            self._files.write_task(self._stage, self._task, self._measure())

    def end(self) -> None:
        """Write the task's final progress: other tasks of the stage may run much longer."""
        self._next = self._from
        self.note()


class Watch(Protocol):
    """Watcher of the stages of micro-batches."""

    def progress_from(self) -> int | None:
        """Return the timestamp from which on tasks of a micro-batch that begins now report progress (ms); None: never."""
        ...

    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> AbstractContextManager[None]:
        """Watch a stage for the length of a block. It has `rows` to do; `shown` is its name for people."""
        ...


class NoWatch:
    """Watcher that does nothing."""

    def progress_from(self) -> None:
        """Return None: tasks report no progress."""

    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """Do nothing around the block."""
        return nullcontext()


NO_WATCH = NoWatch()


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """Watcher that regularly reads the tasks' progress, passes the sum to `tell`, and writes it to the attempt's file."""

    files: ProgressFiles
    tell: Callable[[BatchProgress], None]

    def progress_from(self) -> int:
        """Return the timestamp after the first interval between two writes (ms)."""
        return clock.now() + round(self.files.seconds_between * 1000)

    @contextmanager
    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> Iterator[None]:
        """Read, add up and send the progress of a stage regularly during the block."""

        def look() -> None:
            # A store that does not respond must not fail the run, as in `TaskNotes.note`.
            with suppress(StorageError):
                if tasks := self.files.read_tasks(name):
                    progress = added_up(checkpoint_id, shown, rows, tasks)
                    self.files.write(progress)
                    self.tell(progress)

        with threads.repeating(self.files.seconds_between, look, "headrace-progress"):
            yield


@contextmanager
def watched(config: JobConfig, attempt_id: str, tell: Callable[[BatchProgress], None]) -> Iterator[ProgressWatch]:
    """Watch the micro-batches of a run that holds the job. Removes files of earlier runs first, and its own at the end."""
    files = ProgressFiles(JobFolder.of(config), attempt_id)
    with suppress(StorageError):
        files.remove_all()
    try:
        yield ProgressWatch(files, tell)
    finally:
        with suppress(StorageError):
            files.remove()


_SECONDS_BETWEEN_LOOKS = 1.0


def stop_file(attempt_id: str) -> str:
    """Return the path of the file that tells an attempt's tasks to stop. It is removed with the attempt's transit files."""
    return f"{transit_folder(attempt_id)}/stop"


class StopSign:
    """Check that tasks call after each chunk of records. Looks for the stop file at most once a second."""

    def __init__(self, task: KeyedTask | SourceTask) -> None:
        """Take the timestamp to stop, and the stop file, from the task."""
        self._task = task
        self._next_look = clock.monotonic()

    def __call__(self) -> bool:
        """Return whether the task must stop now."""
        stop_at = self._task.stop_at
        return (stop_at is not None and clock.now() >= stop_at) or self._is_there()

    def _is_there(self) -> bool:
        path, now = self._task.stop_file, clock.monotonic()
        if path is None or now < self._next_look:
            return False
        self._next_look = now + _SECONDS_BETWEEN_LOOKS
        try:
            return self._task.batch.folder.has(path)
        except StorageError:
            # A store that does not respond must not fail the task, and must not end later checks.
            return False
