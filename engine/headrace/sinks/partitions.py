"""Rows of a sink by its partitions, with the values as Delta's log writes them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from headrace.plan.value_arrays import UnfitRecord
from headrace.tables.files import partition_text

PARTITION_TYPES: Final = (pa.string(), pa.int64(), pa.bool_())
"""The types of columns that a sink can be partitioned by."""

_NUMBER: Final = "__row"

Partition = Mapping[str, str | None]
"""The value of each partition column in a file, as Delta's log writes it; None is null."""


def layout_problems(schema: pa.Schema, partition_by: Sequence[str], cluster_by: Sequence[str]) -> Iterator[str]:
    """Yield what keeps a table of this schema from being partitioned and clustered so: a key of the job's file, and why."""
    for key, columns in (("partition_by", partition_by), ("cluster_by", cluster_by)):
        for name in columns:
            if name not in schema.names:
                yield f"{key}: there is no column {name} (the sink has: {', '.join(schema.names)})"
        if len({*columns}) < len(columns):
            yield f"{key}: a column is there twice"
    for name in partition_by:
        if name in schema.names and (kind := schema.field(name).type) not in PARTITION_TYPES:
            yield f"partition_by: {name} is {kind}; a table is partitioned by texts, whole numbers or truth values (a day as a text, say)"
        if name in cluster_by:
            yield f"cluster_by: {name} is in partition_by, so all rows of a file have the same one"
    if len(partition_by) >= len(schema.names):
        yield "partition_by: has all columns; leave one for the files"


def check_partition_values(rows: pa.Table, columns: Sequence[str]) -> None:
    """Refuse an empty text as a partition: Delta's log cannot tell it from null. Raises `UnfitRecord` that names the row."""
    for name in columns:
        if rows.schema.field(name).type == pa.string():
            empty = pc.indices_nonzero(pc.fill_null(pc.equal(rows[name], ""), False))
            if len(empty):
                why = "is '', and the sink is partitioned by it: Delta cannot tell an empty text from null there"
                raise UnfitRecord(empty[0].as_py(), name, why)


def check_folder_names(rows: pa.Table, columns: Sequence[str]) -> None:
    """Refuse a text that is too long for the name of a folder. Raises `UnfitRecord` that names the row."""
    for name in columns:
        if rows.schema.field(name).type == pa.string():
            for value in pc.unique(rows[name]).to_pylist():
                size = len(folder_name(name, value).encode())
                if size > _LONGEST_NAME:
                    row = pc.index(rows[name], pa.scalar(value, pa.string())).as_py()
                    why = f"is too long: the sink's partitions are folders, and this one's name would have {size:,} of {_LONGEST_NAME} bytes"
                    raise UnfitRecord(row, name, why)


def by_partition(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[dict[str, str | None], pa.Table]]:
    """Yield the rows of each partition, in their order and without its columns; all rows at once without partition columns.

    Raises `UnfitRecord` as `check_partition_values` does.
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
    """Return the folder of a partition as Hive names it: `day=mon`. Characters that folders or readers do not stand are escaped."""
    text = partition_text(value)
    escaped = _NULL if text is None else _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    return f"{column}={escaped}"


_LONGEST_NAME: Final = 255
"""Bytes that file systems allow for a name."""

_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED: Final = re.compile(r"""[\x00-\x1f\x7f"#%'*/:=?\\{\[\]^]""")
