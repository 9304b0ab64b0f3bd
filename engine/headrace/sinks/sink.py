"""Interface of sinks, for publishing.

A sink records the id of the last checkpoint that was published to it, as a transaction in the same commit as the rows: so
publishing a checkpoint again does nothing. Ids must always grow: Delta silently skips a transaction at or below the last one.

Ids begin at 0 in each incarnation of a job: a new one begins when the job's folder was moved away. So a sink also records the
incarnation that wrote it, a number from the job's first checkpoint. A job must not continue in a sink of another incarnation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from headrace.sinks.table_fit import Staging
from headrace.storage.table import Claim, Correction, Snapshot, Transaction

NEVER = -1
"""Id below all checkpoint ids: the job has published nothing to a sink."""


OUTPUTS: Final = "outputs"
"""Folder of the job's folder with the rows that are staged for writers of tables, by sink."""


class OutputFile(msgspec.Struct, frozen=True):
    """Staged file for a sink: its path in the job's folder, its number of rows, its size in bytes."""

    path: str
    rows: int
    size: int
    partition: dict[str, str | None] = {}
    """Value of each partition column, as text in Delta's log."""
    form: str = ""
    """Form in which it was staged for its table (`Staging.form`)."""
    apart: bool = False
    """True: it lies in the job's folder, although rows are only added: its rows are written to the table, not the file itself."""


class Publication(NamedTuple):
    """Publication that a sink records: a checkpoint, and the job's incarnation (None: none yet)."""

    checkpoint_id: int
    incarnation: int | None = None
    ancestors: tuple[int, ...] = ()
    """Incarnations that reconciliations replaced by this one, newest first. They are in the commit, not in a transaction."""
    correction: Correction | None = None
    """Correction of earlier rows that a promotion makes."""


class Delivery(NamedTuple):
    """Rows of one checkpoint for a sink, as staged files."""

    publication: Publication
    files: Sequence[OutputFile]
    is_current: bool
    """True: the checkpoint is in the lineage of the last one. False: a restore has undone it."""


Deliveries = Callable[[int], Sequence[Delivery]]
"""Function that returns the deliveries of all checkpoints after an id, oldest first."""


class TableFile(NamedTuple):
    """File of the table: its path in the table's folder, and its size in bytes."""

    path: str
    size: int


class FolderDifferences(NamedTuple):
    """Differences between a folder and its table, without files of other programs."""

    shown: set[str]
    """Paths of the files that readers see, in the folder."""

    missing: dict[str, TableFile]
    """Files that the folder lacks or has in another size, by path in the folder."""

    surplus: list[str]
    """Paths of files that the folder has and the latest version of the table lacks."""


