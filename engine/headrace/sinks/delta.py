"""Delta table as a sink: rows are appended, or merged by primary key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Self

import msgspec
import pyarrow as pa
from pyarrow import fs

from headrace import clock
from headrace.config import JobConfig
from headrace.errors import StorageError
from headrace.names import counted
from headrace.records.value_arrays import UnfitRecord
from headrace.sinks.layout import layout_problems
from headrace.sinks.sink import (
    NEVER,
    NO_WRITERS,
    OUTPUTS,
    Deliveries,
    FolderDifferences,
    OutputFile,
    Publication,
    SparkRows,
    SparkWriters,
    WriteRows,
)
from headrace.sinks.table_fit import Staging, TableFit
from headrace.storage.delta_commits import APPEND_ONLY
from headrace.storage.files import StagedFile
from headrace.storage.overlay import OverlaySnapshot, changes_of_branch, own_rows
from headrace.storage.refusals import TableRefusedError
from headrace.storage.storage import Storage
from headrace.storage.table import LOG, OWNER, Claim, CommitInfo, Snapshot, TableMissingError, TableStore, Transaction
from headrace.tables.folder import JobFolder


@dataclass(frozen=True, slots=True)
class DeltaTableSink:
    """Sink that is a Delta table."""

    name: str
    store: TableStore
    app_id: str
    """Application id of the sink's transactions."""

    folder: JobFolder
    """Folder of the job. Rows of a merge are staged there."""

    mode: str
    schema: pa.Schema
    partition_by: tuple[str, ...] = ()
    cluster_by: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    """Columns of the primary key; empty for a sink in append mode."""

    where: str = ""
    """Place of its path in the job's file, for messages."""

    job: str = "JOB"
    """Name of the job in commands of messages."""

    message_key: str | None = None
    """Column with the keys of messages, for a sink that sends messages."""

    spark_above_rows: int = 0
    writers: SparkWriters = field(default=NO_WRITERS, repr=False)

    @classmethod
    def of(
        cls,
        config: JobConfig,
        name: str,
        schema: pa.Schema | None = None,
        keys: tuple[str, ...] = (),
        writers: SparkWriters = NO_WRITERS,
    ) -> Self:
        """Make a sink of a job. A caller that only asks for the last publication needs no schema. Read nothing."""
        sink = config.sinks[name]
        return cls(
            name=name,
            store=JobFolder.of(config).at(sink.table_path).table(),
            app_id=f"{config.stored_name}/{name}",
            folder=JobFolder.of(config),
            mode=sink.mode,
            partition_by=sink.partition_by,
            cluster_by=sink.cluster_by,
            schema=schema or pa.schema([]),
            keys=keys,
            where=config.where(f"sinks.{name}.path"),
            job=config.job,
            message_key=sink.key,
            spark_above_rows=config.publish.spark_above_rows,
            writers=writers,
        )

    @property
    def uri(self) -> str:
        """Location of the table."""
        return self.store.uri

    @property
    def place(self) -> Storage:
        """Place of the table, or of the folder that readers see."""
        return self.folder.at(self.uri)

    def create(self, claim: Claim | None = None) -> None:
        """Create the table, empty and with the claim, unless it exists."""
        self.store.create(self.schema, self.partition_by, info=CommitInfo(claim=claim))

    def place_problem(self) -> str | None:
        """Return why the table must not be created at its location; None if it exists, or may be created."""
        try:
            self.latest()
        except TableMissingError:
            return self._problem_of_new()
        return None

    def _problem_of_new(self) -> str | None:
        """Return why a missing table must not be created: another Delta table has the folder, and its VACUUM would delete it."""
        store, path = self.place.file_system()
        table = next((folder for folder in PurePosixPath(path).parents if _is_table(store, folder)), None)
        if table is None:
            return None
        return (
            f"sink '{self.name}' at {self.uri} would be in the folder of the Delta table {table}: a VACUUM of that table would delete "
            "it. Nothing was written: give the sink another path."
        )

    def owner(self, table: Snapshot, /) -> int | None:
        """Return the number of the sink that owns the table; None: nobody does."""
        return table.transaction(OWNER) or None

    def claim(self, table: Snapshot, claim: Claim) -> None:
        """Commit a claim on top of `table`, without rows. Raises `VersionTakenError` when another program wrote meanwhile."""
        self.store.append(table.version, table.schema, [], CommitInfo(claim=claim))

    def take_over(self, table: Snapshot, claim: Claim) -> None:
        """Commit a claim on another owner's table, and remove all rows; the new owner has published nothing to it.

        The rows stay in the table's history. Raises `VersionTakenError` when another program wrote meanwhile.
        """
        positions = tuple(Transaction(app_id, NEVER) for app_id in self._app_ids)
        self.store.replace(table.version, table.schema, [], CommitInfo(claim=claim, further=positions))

    def hand_over(self, table: Snapshot, claim: Claim, to: DeltaTableSink) -> None:
        """Give the table, with its rows and the sink's position, to the sink under its new name.

        Raises `VersionTakenError` when another program wrote meanwhile.
        """
        positions = [
            Transaction(new, NEVER if (number := table.transaction(old)) is None else number)
            for old, new in zip(self._app_ids, to._app_ids, strict=True)
        ]
        moved = msgspec.structs.replace(claim, moved=True)
        self.store.append(table.version, table.schema, [], CommitInfo(claim=moved, further=tuple(positions)))

    def column_problems(self, before: Collection[str] = ()) -> Iterator[str]:
        """Yield a sentence for each reason why the pipeline's columns do not fit the existing table.

        `before` are the columns that the pipeline is known to have written: it must not leave one out.
        """
        wrong = [*layout_problems(self.schema, self.partition_by, self.cluster_by)]
        yield from (f"sinks.{self.name}.{problem}" for problem in wrong)
        if wrong:
            return
        try:
            fit = self.fit(self.latest())
        except TableMissingError:
            return
        table, elsewhere = fit.table, f"Nothing was written: take the change back, or {self._elsewhere(fit.table)}."
        if self.partition_by and table.partition_columns != self.partition_by:
            yield (
                f"sink '{self.name}' at {self.uri} is partitioned by {', '.join(table.partition_columns) or 'nothing'}; the job's file says "
                f"partition_by: {list(self.partition_by)}. A table keeps the partitions that it was created with. Nothing was written: "
                f"change sinks.{self.name}.partition_by back, or {self._elsewhere(table)}."
            )
            return
        others = {*table.schema.names} - {*self.schema.names}
        if {*before} & others or (others and fit.missing and self.owner(table) is None):
            yield (
                f"sink '{self.name}' at {self.uri} has the columns {', '.join(sorted(table.schema.names))}; the pipeline writes "
                f"{', '.join(self.schema.names)}. {elsewhere}"
            )
            return
        if problems := [*fit.problems()]:
            yield f"sink '{self.name}' at {self.uri} {'; it '.join(problems)}. {elsewhere}"
        for column, kind in fit.misfits():
            yield (
                f"column '{column.name}' of sink '{self.name}' at {self.uri} is {kind}; the pipeline writes "
                f"{column.type}. {elsewhere}"
            )

    def fit(self, table: Snapshot, /) -> TableFit:
        """Return how the pipeline's columns fit a version of the table."""
        return TableFit(self.schema, self.keys, table)

    def staging(self, table: Snapshot, /) -> Staging:
        """Return how tasks stage rows for the table."""
        return self.fit(table).staging

    def _elsewhere(self, table: Snapshot) -> str:
        """Return the way on to another table, as a clause. What was published to the present one is to be published again."""
        way = f"give the sink another path ({self.where}), or move the old table away"
        if self.published(table) == NEVER:
            return way
        return f"{way}, then run 'headrace reconcile {self.job} --apply --why ...': the next run fills the new table from the start"

    def new_columns(self) -> pa.Schema:
        """Return the columns that the pipeline writes and the existing table lacks."""
        try:
            return pa.schema(self.fit(self.latest()).missing)
        except TableMissingError:
            return pa.schema([])

    def latest(self) -> Snapshot:
        """Return the latest version of the table. Raises `TableMissingError` where there is none."""
        return self.store.latest()

    def published(self, table: Snapshot, /) -> int:
        """Return the id of the last checkpoint that was published to the table; `NEVER` without one."""
        version = table.transaction(self.app_id)
        return NEVER if version is None else version

    def sent(self, table: Snapshot, /) -> int:
        """Return the id of the last checkpoint that readers have got; `NEVER` without one. They read the table, unless a sink sends messages."""
        return self.published(table)

    def incarnation(self, table: Snapshot, /) -> int | None:
        """Return the incarnation of the job that published last; None where that publication did not record it."""
        incarnation = table.transaction(self._incarnation_id)
        return None if incarnation == NEVER else incarnation

    def write(self, table: Snapshot, files: Sequence[OutputFile], publication: Publication) -> None:
        """Write the rows of a checkpoint on top of `table`, its latest version, with the transaction.

        deltalake's MERGE makes no commit when it changes nothing (Spark's does), so the transaction is not recorded. That
        happens when a key was added and deleted within a micro-batch, or when another program has removed the row to delete.
        Raises `VersionTakenError` when another program wrote to the table meanwhile, `StorageError` when a staged file is gone
        or cut off, or where Spark is needed and not there, `TableRefusedError` for rows that break a rule of the table, and `OSError`
        when the storage refuses.
        """
        self._check_staged(files, publication.checkpoint_id)
        fit = self.fit(table)
        write = self._spark_writer(fit, files, publication)
        # Checked at each write: a restored table has the columns of its old version again.
        parent, names = self._with_columns(fit)
        if write is not None:
            write(self._rows_for_spark(fit, files, publication))
            for version in range(table.version, self.latest().version):
                self.store.sync(version + 1)
        elif not self.only_appends:
            changes = _fitted(fit, self._changes(names, files))
            self.store.merge(parent, changes_of_branch(table, changes), self.keys, self._info(publication))
        elif _takes(fit, files):
            self.store.append(parent, self.schema, _staged(files), self._info(publication))
        else:  # a file of the table would add rows that break a rule, columns under other names, or values of other types
            rows = _fitted(fit, self._rows_of(files))
            self.store.append_rows(parent, rows, self._info(publication), is_checked=True)

    def _spark_writer(self, fit: TableFit, files: Sequence[OutputFile], publication: Publication) -> WriteRows | None:
        """Return the writer of Spark where it is needed, or is faster. Raises `StorageError` where it is needed and not there."""
        if isinstance(fit.table, OverlaySnapshot):  # the table of a branch
            return None
        if needed := fit.needs_spark:
            if self.writers.write is None:
                msg = (
                    f"checkpoint {publication.checkpoint_id} is committed, and only Spark can write it to sink '{self.name}' at {self.uri} "
                    f"(the table has {', '.join(needed)}). The next run on Spark publishes it first: headrace run {self.job}"
                )
                raise StorageError(msg)
            return self.writers.write
        is_large = not self.only_appends and sum(file.rows for file in files) > self.spark_above_rows
        return self.writers.write if is_large and _spark_takes(self.schema) else None

    def _rows_for_spark(self, fit: TableFit, files: Sequence[OutputFile], publication: Publication) -> SparkRows:
        return SparkRows(
            uri=self.uri,
            files=self._whole_files(files, publication),
            transaction=Transaction(self.app_id, publication.checkpoint_id),
            keys=self.keys,
            variants=fit.form.variants,
        )

    def _whole_files(self, files: Sequence[OutputFile], publication: Publication) -> tuple[str, ...]:
        """Return the URIs of staged files with all columns: files of a table lack those of its partitions, and are staged once more."""
        whole = [file for file in files if not file.partition]
        uris = [self._folder_of(file).within(file.path) for file in whole]
        if len(whole) < len(files):
            name = f"{OUTPUTS}/{self.name}/{publication.checkpoint_id:010d}-whole-{clock.unique_id()[:12]}.parquet"
            rows = self._rows_of([file for file in files if file.partition])
            uris.append(self.folder.within(self.folder.stage(name, rows).path))
        return tuple(uris)

    def needs_spark(self, table: Snapshot, /) -> tuple[str, ...]:
        """Return the features of the table for which only Spark writes rows, in words; without any, no Spark is needed."""
        return () if isinstance(table, OverlaySnapshot) else self.fit(table).needs_spark

    def _changes(self, names: Sequence[str], files: Sequence[OutputFile]) -> pa.Table:
        """Read staged changes, with nulls in columns that the pipeline did not have when they were staged."""
        changes = pa.concat_tables([self.folder.parquet(file.path) for file in files])
        for name in names:
            if name not in changes.schema.names and name in self.schema.names:
                changes = changes.append_column(name, pa.nulls(len(changes), self.schema.field(name).type))
        return changes

    def _rows_of(self, files: Sequence[OutputFile]) -> pa.Table:
        """Read the staged rows of an append, with the values of partition columns, which files of the table lack."""
        parts = []
        for file in files:
            rows = self._folder_of(file).parquet(file.path)
            for name, text in file.partition.items():
                value = pa.scalar(text, pa.string()).cast(self.schema.field(name).type)
                rows = rows.append_column(name, pa.repeat(value, len(rows)))
            parts.append(rows.select([name for name in self.schema.names if name in rows.schema.names]))
        return pa.concat_tables(parts)

    def _folder_of(self, file: OutputFile) -> Storage:
        """Return the folder that a staged file lies in: the table's for one that becomes a file of it."""
        return self.folder.at(self.store.uri) if self.only_appends and not file.apart else self.folder

    def rules(self, table: Snapshot, /) -> tuple[str, ...]:
        """Return the rules that the table has for its rows, except that columns without nulls have none."""
        return self.fit(table).rules

    def rule_problem(self, table: Snapshot, /) -> str | None:
        """Return the rule of the table that each write of the sink breaks: a merge updates rows."""
        return None if self.only_appends or APPEND_ONLY not in table.rules else APPEND_ONLY

    @property
    def only_appends(self) -> bool:
        """Tell whether rows are only added: the sink has no primary key."""
        return self.mode == "append"

    def rewind(self, table: Snapshot, version: int, files: Sequence[OutputFile], publication: Publication) -> None:
        """Bring the table back to an earlier version and add files, in one commit with the transaction. Raises as `write` does.

        Where files cannot become files of the table, these are two commits: the second one has the transaction. After a crash
        between them the next try makes both.
        """
        self._check_staged(files, publication.checkpoint_id)
        fit = self.fit(table)
        if _takes(fit, files) and fit.form.has_plain_files:
            parent, _ = self._with_columns(fit)
            self.store.rewind(parent, version, self.schema, _staged(files), self._info(publication))
            return
        self._spark_writer(fit, files, publication)  # raises before anything is changed
        if publication.correction is not None:
            # A job may read the table between the two commits, each of which changes more partitions than both together.
            publication = publication._replace(
                correction=msgspec.structs.replace(publication.correction, partitions=None)
            )
        if version != table.version:
            # Without the position: the second commit has it. But it is the job's, and not somebody else's.
            info = CommitInfo(published_by=self._info(publication).published_by, correction=publication.correction)
            self.store.restore(table.version, version, info)
        self.write(self.latest(), files, publication) if files else self.record(self.latest(), publication)

    def _with_columns(self, fit: TableFit) -> tuple[int, list[str]]:
        """Add the columns that a table lacks; return its version then, and all its columns."""
        version, names = fit.table.version, [*fit.columns.names]
        if not fit.missing:
            return version, names
        return self.store.add_columns(version, fit.missing), names + [column.name for column in fit.missing]

    def record(self, table: Snapshot, publication: Publication) -> None:
        """Commit the transaction without rows."""
        self.store.append(table.version, own_rows(table).schema, [], self._info(publication))

    def sync_commits(self, table: Snapshot) -> None:
        """Make the commits of other programs since the last publication survive a power failure, but for the last one."""
        for version in range(_published_at(table), table.version):
            self.store.sync_commit(version)

    def sync(self, table: Snapshot) -> None:
        """Make the last publication to `table`, and all commits after it, survive a power failure."""
        for version in range(_published_at(table), table.version + 1):
            self.store.sync(version)

    def lost_files(self, files: Sequence[OutputFile]) -> list[str]:
        """Return the staged files that are gone or cut off, each with its present state."""
        return [lost for apart in (False, True) for lost in self._lost([file for file in files if file.apart is apart])]

    def _lost(self, files: Sequence[OutputFile]) -> Iterator[str]:
        """Yield the files of one folder that are gone or cut off, each with its present state."""
        if not files:
            return
        folder = self._folder_of(files[0])
        sizes = folder.sizes_of(file.path for file in files)
        for file in files:
            if (size := sizes[file.path]) != file.size:
                state = "is gone" if size is None else f"has {size:,} of {file.size:,} bytes"
                yield f"{folder.within(file.path)} {state}"

    def restore(self, table: Snapshot, version: int, publication: Publication) -> None:
        """Restore the table to an earlier version, with the transaction."""
        if version != table.version and not self._has_same_rows(table, version):
            self.store.restore(table.version, version, self._info(publication))

    def _has_same_rows(self, table: Snapshot, version: int) -> bool:
        """Return whether only properties and rules of the table have changed since a version. A restore would take them back."""
        later = [commit for commit in table.history(table.version - version) if commit.version > version]
        return all(commit.keeps_rows for commit in later) and table.files() == self.store.at(version).files()

    def deliver(self, deliveries: Deliveries) -> None:
        """Do nothing: readers read the table."""

    def differences(self) -> FolderDifferences | None:
        """Return the differences between the files that readers see and those of the table; None where readers read the table."""
        return None

    def _check_staged(self, files: Sequence[OutputFile], checkpoint_id: int) -> None:
        """Raise `StorageError` when a staged file is gone or cut off: a commit with it would damage the sink."""
        if lost := self.lost_files(files):
            msg = (
                f"checkpoint {checkpoint_id} is committed, and cannot be published to sink '{self.name}' at {self.uri}: staged file "
                f"{lost[0]} ({len(lost)} of {counted(len(files), 'file')} damaged). Nothing was written to this sink. Bring the files "
                f"back and run again; or go back to the checkpoint before with 'headrace reconcile {self.job}', and the next run takes in the same input again."
            )
            raise StorageError(msg)

    @property
    def _incarnation_id(self) -> str:
        return f"{self.app_id}/incarnation"

    @property
    def _app_ids(self) -> tuple[str, ...]:
        """Application ids of the transactions that give the sink's position."""
        return self.app_id, self._incarnation_id

    def _info(self, publication: Publication) -> CommitInfo:
        number, incarnation, ancestors, correction = publication
        return CommitInfo(
            checkpoint_id=number,
            published_by=() if incarnation is None else (incarnation, *ancestors),
            transaction=Transaction(self.app_id, number),
            incarnation=None if incarnation is None else Transaction(self._incarnation_id, incarnation),
            correction=correction,
        )


