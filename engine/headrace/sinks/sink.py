"""What publishing asks of a sink, of whatever kind.

A sink remembers the id of the last checkpoint that was published to it, as a transaction in the same commit as the rows: so
publishing a checkpoint again does nothing. Ids only ever grow: Delta skips, without a word, a transaction at or below the last one.

Ids begin at 0 in each life of a job. So a sink also remembers the life that wrote it, its incarnation: a number that the job's
first checkpoint got. A sink of another life (the job's folder was moved away and begun anew) is no place to go on from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import msgspec
import pyarrow as pa

from headrace.tables.store import Snapshot

NEVER = -1
"""Below every checkpoint id: the job has published nothing to a sink."""


class OutputFile(msgspec.Struct, frozen=True):
    """A staged file that belongs to a sink: path relative to the job's folder, rows, bytes."""

    path: str
    rows: int
    size: int
    partition: dict[str, str | None] = {}
    """The value of each partition column, as Delta's log writes it."""


class Publication(NamedTuple):
    """What a sink remembers: a checkpoint, and the life of the job that it belongs to (None: of an earlier release)."""

    checkpoint_id: int
    incarnation: int | None = None
    ancestors: tuple[int, ...] = ()
    """The incarnations that this one came from by reconciliations, newest first. The commit has them, and no transaction."""


class Delivery(NamedTuple):
    """What a checkpoint gave to a sink."""

    publication: Publication
    files: Sequence[OutputFile]
    is_current: bool
    """Whether the checkpoint is on the line of the last one; else a restore has left it behind."""


Deliveries = Callable[[int], Sequence[Delivery]]
"""Returns what the checkpoints behind an id gave to a sink, oldest first."""


class Sink(Protocol):
    """One sink of a job."""

    @property
    def name(self) -> str:
        """The name that the pipeline and the job's file give it."""
        ...

    @property
    def uri(self) -> str:
        """Where it is."""
        ...

    def create(self) -> None:
        """Make the sink, empty, unless it is there."""
        ...

    def column_problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why the pipeline's columns do not fit the sink that is there."""
        ...

    def new_columns(self) -> pa.Schema:
        """Return the columns that the pipeline writes and the sink that is there lacks: the next write adds them, null in its rows so far."""
        ...

    def latest(self) -> Snapshot:
        """Return the sink as it is. Raises `TableMissingError` when it is gone."""
        ...

    def published(self, table: Snapshot, /) -> int:
        """Return the id of the last checkpoint that was published to it, `NEVER` if none was."""
        ...

    def incarnation(self, table: Snapshot, /) -> int | None:
        """Return the life of the job that was published to it; None if that did not say."""
        ...

    def write(self, table: Snapshot, files: Sequence[OutputFile], publication: Publication) -> None:
        """Write what a checkpoint gives to the sink on top of `table`, its latest version, with the transaction.

        A write that changes nothing may leave the transaction out; then `record` follows. Raises `VersionTakenError` when
        somebody else wrote meanwhile, and `OSError` when the storage refuses.
        """
        ...

    def record(self, table: Snapshot, publication: Publication) -> None:
        """Commit the transaction alone."""
        ...

    def sync(self, table: Snapshot) -> None:
        """Make what the last checkpoint gave to `table` survive a power failure: whoever published it may have died before that.

        Commits of other programs that came behind it are synced as well: these may be the ones that would hide its loss.
        """
        ...

    def restore(self, table: Snapshot, version: int, publication: Publication) -> None:
        """Bring the sink back to an earlier version of itself, with the transaction."""
        ...

    @property
    def only_appends(self) -> bool:
        """Whether rows are only added to it: it has no primary key."""
        ...

    def rewind(self, table: Snapshot, version: int, files: Sequence[OutputFile], publication: Publication) -> None:
        """Bring a sink that only appends back to an earlier version of itself and add files, in one commit with the transaction."""
        ...

    def deliver(self, deliveries: Deliveries) -> None:
        """Bring what the sink's table has to readers who do not read the table. Whoever reads it needs nothing more.

        Called last in each publication, also of a checkpoint that gives nothing to the sink: whoever published the one before may
        have died in between. Raises `TableMissingError` when the table is gone, and `OSError` when the storage refuses.
        """
        ...


class SendMessages(Protocol):
    """Sends rows to a topic (the driver has a session, the command line has none)."""

    def __call__(self, sink: str, files: Sequence[str], headers: Mapping[str, str]) -> None:
        """Send each row of the staged `files` as a message with these headers, those of a key in the order of the files.

        Raises `ServiceError` when no broker answers, `StorageError` when the topic is not there or refuses, `ConfigError` for
        settings that no client can start with, and `ClusterError` when Spark is gone. Some messages may have been sent then.
        """
        ...


class SparkMerge(Protocol):
    """Publishes a large merge through Spark (the driver has a session, the command line has none)."""

    def __call__(self, uri: str, files: Sequence[str], keys: Sequence[str], *, app_id: str, version: int) -> None:
        """Merge the staged `files` into the table, under the given transaction.

        Raises `VersionTakenError` when somebody else changed the table meanwhile, `OSError` when the storage refuses, and
        `ClusterError` when Spark is gone.
        """
        ...


@dataclass(frozen=True, slots=True)
class SparkWriters:
    """What a run's Spark session does for sinks. Without one, deltalake merges, and messages wait for the next run."""

    merge: SparkMerge | None = None
    send: SendMessages | None = None


NO_WRITERS: Final = SparkWriters()