class Sink(Protocol):
    """Sink of a job."""

    @property
    def name(self) -> str:
        """Name of the sink in the pipeline and in the job's file."""
        ...

    @property
    def uri(self) -> str:
        """Location of the sink."""
        ...

    @property
    def job(self) -> str:
        """Name of the job in commands of messages."""
        ...

    def create(self, claim: Claim | None = None) -> None:
        """Create the sink, empty and with the claim, unless it exists."""
        ...

    def place_problem(self) -> str | None:
        """Return why the sink must not be created at its location; None if it exists, or may be created."""
        ...

    def owner(self, table: Snapshot, /) -> int | None:
        """Return the number of the sink that owns the table (`headrace.log.sink_history`); None: nobody does."""
        ...

    def claim(self, table: Snapshot, claim: Claim) -> None:
        """Commit a claim on top of `table`, the latest version. Raises `VersionTakenError` when another program wrote meanwhile."""
        ...

    def column_problems(self, before: Collection[str] = ()) -> Iterator[str]:
        """Yield a sentence for each reason why the pipeline's columns do not fit the existing sink.

        `before` are the columns that the pipeline is known to have written: it must not leave one out.
        """
        ...

    def staging(self, table: Snapshot, /) -> Staging:
        """Return how tasks stage rows, so that they fit `table`, the latest version."""
        ...

    def needs_spark(self, table: Snapshot, /) -> tuple[str, ...]:
        """Return the features of the table for which only Spark writes rows, in words; without any, no Spark is needed."""
        ...

    def new_columns(self) -> pa.Schema:
        """Return the columns that the pipeline writes and the existing sink lacks.

        The next write adds them; they are null in existing rows.
        """
        ...

    def rules(self, table: Snapshot, /) -> tuple[str, ...]:
        """Return the rules that the table has for its rows, and that rows of the pipeline may break, in words."""
        ...

    def rule_problem(self, table: Snapshot, /) -> str | None:
        """Return the rule of the table that each write of the sink breaks; None without one."""
        ...

    def latest(self) -> Snapshot:
        """Return the latest version of the sink. Raises `TableMissingError` when it is gone."""
        ...

    def published(self, table: Snapshot, /) -> int:
        """Return the id of the last checkpoint that was published to the sink; `NEVER` without one."""
        ...

    def incarnation(self, table: Snapshot, /) -> int | None:
        """Return the incarnation of the job that published last; None where that publication did not record it."""
        ...

    def write(self, table: Snapshot, files: Sequence[OutputFile], publication: Publication) -> None:
        """Write the rows of a checkpoint on top of `table`, the latest version, with the transaction.

        A write that changes nothing may leave out the transaction; the caller then calls `record`. Raises `VersionTakenError`
        when another program wrote meanwhile, `TableRefusedError` for rows that break a rule of the table, and `OSError` when the
        storage refuses.
        """
        ...

    def record(self, table: Snapshot, publication: Publication) -> None:
        """Commit the transaction without rows."""
        ...

    def sync_commits(self, table: Snapshot) -> None:
        """Make the commits of other programs since the last publication survive a power failure, but for the last one.

        Called before a publication to `table`, which syncs the commit that it builds on. One that was lost would take it along.
        """
        ...

    def sync(self, table: Snapshot) -> None:
        """Make the last publication to `table` survive a power failure: its publisher may have died before it could do that.

        Later commits of other programs are synced as well, since they could hide the loss of the publication.
        """
        ...

    def restore(self, table: Snapshot, version: int, publication: Publication) -> None:
        """Restore the sink to an earlier version, with the transaction."""
        ...

    @property
    def only_appends(self) -> bool:
        """Tell whether rows are only added: the sink has no primary key."""
        ...

    def rewind(self, table: Snapshot, version: int, files: Sequence[OutputFile], publication: Publication) -> None:
        """Bring a sink that only appends back to an earlier version of itself and add files, in one commit with the transaction."""
        ...

    def deliver(self, deliveries: Deliveries) -> None:
        """Bring the rows of the sink's table to readers that do not read the table, if the sink has such readers.

        Called at the end of each publication, also for a checkpoint without rows for the sink: the publisher of the
        checkpoint before may have died before this call. Raises `TableMissingError` when the table is gone, and `OSError` when
        the storage refuses.
        """
        ...


class SendMessages(Protocol):
    """Sender of rows to a topic. Needs a Spark session: the driver has one, the command line has none."""

    def __call__(self, sink: str, files: Sequence[str], headers: Mapping[str, str]) -> None:
        """Send each row of the staged `files` as a message with these headers. Messages with equal keys keep the files' order.

        Raises `ServiceError` when no broker answers, `StorageError` when the topic does not exist or refuses, `ConfigError`
        for settings that no client can start with, and `ClusterError` when Spark is gone. After an error, some messages may
        have been sent.
        """
        ...


class SparkRows(msgspec.Struct, frozen=True, kw_only=True):
    """Staged rows that Spark writes to a table, in one commit with a transaction."""

    uri: str
    """Location of the table."""
    files: tuple[str, ...]
    """URIs of the staged files."""
    transaction: Transaction
    """Application of the sink, and the checkpoint."""
    keys: tuple[str, ...] = ()
    """Columns of the primary key: rows are changes, and are merged. Without any, they are added."""
    variants: frozenset[str] = frozenset()
    """Columns of VARIANT, which are staged as texts of JSON."""


class WriteRows(Protocol):
    """Writer of rows that uses Spark: large merges, and tables that deltalake cannot write. The command line has no session."""

    def __call__(self, rows: SparkRows) -> None:
        """Merge the rows into the table, or add them, with the given transaction.

        Raises `VersionTakenError` when another program changed the table meanwhile, `TableRefusedError` for rows that break a rule
        of the table, `OSError` when the storage refuses, and `ClusterError` when Spark is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class SparkWriters:
    """Writers that use a run's Spark session. Without one, deltalake merges, and messages wait for the next run."""

    write: WriteRows | None = None
    send: SendMessages | None = None


NO_WRITERS: Final = SparkWriters()
