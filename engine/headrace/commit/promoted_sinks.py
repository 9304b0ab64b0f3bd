"""Sinks of a promotion: stage files before its commit, to be published like those of any checkpoint.

An append sink gets the rows of the branch; its publication removes the rows that the job has added since the fork. A merge sink gets
changes of the primary keys that either line has written since the fork:

    rows of the branch        as the branch has them
    rows of the job           as the sink had them at the fork, unless the branch has written the key; deleted if it had none
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from headrace import clock
from headrace.commit.protocol import OpenJob
from headrace.plan.columns import ROW_KIND
from headrace.sinks.kinds import sink_of
from headrace.sinks.partitions import folders_of
from headrace.sinks.sink import OutputFile
from headrace.tables.files import Storage, partition_text, read_parquet, stage
from headrace.tables.overlay import DELETED, OverlaySnapshot, own_rows, without
from headrace.tables.store import Snapshot, TableMissingError, storage_errors
from headrace.tables.stored_rows import typed_rows
from headrace.tables.stores import table_store

_PARTITION: Final = "partition."
_ROW: Final = "_row"


def promoted_sinks(job: OpenJob, own: OpenJob, checkpoint_id: int) -> dict[str, list[OutputFile]]:
    """Stage the files of a promotion, by sink. `own` is the open branch, `checkpoint_id` the promotion's."""
    outputs = {}
    for name, table in (own.log.sink_tables(own.last) or {}).items():
        if name not in job.config.sinks:
            continue
        with storage_errors(f"to read sink '{name}' of branch '{own.config.branch}'"):
            try:
                of_branch = table_store(own.config.sinks[name].table_path, own.config.storage_options).latest()
            except TableMissingError:
                continue
            if job.config.sinks[name].mode == "append":
                outputs[name] = [*_added_files(job, name, of_branch, checkpoint_id)]
            else:
                outputs[name] = [*_changes_file(job, name, of_branch, list(table.key), checkpoint_id)]
    return outputs


def _added_files(job: OpenJob, name: str, of_branch: Snapshot, checkpoint_id: int) -> Iterator[OutputFile]:
    """Copy the files that a branch has added to a sink into the folder of the job's sink."""
    folder, storage = sink_of(job.config, name).store.uri, job.config.storage_options
    own = own_rows(of_branch)
    for action in own.add_actions().to_pylist():
        rows = read_parquet(f"{own.uri}/{unquote(action['path'])}", storage)
        values = _partition(action)
        partition = {column: values[column] for column in of_branch.partition_columns}
        path = f"{folders_of(partition)}{_file_name(job, name, checkpoint_id)}"
        staged = stage(folder, path, rows, storage)
        yield OutputFile(staged.path, staged.rows, staged.size, partition)


def _changes_file(
    job: OpenJob, name: str, of_branch: Snapshot, key: list[str], checkpoint_id: int
) -> Iterator[OutputFile]:
    """Stage changes that make a merge sink of the job equal to the branch's; nothing if both are equal."""
    storage = job.config.storage_options
    live = table_store(job.config.sinks[name].table_path, storage).latest()
    changes = _changes(live, of_branch, key, storage)
    if len(changes):
        path = f"outputs/{name}/{_file_name(job, name, checkpoint_id)}"
        staged = stage(job.config.job_folder, path, changes, storage)
        yield OutputFile(staged.path, staged.rows, staged.size)


def _file_name(job: OpenJob, name: str, checkpoint_id: int) -> str:
    return f"{checkpoint_id:010d}-{name}-promotion-{job.attempt_id[:12]}-{clock.unique_id()[:12]}.parquet"


def _changes(live: Snapshot, of_branch: Snapshot, key: list[str], storage: Storage) -> pa.Table:
    """Return changes by primary key that make `live` equal to the table of the branch.

    Reads only files that are not in both tables: they have all differences.
    """
    base = of_branch.base if isinstance(of_branch, OverlaySnapshot) else None
    own, schema = own_rows(of_branch), of_branch.schema
    common = live.files() & (base.files() if base is not None else set())
    written = own.read(pa.schema([*schema, pa.field(DELETED, pa.bool_())])) if base is not None else own.read(schema)
    now = _rows_of_files(live, live.files() - common, schema, storage)
    then = _rows_of_files(base, base.files() - common, schema, storage) if base is not None else schema.empty_table()
    if base is None:
        kept = written
    else:
        is_deleted = pc.fill_null(written[DELETED], fill_value=False)
        kept = written.filter(pc.invert(is_deleted)).select(schema.names)
    target = pa.concat_tables([kept, without(then, written.select(key))])
    deleted_keys = pa.concat_tables([now.select(key), written.select(key)])
    deleted_keys = without(deleted_keys.group_by(key, use_threads=False).aggregate([]), target.select(key))
    return pa.concat_tables(
        [_with_kind(_unequal(target, now, key), "+U"), _with_kind(_padded(deleted_keys, schema), "-D")]
    )


def _rows_of_files(table: Snapshot, files: Collection[str], schema: pa.Schema, storage: Storage) -> pa.Table:
    """Return the rows of some data files of a table."""
    parts = [schema.empty_table()]
    for action in table.add_actions().to_pylist():
        path = unquote(action["path"])
        if path not in files:
            continue
        rows = read_parquet(f"{table.uri}/{path}", storage)
        for column, text in _partition(action).items():
            value = pa.scalar(text, pa.string()).cast(schema.field(column).type)
            rows = rows.append_column(column, pa.repeat(value, len(rows)))
        parts.append(typed_rows(table.uri, rows, schema))
    return pa.concat_tables(parts)


def _partition(action: dict[str, object]) -> dict[str, str | None]:
    """Return the value of each partition column of a file, as Delta's log writes it."""
    return {
        name.removeprefix(_PARTITION): partition_text(value)
        for name, value in action.items()
        if name.startswith(_PARTITION)
    }


def _unequal(rows: pa.Table, others: pa.Table, key: list[str]) -> pa.Table:
    """Return the rows that `others` lacks or has with other values. `others` has one row for each key."""
    numbered = rows.select(key).append_column(_ROW, pa.array(range(len(rows)), pa.int64()))
    theirs = others.select(key).append_column("_other", pa.array(range(len(others)), pa.int64()))
    pairs = numbered.join(theirs, keys=key, join_type="left outer", use_threads=False).sort_by(_ROW)
    is_same = pc.is_valid(pairs["_other"])
    beside = others.take(pairs["_other"].combine_chunks())
    for column in rows.schema.names:
        is_same = pc.and_(is_same, _equal(rows[column], beside[column]))
    return rows.filter(pc.invert(is_same))


def _equal(left: pa.ChunkedArray, right: pa.ChunkedArray) -> pa.ChunkedArray | pa.BooleanArray:
    """Return a mask of the rows where two columns have the same value; null equals null."""
    if pa.types.is_nested(left.type):
        return pa.array([value == other for value, other in zip(left.to_pylist(), right.to_pylist(), strict=True)])
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    return pc.or_(pc.fill_null(pc.equal(left, right), fill_value=False), both_null)


def _padded(keys: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the keys as rows of a schema, with null in all other columns."""
    columns = [
        keys[column.name].cast(column.type) if column.name in keys.schema.names else pa.nulls(len(keys), column.type)
        for column in schema
    ]
    return pa.Table.from_arrays(columns, names=schema.names)


def _with_kind(rows: pa.Table, kind: str) -> pa.Table:
    names: Sequence[str] = [*rows.schema.names, ROW_KIND]
    return pa.Table.from_arrays([*rows.columns, pa.repeat(pa.scalar(kind), len(rows))], names=names)
