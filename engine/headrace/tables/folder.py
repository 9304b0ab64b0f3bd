"""Folder of a job, or of a branch: its tables and other files, and how they are reached."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError
from headrace.tables.schemas import ALL_TABLES
from headrace.tables.view import TableView, ViewOf


@dataclass(frozen=True, slots=True)
class JobFolder:
    """Folder of a job, or of a branch."""

    storage: Storage

    @classmethod
    def of(cls, config: JobConfig) -> Self:
        """Return the folder of the job, or of the branch, that a configuration is of."""
        return cls(Storage.of(config.job_folder, config.storage_options or {}))

    @property
    def uri(self) -> str:
        """Location of the folder."""
        return self.storage.uri

    def view(self, name: str, version: int) -> TableView:
        """Return the rows of a state table at a version.

        Raises `StorageError` when the table is gone, or its log cannot be read.
        """
        store = self.storage.table(name)
        try:
            return TableView(ALL_TABLES[name], store.at(version))
        except TableMissingError as error:
            msg = (
                f"state table {store.uri} is gone, or its log is, but checkpoints name its version {version}. Bring the whole job folder "
                "back from a backup that is not older than the job's sinks."
            )
            raise StorageError(msg) from error

    def views(self, versions: Mapping[str, int]) -> ViewOf:
        """Return a function that opens the state tables by name, each at its version."""
        return lambda name: self.view(name, versions[name])


def storage_of(config: JobConfig) -> Storage:
    """Return the folder of a job as storage: also its sinks and sources are reached with these credentials."""
    return JobFolder.of(config).storage
