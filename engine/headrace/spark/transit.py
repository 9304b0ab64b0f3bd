"""Transit: records between two stages, as columns of their own types with their places in the order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from headrace.execution.element import Element, make_element
from headrace.plan.record_columns import from_struct_array, spark_ddl, struct_type
from headrace.spark.columnar_rows import ColumnarRows
from headrace.state.key_groups import key_group

Takes = tuple[type, ...]
"""Record types of a stage's inputs."""

ROWS_AT_ONCE: Final = 20_000
"""Number of rows that a task turns into records at once, like `spark.sql.execution.arrow.maxRecordsPerBatch` in the profiles."""

_PLACE = (
    pa.field("order", pa.binary()),
    pa.field("timestamp", pa.int64()),
    pa.field("kind", pa.int32()),
    pa.field("key_group", pa.int32()),
    pa.field("key", pa.binary()),
    pa.field("input", pa.int32()),
)
_PLACE_DDL = "`order` binary, timestamp long, kind int, key_group int, key binary, input int"


def transit_schema(takes: Takes) -> pa.Schema:
    """Return the columns that a stage reads: places, keys, and a struct for each of its inputs, of which one is not null."""
    structs = (pa.field(f"in{number}", struct_type(record)) for number, record in enumerate(takes))
    return pa.schema([*_PLACE, *structs])


def transit_ddl(takes: Takes) -> str:
    """Return `transit_schema` in Spark's notation."""
    structs = (f"in{number} {spark_ddl(struct_type(record))}" for number, record in enumerate(takes))
    return ", ".join([_PLACE_DDL, *structs])


def transit_table(
    takes: Takes, number: int, rows: ColumnarRows, keys: pa.BinaryArray, max_parallelism: int
) -> pa.Table:
    """Return records for input `number` of a stage as a table."""
    count = len(rows)
    groups = key_groups(keys, max_parallelism)
    places = [rows.orders, rows.timestamps, rows.kinds, groups, keys, pa.repeat(pa.scalar(number, pa.int32()), count)]
    structs = [
        rows.columns if at == number else pa.nulls(count, struct_type(record)) for at, record in enumerate(takes)
    ]
    return pa.Table.from_arrays([*places, *structs], schema=transit_schema(takes))


def key_groups(keys: pa.BinaryArray, max_parallelism: int) -> pa.Int32Array:
    """Return the key group of each key. Hashes each distinct key once."""
    encoded = keys.dictionary_encode()
    groups = pa.array([key_group(key, max_parallelism) for key in encoded.dictionary.to_pylist()], pa.int32())
    return groups.take(encoded.indices)


def elements_of(batch: pa.RecordBatch, takes: Takes) -> list[Element]:
    """Return the elements in a batch that Spark gives to a keyed task."""
    columns = [batch[name].to_pylist() for name in ("order", "timestamp", "kind", "key")]
    inputs = batch["input"].to_pylist()
    if len(takes) == 1:
        records: Iterable[object] = from_struct_array(batch["in0"], takes[0])
    else:
        structs = [from_struct_array(batch[f"in{number}"], record) for number, record in enumerate(takes)]
        records = (structs[number][at] for at, number in enumerate(inputs))
    return list(map(make_element, zip(*columns, records, inputs, strict=True)))
