"""The few Delta operations that the commit protocol is made of, through deltalake (no JVM).

Reading goes through `DeltaTable.scan`, never `to_pyarrow_table`: the latter calls back into Python
from Arrow's threads, which can abort the process when it ends (seen in half of all short runs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from headrace import clock
from headrace.checkpoint.files import StagedFile
from headrace.errors import EngineBug, StorageError

Options = Mapping[str, str] | None

CHECKPOINT_METADATA = "headrace.checkpoint"
"""Key in a sink's commit information that names the checkpoint it was published for."""


def properties(
    *, app_id: str | None = None, app_version: int = 0, metadata: Mapping[str, str] | None = None
) -> CommitProperties:
    """Properties of a commit that must be exactly the next version, or fail.

    deltalake rebases a commit that finds its version taken, in silence; with no retries it fails
    instead, and that is the compare-and-set on which fencing rests.
    """
    transactions = [Transaction(app_id, app_version)] if app_id is not None else None
    return CommitProperties(
        custom_metadata=dict(metadata) if metadata else None,
        max_commit_retries=0,
        app_transactions=transactions,
    )


ONE_ATTEMPT = properties()


@contextmanager
def storage_errors(doing: str) -> Iterator[None]:
    """Turn what disks, object stores and Delta say into a `StorageError` that tells what was being done.

    A commit whose version is taken (`CommitFailedError`) and a missing table pass through: callers
    know what those mean.
    """
    try:
        yield
    except (CommitFailedError, TableNotFoundError):
        raise
    except (DeltaError, OSError, pa.ArrowException) as error:  # the last one: a file that is gone or damaged
        msg = (
            f"storage refused {doing}: {error}. What was committed before is untouched; "
            "free space or repair, then run again."
        )
        raise StorageError(msg) from error


def open_table(uri: str, *, version: int | None = None, storage: Options = None) -> DeltaTable:
    """Open a table at a version (default: the latest)."""
    return DeltaTable(uri, version=version, storage_options=dict(storage) if storage else None)


def data_files(table: DeltaTable) -> set[str]:
    """Return the data files of a table at its version, by their paths relative to the table's folder, as the storage has them.

    The log has these paths as URLs: the folder of partition `a b` is `p=a%20b`, and stands there as `p=a%2520b`.
    """
    return {unquote(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()}


def latest_version(uri: str, *, storage: Options = None) -> int:
    """The latest version of a table."""
    return open_table(uri, storage=storage).version()


def read(
    table: DeltaTable,
    schema: pa.Schema,
    *,
    columns: Sequence[str] | None = None,
    predicate: str | None = None,
) -> pa.Table:
    """Read rows, with files pruned and rows filtered by an SQL `predicate`.

    `schema` gives the Arrow types wanted (the reader itself answers with string views). A column that the
    table does not have, since an older version of this program made it, is null.
    """
    names = list(columns) if columns is not None else schema.names
    wanted = pa.schema([schema.field(name) for name in names])
    there = {field.name for field in table.schema().fields}
    present = [name for name in names if name in there]
    with storage_errors(f"to read {table.table_uri}"):
        rows = pa.RecordBatchReader.from_stream(table.scan(columns=present, predicate=predicate)).read_all()
    for name in names:
        if name not in there:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, schema.field(name).type))
    return rows.select(names).cast(wanted)


def create_table(uri: str, schema: pa.Schema, *, storage: Options = None) -> None:
    """Make an empty table at version 0 unless there is one."""
    DeltaTable.create(
        uri,
        schema=schema,
        mode="ignore",
        storage_options=dict(storage) if storage else None,
        # Old versions must stay readable for as long as retention says; vacuum is ours to call.
        configuration={"delta.logRetentionDuration": "interval 3650 days"},
    )


def add_files(
    uri: str,
    parent_version: int,
    schema: pa.Schema,
    files: Sequence[StagedFile],
    *,
    overwrite: bool = False,
    commit: CommitProperties = ONE_ATTEMPT,
    storage: Options = None,
) -> int:
    """Commit staged files as version `parent_version + 1`; return that version.

    Raises `CommitFailedError` when somebody else has taken that version.
    """
    table = open_table(uri, version=parent_version, storage=storage)
    now = clock.now()
    actions = [AddAction(f.path, f.size, {}, now, True, f.statistics()) for f in files]
    table.create_write_transaction(
        actions,  # type: ignore[arg-type]  # a list of AddAction; the stub wants the union invariantly
        mode="overwrite" if overwrite else "append",
        schema=schema,
        commit_properties=commit,
    )
    return _landed(uri, parent_version + 1, storage)


def add_columns(
    uri: str,
    parent_version: int,
    columns: Sequence[pa.Field],
    *,
    commit: CommitProperties = ONE_ATTEMPT,
    storage: Options = None,
) -> int:
    """Add columns, null in all rows so far, as version `parent_version + 1`; return that version. No file is rewritten.

    Raises `CommitFailedError` when somebody else has taken that version.
    """
    table = open_table(uri, version=parent_version, storage=storage)
    table.alter.add_columns(Schema.from_arrow(pa.schema(columns)).fields, commit_properties=commit)
    return _landed(uri, parent_version + 1, storage)


def restore_table(
    uri: str,
    parent_version: int,
    target: int,
    *,
    commit: CommitProperties = ONE_ATTEMPT,
    storage: Options = None,
) -> int:
    """Make the content of version `target` the latest, as version `parent_version + 1`.

    Raises `CommitFailedError` when somebody else has taken that version.
    """
    table = open_table(uri, storage=storage)
    if table.version() != parent_version:
        msg = f"{uri} is at version {table.version()}, not {parent_version}"
        raise CommitFailedError(msg)
    table.restore(target, commit_properties=commit)
    return _landed(uri, parent_version + 1, storage)


def _landed(uri: str, expected: int, storage: Options) -> int:
    if latest_version(uri, storage=storage) < expected:
        msg = f"a commit to {uri} did not land at version {expected}"
        raise EngineBug(msg)
    return expected
