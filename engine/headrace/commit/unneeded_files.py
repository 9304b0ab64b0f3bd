"""Unneeded files of a job: those that a vacuum may delete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import NamedTuple

from pyarrow import fs

from headrace import clock
from headrace.commit.checkpoint import Checkpoint
from headrace.commit.landed_cleanup import unneeded_landed
from headrace.commit.log_cleanup import KeptCheckpoints, LogCleanup, LogCut
from headrace.commit.vacuum_intents import INTENTS, VacuumIntent
from headrace.config import JobConfig
from headrace.sources.landed import LANDED
from headrace.tables.files import file_system, path_of
from headrace.tables.schemas import ALL_TABLES, CHECKPOINTS, tables_in
from headrace.tables.store import storage_errors
from headrace.tables.stores import state_view

_HOUR = 3_600_000


class Unneeded(NamedTuple):
    """Files that may be deleted, relative to the job's folder, and the cuts of logs to keep before that."""

    files: set[str]
    logs: LogCleanup
    cuts: Sequence[LogCut]


class UnneededFiles:
    """Finder of files that no kept checkpoint needs and no intent names. Lists each folder once."""

    def __init__(self, config: JobConfig, checkpoints: Sequence[Checkpoint], intents: Sequence[VacuumIntent]) -> None:
        """Take all `checkpoints` of the job; read nothing yet."""
        self._config, self._checkpoints, self._intents = config, checkpoints, intents
        self._oldest = clock.now() - config.retention.hours * _HOUR
        self._old_files: Callable[[str], set[str]] = cache(self._listed)

    def besides(self, forks: Collection[int]) -> Unneeded:
        """Return the files that nobody needs if branches build on the checkpoints `forks`."""
        kept = KeptCheckpoints.of(self._checkpoints, self._oldest, forks)
        logs = LogCleanup(self._config, kept, self._oldest)
        cuts = [*logs.cuts()]
        unneeded = {file for cut in cuts for file in cut.files}
        unneeded |= self._old_files(CHECKPOINTS) - logs.checkpoint_files()
        for name in tables_in(kept.tables):
            unneeded |= self._old_files(name) - self._needed_files(name, kept)
        # The following files are left over: files between stages of dead attempts, published outputs, intents whose
        # commit failed.
        for folder in ("transit", "outputs", INTENTS):
            unneeded |= self._old_files(folder)
        last = self._checkpoints[-1]
        forked = [checkpoint for checkpoint in self._checkpoints if checkpoint.checkpoint_id in forks]
        unneeded |= unneeded_landed(self._old_files(LANDED), kept, last, forked)
        unneeded -= {file.path for files in last.outputs.values() for file in files}
        return Unneeded(unneeded.difference(*({intent.path, *intent.files} for intent in self._intents)), logs, cuts)

    def _needed_files(self, name: str, kept: KeptCheckpoints) -> set[str]:
        """Return the files of a state table at all kept checkpoints."""
        folder, storage = self._config.job_folder, self._config.storage_options
        views = [state_view(folder, name, version, storage) for version in kept.versions(name)]
        with storage_errors(f"to read {folder}/{name}"):
            return {f"{name}/{file}" for view in views for file in view.files()}

    def _listed(self, name: str) -> set[str]:
        """Return the Parquet files in a folder of the job that are older than the retention; for a table, not those in its subfolders."""
        recursive = name not in {CHECKPOINTS, *ALL_TABLES}
        store, root = file_system(self._config.job_folder, self._config.storage_options)
        selector = fs.FileSelector(f"{root}/{name}", allow_not_found=True, recursive=recursive)
        with storage_errors(f"to list the files in {self._config.job_folder}/{name}"):
            return {
                path.removeprefix(f"{root}/")
                for file in store.get_file_info(selector)
                if (path := path_of(file)) is not None
                and path.endswith(".parquet")
                and file.mtime_ns < self._oldest * 1_000_000
            }
