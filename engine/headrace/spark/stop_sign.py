"""Stop sign of a task: the time of its run is over, or somebody wants the run to end."""

from __future__ import annotations

from pyarrow import fs

from headrace import clock
from headrace.spark.reports import KeyedTask, SourceTask
from headrace.spark.task_output import transit_folder
from headrace.tables.files import file_system

_SECONDS_BETWEEN_LOOKS = 1.0


def stop_file(job_folder: str, attempt_id: str) -> str:
    """Return the path of the file that tells an attempt's tasks to stop. It is removed with the attempt's transit files."""
    return f"{transit_folder(job_folder, attempt_id)}/stop"


class StopSign:
    """Check that tasks call after each chunk of records. Looks for the stop file at most once a second."""

    def __init__(self, task: KeyedTask | SourceTask) -> None:
        """Take the moment to stop, and the stop file, from the task."""
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
            store, place = file_system(path, self._task.batch.storage)
            return bool(store.get_file_info(place).type is fs.FileType.File)
        except OSError:
            # A store that does not answer must not fail the task, and must not end later checks.
            return False
