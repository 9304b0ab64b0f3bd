"""Records on their way from one stage to the next: columns of their own types, and where each of them stands."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace.execution.element import Element
from headrace.plan.record_columns import from_struct_array, spark_ddl, struct_type
from headrace.state.key_groups import key_group

Takes = tuple[type, ...]
"""The record types of a stage's inputs."""

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
    """Return the same as Spark writes it."""
    structs = (f"in{number} {spark_ddl(struct_type(record))}" for number, record in enumerate(takes))
    return ", ".join([_PLACE_DDL, *structs])


def transit_table(  # noqa: PLR0917 - its columns
    takes: Takes,
    number: int,
    orders: pa.Array | Sequence[bytes],
    timestamps: pa.Array | Sequence[int],
    kinds: pa.Array | Sequence[int],
    keys: pa.Array | Sequence[bytes],
    records: pa.StructArray,
    max_parallelism: int,
) -> pa.Table:
    """Return records for input `number` of a stage as a table."""
    schema = transit_schema(takes)
    rows = len(records)
    places = [
        orders,
        timestamps,
        kinds,
        key_groups(keys, max_parallelism),
        keys,
        pa.repeat(pa.scalar(number, pa.int32()), rows),
    ]
    structs = [records if at == number else pa.nulls(rows, struct_type(record)) for at, record in enumerate(takes)]
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip([*places, *structs], schema, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def key_groups(keys: pa.Array | Sequence[bytes], max_parallelism: int) -> pa.Array:
    """Return the key group of each key; each distinct one is hashed once."""
    encoded = (keys if isinstance(keys, pa.Array) else pa.array(keys, pa.binary())).dictionary_encode()
    groups = pa.array([key_group(key, max_parallelism) for key in encoded.dictionary.to_pylist()], pa.int32())
    return groups.take(encoded.indices)


def elements_of(batch: pa.RecordBatch, takes: Takes) -> list[Element]:
    """Return the elements in a batch that Spark hands to a keyed task."""
    columns = [batch[name].to_pylist() for name in ("order", "timestamp", "kind", "key")]
    inputs = batch["input"].to_pylist()
    if len(takes) == 1:
        records: Iterable[object] = from_struct_array(batch["in0"], takes[0])
    else:
        structs = [from_struct_array(batch[f"in{number}"], record) for number, record in enumerate(takes)]
        records = (structs[number][at] for at, number in enumerate(inputs))
    return list(map(Element._make, zip(*columns, records, inputs, strict=True)))
