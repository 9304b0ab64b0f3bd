"""Partitions of a sink's rows, with values in the form of Delta's log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from headrace.records.value_arrays import UnfitPartition
from headrace.storage.files import partition_text

PARTITION_TYPES: Final = (pa.string(), pa.int64(), pa.int32(), pa.int16(), pa.int8(), pa.bool_(), pa.date32())
"""Types that a partition column can have."""

_NUMBER: Final = "__row"

Partition = Mapping[str, str | None]
"""Value of each partition column of a file, as text in Delta's log; None is null."""


def layout_problems(schema: pa.Schema, partition_by: Sequence[str], cluster_by: Sequence[str]) -> Iterator[str]:
    """Yield the reasons why a schema cannot be partitioned and clustered like this, each after its key in the job's file."""
    for key, columns in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in columns:
            if name not in schema.names:
                yield f"{key}: there is no column {name} (the sink has: {', '.join(schema.names)})"
        if len({*columns}) < len(columns):
            yield f"{key}: a column is there twice"
    for name in partition_by:
        if name in schema.names and (kind := schema.field(name).type) not in PARTITION_TYPES:
            yield f"partition_by: {name} is {kind}; a table is partitioned by texts, whole numbers, days or truth values"
        if name in cluster_by:
            yield f"cluster_by: {name} is in partition_by, so all rows of a file have the same one"
    if len(partition_by) >= len(schema.names):
        yield "partition_by: has all columns; leave one for the files"


def check_partition_values(rows: pa.Table, columns: Sequence[str]) -> None:
    """Raise `UnfitPartition` for a row with an empty text in a partition column: Delta's log cannot tell it from null."""
    for name in columns:
        if rows.schema.field(name).type == pa.string():
            empty = pc.indices_nonzero(pc.fill_null(pc.equal(rows[name], ""), False))
            if len(empty):
                why = "is '', and Delta cannot tell an empty text from null there"
                raise UnfitPartition(empty[0].as_py(), name, why)


def check_folder_names(rows: pa.Table, columns: Sequence[str], *, is_merged: bool) -> None:
    """Raise `UnfitPartition` for a row with a text in a partition column that is too long for a folder's name.

    `is_merged`: a merge or a compaction by deltalake names the folder, too, and escapes all but ASCII letters and digits.
    """
    for name in columns:
        if rows.schema.field(name).type == pa.string():
            for value in pc.unique(rows[name]).to_pylist():
                is_theirs = is_merged and value is not None
                folder = f"{name}={quote(value, safe='')}" if is_theirs else folder_name(name, value)
                size = len(folder.encode())
                if size > _LONGEST_NAME:
                    row = pc.index(rows[name], pa.scalar(value, pa.string())).as_py()
                    why = f"is too long: partitions are folders, and this one's name would have {size:,} of {_LONGEST_NAME} bytes"
                    raise UnfitPartition(row, name, why)


def by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows of each partition, in their order, without the partition columns.

    Without partition columns, yield all rows at once. Raises `UnfitPartition` for an empty text in a partition column.
    """
    if not columns:
        yield {}, rows
        return
    check_partition_values(rows, columns)
    numbered = rows.select(list(columns)).append_column(_NUMBER, pa.array(range(len(rows)), pa.int64()))
    groups = numbered.group_by(list(columns), use_threads=False).aggregate([(_NUMBER, "list")])
    others = rows.drop_columns(list(columns))
    for group in groups.to_pylist():
        yield (
            {name: partition_text(group[name]) for name in columns},
            others.take(pa.array(group[f"{_NUMBER}_list"], pa.int64())),
        )


def folder_name(column: str, value: Any) -> str:
    """Return the name of a partition's folder in Hive's form: `day=mon`. Characters with a special meaning there are escaped."""
    text = partition_text(value)
    escaped = _NULL if text is None else _escaped(text)
    return f"{_escaped(column)}={escaped}"


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", text)


def folders_of(partition: Partition) -> str:
    """Return the folders of a partition's files in a table, as Spark names them, with a slash at the end; nothing without partitions."""
    return "".join(f"{folder_name(column, value)}/" for column, value in partition.items())


_LONGEST_NAME: Final = 255
"""Longest name that file systems allow, in bytes."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f~"#%'*/:=?\\{\[\]^]""")
"""Characters that Spark escapes, and `~`: deltalake looks for `%7E` where the log has it, and OPTIMIZE misses the file."""
