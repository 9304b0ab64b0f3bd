"""Folder of a job, or of a branch of it: the one place from which its tables and files are reached, with the job's credentials."""

from __future__ import annotations

from collections.abc import Mapping

from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.storage.storage import Storage
from headrace.storage.table import TableMissingError
from headrace.tables.schemas import ALL_TABLES, tables_in
from headrace.tables.view import TableView, ViewOf


class JobFolder(Storage, frozen=True):
    """Storage at the folder of a job. Its place holds the job's state tables, and files of its runs."""

    @classmethod
    def of(cls, config: JobConfig) -> JobFolder:
        """Return the folder of the job or branch that a configuration names."""
        return cls(config.job_folder, config.credentials)

    def view(self, table: str, version: int) -> TableView:
        """Return the rows of a state table at a version.

        Raises `StorageError` when the table is gone, or its log cannot be read.
        """
        try:
            return TableView(ALL_TABLES[table], self.table(table).at(version))
        except TableMissingError as error:
            msg = (
                f"state table {self.within(table)} is gone, or its log is, but checkpoints name its version {version}. Bring the whole "
                "job folder back from a backup that is not older than the job's sinks."
            )
            raise StorageError(msg) from error

    def views(self, versions: Mapping[str, int]) -> ViewOf:
        """Return a function that opens the state tables by name, each at its version."""
        return lambda table: self.view(table, versions[table])

    def size_of_tables(self, versions: Mapping[str, int]) -> int:
        """Return the size of the files of state tables, each at its version (bytes). Raises `StorageError` as `view` does."""
        views = self.views(versions)
        return sum(sum(views(table).snapshot.add_actions()["size_bytes"].to_pylist()) for table in tables_in(versions))
