"""Progress within a micro-batch: tasks tell in files how far they have come, and the driver adds it up.

    task     rows 4,000, 32 in flight  ->  progress/<attempt>/stage0-1   ┐
    task     rows 5,000, 12 in flight  ->  progress/<attempt>/stage0-2   ├-> driver: event, and progress/<attempt>.json
                                                                         ┘
A task looks at the clock where it asks anyway whether it has to stop, once in some hundred records. It writes at most once in
`ProgressFiles.seconds_between`, and not before the micro-batch has lasted that long: a quick one costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Protocol

from headrace import clock, threads
from headrace.commit.progress_file import BatchProgress, ProgressFiles, TaskProgress, added_up
from headrace.config import JobConfig
from headrace.spark.reports import BatchSettings

Measure = Callable[[], TaskProgress]

SOURCES = "sources"
"""The stage of all sources."""


def keyed_stage(number: int) -> str:
    """Return how files of a keyed stage are called."""
    return f"stage{number}"


class TaskNotes:
    """What one task of a stage tells the driver."""

    def __init__(self, batch: BatchSettings, stage: str, task: str) -> None:
        """Tell nothing unless the batch says from when on."""
        self._files = ProgressFiles(batch.job_folder, batch.attempt_id, batch.storage)
        self._from = self._next = batch.progress_from
        self._stage, self._task = stage, task
        self._measure: Measure | None = None

    def asked_along(self, stop: Callable[[], bool], measure: Measure) -> Callable[[], bool]:
        """Return `stop`, such that whoever asks it notes the progress as well, where that is due."""
        self._measure = measure

        def noted_stop() -> bool:
            self.note()
            return stop()

        return noted_stop

    def measured_by(self, measure: Measure) -> None:
        """Take progress from `measure` from now on."""
        self._measure = measure

    def note(self) -> None:
        """Write how far the task has come, if that is due."""
        if self._next is None or self._measure is None or (now := clock.now()) < self._next:
            return
        self._next = now + round(self._files.seconds_between * 1000)
        # A store that does not answer is no reason to fail: nothing rests on these files.
        with suppress(OSError):
            self._files.write_task(self._stage, self._task, self._measure())

    def end(self) -> None:
        """Write how far the task has come, at its end: other tasks of the stage may go on for long."""
        self._next = self._from
        self.note()


class Watch(Protocol):
    """Watches the stages of micro-batches."""

    def progress_from(self) -> int | None:
        """Return from when on the tasks of a micro-batch that begins now tell how far they have come (ms); None: never."""
        ...

    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> AbstractContextManager[None]:
        """Watch a stage that has `rows` to do for the length of a block; `shown` names it for people."""
        ...


class NoWatch:
    """See `Watch`: nobody looks."""

    def progress_from(self) -> None:
        """See `Watch.progress_from`."""

    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> AbstractContextManager[None]:  # noqa: ARG002
        """See `Watch.stage`."""
        return nullcontext()


NO_WATCH = NoWatch()


@dataclass(frozen=True, slots=True)
class ProgressWatch:
    """See `Watch`. `tell` gets the progress whenever it was looked for, the file of the attempt likewise."""

    files: ProgressFiles
    tell: Callable[[BatchProgress], None]

    def progress_from(self) -> int:
        """See `Watch.progress_from`."""
        return clock.now() + round(self.files.seconds_between * 1000)

    @contextmanager
    def stage(self, checkpoint_id: int, name: str, shown: str, rows: int) -> Iterator[None]:
        """See `Watch.stage`."""

        def look() -> None:
            # As in `TaskNotes.note`.
            with suppress(OSError):
                if tasks := self.files.read_tasks(name):
                    progress = added_up(checkpoint_id, shown, rows, tasks)
                    self.files.write(progress)
                    self.tell(progress)

        with threads.repeating(self.files.seconds_between, look, "headrace-progress"):
            yield


@contextmanager
def watched(config: JobConfig, attempt_id: str, tell: Callable[[BatchProgress], None]) -> Iterator[ProgressWatch]:
    """Watch the micro-batches of a run, which holds the job. What earlier runs have left is removed first, and its own at the end."""
    files = ProgressFiles(config.job_folder, attempt_id, config.storage_options)
    with suppress(OSError):
        files.remove_all()
    try:
        yield ProgressWatch(files, tell)
    finally:
        with suppress(OSError):
            files.remove()
