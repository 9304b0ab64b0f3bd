"""Jobs over few tables that they share by mistake, on a disk in memory; and what is in these tables."""

from __future__ import annotations

from copy import deepcopy

from msgspec.structs import replace

from headrace.commit.protocol import open_job
from headrace.log.checkpoint import Kind
from headrace.log.log import CheckpointLog
from headrace.plan.loader import plan_of, sink_schemas
from headrace.storage.storage import Storage
from headrace.storage.table import OWNER, TableMissingError
from headrace.tables.folder import JobFolder
from headrace.testing._memory_disk import disk_and_path, memory_disk
from tests.unit.support.memory_job import BOARD, REMINDERS, board, memory_config, reminder


class Sharer:
    """A job whose board is one of the shared tables. Its rows have its name and its life."""

    def __init__(self, disk, name, table):
        self.disk, self.name, self.table, self.life = disk, name, table, 0
        self.rows, self.sink, self.pipeline = 0, BOARD, None

    @property
    def config(self):
        """Return the job's configuration as it is bound now."""
        config = memory_config(self.disk)
        sinks = {
            self.sink: replace(config.sinks[BOARD], path=self.path),
            REMINDERS: replace(config.sinks[REMINDERS], path=f"memory://{self.disk}/{self.name}/{self.life}"),
        }
        return replace(config, job=self.name, sinks=sinks, pipeline=self.pipeline or config.pipeline)

    @property
    def path(self):
        """Return the URI of the job's board."""
        return f"memory://{self.disk}/lake/{self.table}"

    @property
    def label(self):
        """Return the beginning of the job's customers in its present life."""
        return f"{self.name}{self.life}-"

    @property
    def log(self):
        """Return the job's log."""
        return CheckpointLog(JobFolder(self.config.job_folder))

    def copied(self, name):
        """Copy the job's folder to that of another name; return the job with that name, whose board is the same table."""
        other = Sharer(self.disk, name, self.table)
        other.life, other.rows = self.life, self.rows
        old, new = (disk_and_path(job.config.job_folder)[1] for job in (self, other))
        disk = memory_disk(self.disk)
        for content in (disk.tables, disk.files):
            content |= {
                new + path.removeprefix(old): deepcopy(content[path])
                for path in [*content]
                if path.startswith(f"{old}/")
            }
        return other

    def run(self, config=None):
        """Commit a micro-batch with a row of its own; return its customer."""
        with open_job(config or self.config, "run", create=True, plan=plan_of(self.config.code)) as opened:
            return self.commit_in(opened)

    def commit_in(self, opened):
        """Commit a micro-batch in an open job; return its customer."""
        self.rows += 1
        customer = f"{self.label}{self.rows}"
        outputs = {**board(opened, customer, item=customer, sink=self.sink), **reminder(opened, customer)}
        opened.commit(Kind.BATCH, outputs=outputs)
        return customer

    def board_schema(self):
        """Return the columns of the job's board."""
        return sink_schemas(plan_of(self.config.code), self.config.appended)[self.sink][0]


def customers_at(uri):
    """Return the customers in a board; None where there is no table."""
    try:
        table = Storage(uri).table().latest()
    except TableMissingError:
        return None
    return sorted(table.read(table.schema)["customer"].to_pylist())


def owner_at(uri):
    """Return the number of a table's owner."""
    return Storage(uri).table().latest().transaction(OWNER)


def lake_of(disk):
    """Return the versions of all shared tables, and their files."""
    content = memory_disk(disk)
    tables = {path: list(versions) for path, versions in content.tables.items() if path.startswith("lake/")}
    return tables, {path for path in content.files if path.startswith("lake/")}


def delete(uri):
    """Delete a table as a person would."""
    Storage(uri).table()
    disk = memory_disk(uri.removeprefix("memory://").partition("/")[0])
    path = uri.removeprefix("memory://").partition("/")[2]
    disk.tables.pop(path, None)
    for file in [file for file in disk.files if file.startswith(f"{path}/")]:
        del disk.files[file]