_NOT_OF_SPARK = frozenset(" ,;{}()\n\t=")
"""Characters that Spark's writer of Delta tables refuses in names of columns without column mapping."""


def _spark_takes(fields: Iterable[pa.Field]) -> bool:
    """Return whether Spark writes columns of these names, also within structs, lists and maps."""
    return all(
        _NOT_OF_SPARK.isdisjoint(field.name)
        and (
            not pa.types.is_nested(field.type)
            or _spark_takes(field.type.field(place) for place in range(field.type.num_fields))
        )
        for field in fields
    )


def _is_table(store: fs.FileSystem, folder: PurePosixPath) -> bool:
    """Return whether a folder is known to be a Delta table. The job may not be allowed to look into it."""
    try:
        return store.get_file_info(str(folder / LOG)).type is not fs.FileType.NotFound
    except OSError:
        return False


def _takes(fit: TableFit, files: Sequence[OutputFile]) -> bool:
    """Return whether staged files can become files of the table as it is now: it may have changed since they were staged."""
    staging = fit.staging
    return staging.in_table and all(not file.apart and file.form in {"", staging.form} for file in files)


def _fitted(fit: TableFit, rows: pa.Table) -> pa.Table:
    """Return staged rows in the types that the table has now. Raises `TableRefusedError` for a value that it cannot hold any more."""
    try:
        return fit.staging.fitted(rows)
    except UnfitRecord as error:
        msg = f"{error.field} {error.why}: the table has changed since the rows were staged"
        raise TableRefusedError(msg) from error


def _staged(files: Sequence[OutputFile]) -> list[StagedFile]:
    return [StagedFile(file.path, file.rows, file.size, partition=file.partition) for file in files]


def _published_at(table: Snapshot) -> int:
    """Return the version of the last commit with a checkpoint; without one, that of the oldest commit in the log."""
    limit = 1
    while True:
        commits = table.history(limit)
        last = next((commit.version for commit in commits if commit.info.checkpoint_id is not None), None)
        if last is not None or len(commits) < limit:
            return commits[-1].version if last is None else last
        limit *= 8
