"""Columns that the engine adds to the rows of a source: their places in the order of arrival, and their event times."""

from __future__ import annotations

import sys
from array import array

import pyarrow as pa

from headrace.api import SourceNode
from headrace.plan.column_types import columns_of
from headrace.plan.source_values import times

_ORDER_BYTES = 8


def order_column(ordinals: pa.Int64Array) -> pa.BinaryArray:
    """Return the place of the record at each ordinal, as `plan.order.record_order` makes it."""
    places = array("q")
    places.frombytes(ordinals.buffers()[1])
    places = places[ordinals.offset : ordinals.offset + len(ordinals)]
    if sys.byteorder == "little":
        places.byteswap()
    kind = pa.binary(_ORDER_BYTES)
    return pa.Array.from_buffers(kind, len(ordinals), [None, pa.py_buffer(places)]).cast(pa.binary())


def event_times(table: pa.Table, source: SourceNode) -> pa.ChunkedArray:
    """Return the event time of each row of a source in milliseconds.

    It is null where a row has none that can be read, or one outside the years 1 to 9999. Text is no time.
    """
    if source.event_time not in table.schema.names:
        return pa.chunked_array([pa.nulls(table.num_rows, pa.int64())])
    column = next(column for column in columns_of(source.record) if column.name == source.event_time)
    return times(table[source.event_time], column)
